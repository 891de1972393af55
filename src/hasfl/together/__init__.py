"""Many devices in one batch: how the simulated engine is fast."""
