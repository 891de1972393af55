"""Hypothesis without deadlines: the machines that run the tests are shared and noisy."""

from hypothesis import settings

settings.register_profile("hasfl", deadline=None)
settings.load_profile("hasfl")
