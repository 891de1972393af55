"""Gathers from the folders of runs what `pages/report.py` says about them."""
