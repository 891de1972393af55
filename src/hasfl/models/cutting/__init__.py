"""Takes a torch module apart: a chain of layers that can be cut between any two of them."""
