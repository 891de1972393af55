"""Runs in several processes: the bytes of one process, whatever is stopped or killed meanwhile."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from hasfl.errors import InputError, Interrupted, RunsMissing, Terminated
from hasfl.runs.places.processes import LocalProcesses, Worker
from hasfl.runs.places.watching import News, nothing_more
from hasfl.runs.request import RunRequest
from tests.cli.conftest import Hasfl
from tests.runs.places.conftest import Memory, Once, leave_a_mark, marks, require_same_as_here
from tests.runs.scenarios import rounds, write

pytestmark = pytest.mark.slow  # every process imports torch
Requests = Callable[..., list[RunRequest]]
LONG = 40  # rounds
OFTEN = {"training.checkpoint_seconds": "0"}


def is_training(news: News) -> bool:
    return news.state == "trains" and news.round > 0


def test_two_processes_write_the_bytes_of_one(requests_for: Requests) -> None:
    requests, watcher = requests_for("two"), Memory()
    LocalProcesses(2).carry_out(requests, leave_a_mark, watcher)
    require_same_as_here(requests, requests_for("whole"))
    assert 1 <= len(marks(requests)) <= 2  # three runs: a process has carried out more than one
    assert os.getpid() not in marks(requests)
    last = {news.request.path: news for news in watcher.heard}
    assert {(news.state, news.round) for news in last.values()} == {("finished", 4)}


@pytest.mark.fleet
@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, Interrupted), (signal.SIGTERM, Terminated)])
def test_interrupted_and_continued(
    requests_for: Requests, number: signal.Signals, kind: type[Interrupted]
) -> None:
    requests = requests_for("stopped", rounds=LONG)
    watcher = Memory(Once(is_training, lambda: os.kill(os.getpid(), number)))
    with pytest.raises(Interrupted, match=r"^interrupted; the same command continues from there$") as stop:
        LocalProcesses(2).carry_out(requests, nothing_more, watcher)
    assert stop.type is kind
    assert any(0 < len(rounds(request.path)) < LONG for request in requests)
    assert not requests[2].path.exists()  # it never began
    LocalProcesses(2).carry_out(requests, nothing_more, Memory())
    require_same_as_here(requests, requests_for("whole", rounds=LONG))


@pytest.mark.fleet
def test_a_second_signal_stops_at_once(requests_for: Requests) -> None:
    requests = requests_for("stopped", rounds=LONG, **OFTEN)

    def press_twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="the same command continues"):
        LocalProcesses(2).carry_out(requests, nothing_more, Memory(Once(is_training, press_twice)))
    LocalProcesses(2).carry_out(requests, nothing_more, Memory())
    require_same_as_here(requests, requests_for("whole", rounds=LONG))


@pytest.mark.fleet
def test_a_killed_process_is_reported_and_the_other_runs_go_on(
    requests_for: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, started = requests_for("killed", rounds=LONG), list[Worker]()
    start = Worker.start

    def remembered(*arguments: object) -> Worker:
        started.append(start(*arguments))
        return started[-1]

    monkeypatch.setattr(Worker, "start", remembered)

    def first_is_training(news: News) -> bool:
        return is_training(news) and news.request == requests[0]

    watcher = Memory(Once(first_is_training, lambda: os.kill(started[0].process.pid, signal.SIGKILL)))
    name, reason = requests[0].path.name, "its process was ended by SIGKILL"
    with pytest.raises(RunsMissing) as lost:
        LocalProcesses(2).carry_out(requests, nothing_more, watcher)
    assert str(lost.value) == (
        f"1 of 3 runs did not finish: {name} ({reason}); the same command continues what is missing"
    )
    assert lost.value.exit_code == 1
    assert f"{name} is not finished: {reason}; the other runs go on" in watcher.said
    assert {(request.path / "result.json").exists() for request in requests[1:]} == {True}
    monkeypatch.undo()
    LocalProcesses(2).carry_out(requests, nothing_more, Memory())
    require_same_as_here(requests, requests_for("whole", rounds=LONG))


@pytest.mark.fleet
def test_processes_end_with_the_process_that_started_them(requests_for: Requests) -> None:
    """Even if it is killed: nobody is at the other end of the line any more."""
    (request,) = requests_for("orphan", rounds=10_000, strategies=["sfl"])
    worker = Worker.start(0, dict(os.environ))
    worker.line.send((request, nothing_more))
    while not rounds(request.path):
        pass
    worker.line.close()
    assert worker.process.wait(30) == 0
    assert 0 < len(rounds(request.path)) < 10_000


def test_wrong_input_of_one_run_stops_the_others(requests_for: Requests) -> None:
    requests = requests_for("wrong", rounds=10_000, strategies=["b=64+cut=1", "sfl"])
    with pytest.raises(InputError, match="max_batch"):
        LocalProcesses(2).carry_out(requests, nothing_more, Memory())
    assert len(rounds(requests[1].path)) < 10_000


def test_the_command(hasfl: Hasfl, tmp_path: Path) -> None:
    compare = ("compare", write(tmp_path), "--strategies", "sfl,fl", "--out", tmp_path / "runs")
    outcome = hasfl(*compare, "--on", "local:2")
    assert outcome.code == 0
    assert "small-fl-seed0: finished · round 4" in outcome.err
    again = hasfl(*compare)  # one after the other, with nothing left to do
    assert "1 of 2: sfl, seed 0: finished before" in again.err
    assert again.out == outcome.out
