"""The paper's formulas: the seconds of a round, the number of rounds, and their product Θ. NumPy only."""
