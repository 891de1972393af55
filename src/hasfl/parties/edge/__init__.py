"""The edge server: the layers after the cuts, rounds, and the judging of models."""
