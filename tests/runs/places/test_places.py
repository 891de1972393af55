"""Which texts name a place, what endings come to, and what is done in this process."""

from collections.abc import Callable
from multiprocessing.connection import Pipe
from pathlib import Path
from threading import Thread

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from hasfl.cli.training_view import ProcessesView
from hasfl.errors import Diverged, InputError, Interrupted, MissingExtra, RunsMissing, StorageError
from hasfl.runs.places.places import Here, place_of
from hasfl.runs.places.processes import FOUND, LocalProcesses, environments, work
from hasfl.runs.places.watching import Ending, Endings, News, attempt, in_use, news_of, nothing_more
from hasfl.runs.request import RunRequest
from tests.cli.conftest import Hasfl
from tests.runs.places.conftest import Memory, leave_a_mark
from tests.runs.scenarios import sentence, write

Requests = Callable[..., list[RunRequest]]


def test_places_by_name() -> None:
    assert isinstance(place_of(None), Here)
    assert place_of("local:1") == LocalProcesses(1)
    assert place_of("local:12") == LocalProcesses(12)


WRONG = [
    "",
    "local",
    "local:",
    "local:0",
    "local:-1",
    "local:2.5",
    "local:2000",
    "local:٣",
    "here",
    "SLURM",
    "k8s:3",
]


@pytest.mark.parametrize("text", WRONG)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"--on must be local:N .* or slurm.*; got "):
        place_of(text)


def test_the_command_refuses_a_wrong_place_in_one_sentence(hasfl: Hasfl, tmp_path: Path) -> None:
    outcome = hasfl("compare", write(tmp_path), "--out", tmp_path / "runs", "--on", "cloud")
    assert "--on must be local:N" in sentence(outcome)
    assert not (tmp_path / "runs").exists()


def test_after_is_called_for_every_run_even_if_it_was_finished_before(requests_for: Requests) -> None:
    requests, called, watcher = requests_for("here", strategies=["sfl", "fl"]), [], Memory()
    for _ in range(2):
        Here().carry_out(requests, lambda request: called.append(request.path.name), watcher)
    names = [request.path.name for request in requests]
    assert called == names * 2
    assert watcher.finished_before == names


def test_a_worker_carries_out_orders_until_the_end_of_the_line(requests_for: Requests) -> None:
    (request,) = requests_for("worker", strategies=["sfl"])
    here, there = Pipe()
    with here, there:
        thread = Thread(target=work, args=[there])
        thread.start()
        here.send((request, leave_a_mark))
        assert here.recv() == Ending()
        assert request.path.with_suffix(".mark").exists()
        here.send((request, leave_a_mark))
        assert here.recv() == (FOUND, "")
        assert here.recv() == Ending()
        here.send(None)
        thread.join(10)
        assert not thread.is_alive()


def test_a_run_stops_after_its_round_as_soon_as_there_is_something_on_the_line(
    requests_for: Requests,
) -> None:
    (request,) = requests_for("worker", strategies=["sfl"])
    here, there = Pipe()
    with here, there:
        here.send((request, nothing_more))
        here.send(None)
        work(there)
        assert here.recv().error is Interrupted
    watcher = Memory()
    ending = attempt(request, nothing_more, watcher, stop_asked=lambda: True)
    assert ending.error is Interrupted
    assert news_of(request, "stopped").round == 1
    assert attempt(request, nothing_more, watcher) == Ending()
    assert news_of(request, "finished").round == 4


NO_SKLEARN = "a run needs sklearn: pip install 'hasfl[train]'"


