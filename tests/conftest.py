"""Hypothesis without deadlines, since machines are shared, and with the same cases every time."""

import os

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported: idle threads sleep
settings.register_profile("hasfl", deadline=None, derandomize=True)
settings.load_profile("hasfl")


@pytest.fixture
def readings_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first and the fourth interval, however short they are, for trainings of a few rounds."""
    monkeypatch.setattr("hasfl.readings.sources.EARLY", ((1, 1), (4, 1)))
