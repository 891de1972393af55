"""The training loop of Algorithm 1, the virtual clock, the constants that plans rest on, and forecasts."""
