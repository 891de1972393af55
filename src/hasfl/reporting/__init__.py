"""What is left of a training: the folder it writes, the numbers read out of it, and their pictures."""
