"""The paper's evaluation, measured again: what is trained for a figure, what is kept, drawn and claimed."""
