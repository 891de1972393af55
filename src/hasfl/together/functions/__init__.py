"""Torch functions that take weights, done for many devices at once with each device's own weights."""