@pytest.mark.parametrize(
    ("raised", "expected", "all_of_them"),
    [
        (InputError("a"), Ending(InputError, "a"), True),
        (StorageError("a"), Ending(StorageError, "a"), True),
        (Diverged("a"), Ending(Diverged, "a"), False),
        (ModuleNotFoundError("x", name="sklearn"), Ending(MissingExtra, NO_SKLEARN), True),
        (OSError(28, "the disk is full"), Ending(StorageError, "cannot write: the disk is full"), True),
        (RuntimeError("a"), Ending(RunsMissing, "failed with RuntimeError: a"), False),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_errors_become_endings(
    requests_for: Requests,
    monkeypatch: pytest.MonkeyPatch,
    raised: Exception,
    expected: Ending,
    all_of_them: bool,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr("hasfl.runs.places.watching.carry_out", fail)
    (request,) = requests_for("failing", strategies=["sfl"])
    ending = attempt(request, nothing_more, Memory())
    assert ending == expected
    assert ending.concerns_all == all_of_them


def test_a_folder_that_is_being_removed_is_no_error(requests_for: Requests) -> None:
    """An `after` may keep what it needs and remove the folder, while the first process looks at it."""
    (request,) = requests_for("removed", strategies=["sfl"])
    for left in (False, True):
        if left:
            request.path.mkdir(parents=True)
        assert not in_use(request)
        assert news_of(request, "trains") == News(request=request, state="trains")


def test_missing_runs_are_named(requests_for: Requests) -> None:
    endings, requests = Endings(), requests_for("lost")
    endings.add(requests[0], Ending())
    endings.settle(3)
    endings.add(requests[1], Ending(Diverged, "the loss is infinite"))
    with pytest.raises(RunsMissing, match=r"1 of 3 runs did not finish: small-sfl-seed0 \(the loss is infin"):
        endings.settle(3)
    endings.add(requests[2], Ending(InputError, "no such file"))
    with pytest.raises(InputError, match=r"^no such file$"):
        endings.settle(3)


def test_each_process_has_its_share_of_cores_and_gpus(
    requests_for: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(12)))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS")
    here = requests_for("cpu")
    assert {each["OMP_NUM_THREADS"] for each in environments(here, 3)} == {"4"}
    assert {each["OMP_NUM_THREADS"] for each in environments(here, 50)} == {"1"}
    assert not any("CUDA_VISIBLE_DEVICES" in each for each in environments(here, 3))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert {each["OMP_NUM_THREADS"] for each in environments(here, 3)} == {"7"}

    def gpus(device: str) -> list[str | None]:
        return [
            each.get("CUDA_VISIBLE_DEVICES")
            for each in environments(requests_for("gpu", **{"training.device": f'"{device}"'}), 3)
        ]

    assert gpus("cuda") == ["0", "1", "0"]
    assert gpus("cuda:1") == [None, None, None]  # the run has chosen
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-abc")
    assert gpus("cuda") == ["5", "GPU-abc", "5"]
    assert gpus("cuda:1") == ["5,GPU-abc"] * 3


def test_lines_of_runs_elsewhere(requests_for: Requests) -> None:
    progress = Progress(TextColumn("{task.fields[state]}"), console=Console(quiet=True), disable=True)
    said: list[str] = []
    view = ProcessesView(progress, said.append, runs=3)
    first, second, third = requests_for("lines")

    def summary() -> str:
        return next(task.fields["state"] for task in progress.tasks if task.id == view.all)

    view.show(News(request=first, state="waits"))
    assert summary() == "0 of 3 finished · 0 train · 3 wait"
    view.show(News(request=first, state="trains", round=2, clock=60.0))
    view.show(News(request=second, state="trains"))
    assert summary() == "0 of 3 finished · 2 train · 1 wait"
    view.show(News(request=first, state="trains", round=3, clock=90.0, accuracy=0.5))
    assert [task.fields["state"] for task in progress.tasks][1:] == [
        "round 3 · accuracy 50.0% · virtual 1 min 30 s",
        "starting",
    ]
    view.show(News(request=first, state="finished", round=4, clock=120.0, accuracy=0.75))
    view.show(News(request=second, state="stopped"))
    view.show(News(request=third, state="finished before", round=4, clock=3.0))
    assert summary() == "2 of 3 finished · 0 train · 0 wait"
    assert len(progress.tasks) == 1
    assert said == [
        "small-rbs+hams-seed0: training, from round 2 on",
        "small-sfl-seed0: training",
        "small-rbs+hams-seed0: finished · round 4 · accuracy 75.0% · virtual 2 min 00 s",
        "small-sfl-seed0: stopped",
        "small-fl-seed0: finished before · round 4 · virtual 3 s",
    ]
