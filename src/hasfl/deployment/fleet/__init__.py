"""A fleet of real machines: what its parties agree on, and how each of them joins a training."""
