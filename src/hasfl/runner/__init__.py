"""Puts the rooms together: simulations, runs in folders, comparisons, planning questions."""
