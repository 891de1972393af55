"""Hypothesis without deadlines, since machines are shared, and with the same cases every time."""

import os

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported: idle threads sleep
settings.register_profile("hasfl", deadline=None, derandomize=True)
settings.load_profile("hasfl")


@pytest.fixture
def readings_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every interval ends with a reading, however long it takes, for trainings of a few rounds.

    The paper's estimates come after the first and the fourth interval.
    """
    monkeypatch.setattr("hasfl.readings.sources.FIRST_SHARE", 1e9)
    monkeypatch.setattr("hasfl.readings.sources.LATER_SHARE", 1e9)
    monkeypatch.setattr("hasfl.readings.sources.ESTIMATES_AFTER", ((1, 1), (4, 1)))
