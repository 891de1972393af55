"""Which model is read out of a training, and how it is evaluated."""
