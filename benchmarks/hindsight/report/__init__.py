"""Tables and pictures of the trained runs: `verdicts.py` has all settings, `tables.py` each of them."""
