"""The results of a run: its folder, the measures that compare runs, and the figures."""
