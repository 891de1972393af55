"""The paper's formulas: what a round costs, how many are needed, and their product. NumPy only."""
