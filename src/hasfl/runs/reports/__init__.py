"""Gathers from the folders of runs what `report/page/report.py` says about them."""
