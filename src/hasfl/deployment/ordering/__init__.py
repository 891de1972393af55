"""Runs that a person orders on a fleet: checked, started, followed, stopped, and ordered again."""
