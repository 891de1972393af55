"""Trainings here are as small as those of the engines' tests."""

from tests.learning.conftest import _one_thread as _one_thread
