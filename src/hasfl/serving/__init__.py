"""The served model: the running mean of the aggregated models, calibrated, and evaluated."""
