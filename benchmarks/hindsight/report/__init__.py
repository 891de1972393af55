"""Tables and pictures of the trained runs: of all settings in `verdicts.py`, of each in `tables.py`."""
