"""Trainings here are as small as those of the engines' tests."""

from tests.engines.conftest import _one_thread as _one_thread
