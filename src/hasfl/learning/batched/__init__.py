"""The samples of many devices in one batch: what makes the simulated engine fast."""
