"""What holds for all tests: the cases of Hypothesis, signals, and the time that a test may take.

Hypothesis has no deadlines, since machines are shared, and draws the same cases every time.
"""

import os
import signal

import pytest
from hypothesis import settings

# Set before torch is imported: idle threads sleep, and trainings in tests are too small for a second thread.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("hasfl", deadline=None, derandomize=True)
settings.load_profile("hasfl")

# A job in the background ignores Ctrl-C, and one under `nohup` a hang-up. Programs inherit that a signal is
# ignored, but no handler. So a handler that does nothing lets tests go on, and their programs react as usual.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

LONGER = {"slow": 900, "fleet": 1800}  # seconds for a test; pyproject.toml has the limit of the quick ones


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of the long lanes a longer limit."""
    for item in items:
        longest = max((LONGER.get(mark.name, 0) for mark in item.iter_markers()), default=0)
        if longest:
            item.add_marker(pytest.mark.timeout(longest))


@pytest.fixture
def estimates_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's estimates come after the first and the fourth interval, for trainings of a few rounds."""
    monkeypatch.setattr("hasfl.training.observer.ESTIMATES_AFTER", ((1, 1), (4, 1)))
