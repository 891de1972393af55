"""Requests for small runs, and a watcher that remembers and may act."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hasfl.runs.places.places import Here
from hasfl.runs.places.watching import News, PlaceWatcher, nothing_more
from hasfl.runs.request import RunRequest
from tests.runs.scenarios import MOVING, kept, write

ROOT = Path(__file__).parents[3]
STRATEGIES = ("rbs+hams", "sfl", "fl")


class Memory(PlaceWatcher):
    """Remembers all that it is told, and lets a test act when there is news."""

    def __init__(self, act: Callable[[News], None] = lambda news: None) -> None:
        self.act = act
        self.heard: list[News] = []
        self.said: list[str] = []
        self.finished_before: list[str] = []

    def news(self, news: News) -> None:
        self.heard.append(news)
        self.act(news)

    def remarks(self, sentence: str) -> None:
        self.said.append(sentence)

    def found(self, request: RunRequest) -> None:
        self.finished_before.append(request.path.name)


class Once:
    """Acts at the first news that a condition holds for."""

    def __init__(self, when: Callable[[News], bool], act: Callable[[], None]) -> None:
        self.when, self.act, self.done = when, act, False

    def __call__(self, news: News) -> None:
        if not self.done and self.when(news):
            self.done = True
            self.act()


def leave_a_mark(request: RunRequest) -> None:
    """What a test does after a run: the process that trained is written beside the run."""
    request.path.with_suffix(".mark").write_text(str(os.getpid()))


def marks(requests: Sequence[RunRequest]) -> set[int]:
    return {int(request.path.with_suffix(".mark").read_text()) for request in requests}


@pytest.fixture(autouse=True)
def tests_are_known_to_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that they can call `leave_a_mark`."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def requests_for(tmp_path: Path) -> Callable[..., list[RunRequest]]:
    def made(
        folder: str, rounds: int = 4, strategies: Sequence[str] = STRATEGIES, **changes: str
    ) -> list[RunRequest]:
        scenario = write(tmp_path, MOVING | {"stop.rounds": str(rounds)} | changes)
        return [RunRequest.of(scenario, tmp_path / folder, strategy_name=name, seed=0) for name in strategies]

    return made


def require_same_as_here(requests: Sequence[RunRequest], whole: Sequence[RunRequest]) -> None:
    """Runs must have the bytes of runs that this process carries out, one after the other."""
    Here().carry_out(whole, nothing_more, Memory())
    for request, other in zip(requests, whole, strict=True):
        assert kept(request.path) == kept(other.path), request.path.name
