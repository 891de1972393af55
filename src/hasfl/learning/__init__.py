"""What a party computes: the layers and their state, steps of optimisers, the engines, the served model."""
