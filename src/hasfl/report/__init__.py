"""Analyses records of trainings: measures that compare runs, figures, and pages."""
