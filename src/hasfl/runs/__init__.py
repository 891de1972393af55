"""Runs: trainings that are kept in folders, with all that starts, resumes, compares and exports them."""
