"""The claims of the paper's evaluation, measured on our trainings, each with a verdict."""
