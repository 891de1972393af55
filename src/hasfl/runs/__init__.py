"""Trainings that are kept in folders: started, interrupted, resumed, compared, listed."""
