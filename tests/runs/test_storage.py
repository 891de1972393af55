"""What becomes of a run when the disk, a file or another process is in the way: a sentence, nothing lost."""

import fcntl
import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hasfl.cli.training_view import TrainingView
from hasfl.runs.request import RunRequest
from hasfl.runs.store import RunFolder, read_tensors, write_tensors
from tests.cli.conftest import Hasfl, Outcome
from tests.lanes import quick_then_slow
from tests.report.runs import no_file_above
from tests.runs.scenarios import SAME_AGAIN, files, kept, rounds, sentence, write

QUICK = {"training.strategy": '"sfl"'}
NEVER = QUICK | {"training.checkpoint_seconds": "1e9"}
OFTEN = QUICK | {"training.checkpoint_seconds": "0"}


@pytest.fixture
def finished(hasfl: Hasfl, tmp_path: Path) -> Path:
    """A finished run, called run, with a checkpoint for every interval."""
    assert hasfl("train", write(tmp_path, OFTEN), "--out", tmp_path, "--run", "run").code == 0
    return tmp_path / "run"


@pytest.fixture
def resume(hasfl: Hasfl, tmp_path: Path) -> Callable[[], Outcome]:
    return lambda: hasfl("train", tmp_path / "small.toml", "--out", tmp_path, "--run", "run", "--resume")


@pytest.mark.parametrize(
    ("checkpoints", "size", "refused"),
    [(NEVER, 1500, "rounds.jsonl"), (OFTEN, 50_000, "checkpoint.safetensors"), (NEVER, 50_000, "model")],
    ids=["records", "checkpoint", "model"],
)
def test_a_disk_that_is_full_in_mid_run(
    hasfl: Hasfl,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    checkpoints: dict[str, str],
    size: int,
    refused: str,
) -> None:
    train = ("train", write(tmp_path, checkpoints), "--out", tmp_path, "--run")
    assert hasfl(*train, "whole").code == 0
    with ExitStack() as full, monkeypatch.context() as patch:
        patch.setattr(TrainingView, "started", lambda *_: full.enter_context(no_file_above(size)))
        said = sentence(hasfl(*train, "run"), 1)
    assert f"cannot write {tmp_path / 'run' / refused}" in said
    assert "File too large; the earlier records are intact, and --resume continues from there" in said
    assert rounds(tmp_path / "run") == rounds(tmp_path / "whole")[: len(rounds(tmp_path / "run"))]
    assert len(rounds(tmp_path / "run")) > 0
    assert not [file for file in files(tmp_path / "run") if ".part" in file or file == "result.json"]
    assert hasfl(*train, "run", "--resume").code == 0
    assert kept(tmp_path / "run") == kept(tmp_path / "whole")


def test_a_disk_that_is_full_from_the_first_round(
    hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(view: TrainingView, request: RunRequest, *_: object) -> None:
        (request.path / "rounds.jsonl").symlink_to("/dev/full")

    monkeypatch.setattr(RunFolder, "save_checkpoint", lambda *_: None)  # which opens the file
    monkeypatch.setattr(TrainingView, "started", fill)
    said = sentence(hasfl("train", write(tmp_path), "--out", tmp_path, "--run", "run"), 1)
    assert f"cannot write {tmp_path / 'run' / 'rounds.jsonl'}: No space left on device" in said
    assert not set(SAME_AGAIN[1:]) & set(files(tmp_path / "run"))


def test_a_disk_that_is_full_when_a_run_goes_on(finished: Path, resume: Callable[[], Outcome]) -> None:
    (finished / "result.json").unlink()
    (finished / "rounds.jsonl").rename(finished / "kept.jsonl")
    (finished / "rounds.jsonl").symlink_to("/dev/full")
    assert str(finished / "rounds.jsonl") in sentence(resume(), 2)
    (finished / "kept.jsonl").replace(finished / "rounds.jsonl")
    assert resume().code == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_folder_that_is_read_only(hasfl: Hasfl, finished: Path, resume: Callable[[], Outcome]) -> None:
    (finished / "result.json").unlink()
    finished.chmod(0o500)
    try:
        assert "Permission denied" in sentence(resume(), 1)
    finally:
        finished.chmod(0o700)


@pytest.mark.parametrize(("inside", "code"), [("", 2), ("deeper", 1)])
def test_a_folder_inside_a_file(hasfl: Hasfl, tmp_path: Path, inside: str, code: int) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    said = sentence(hasfl("train", write(tmp_path), "--out", file / inside), code)
    assert str(file) in said
    assert "--out" in said
    assert file.read_text() == "mine"


def test_a_run_that_another_process_writes(finished: Path, resume: Callable[[], Outcome]) -> None:
    (finished / "result.json").unlink()
    before = {file: (finished / file).read_bytes() for file in files(finished)}
    with (finished / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "run is being written by another process" in sentence(resume(), 2)
    assert {file: (finished / file).read_bytes() for file in files(finished)} == before
    assert resume().code == 0


def test_a_run_is_neither_overwritten_nor_mixed_up(
    hasfl: Hasfl, tmp_path: Path, finished: Path, resume: Callable[[], Outcome]
) -> None:
    before, train = kept(finished), ("train", tmp_path / "small.toml", "--out", tmp_path, "--run", "run")
    assert "run exists already: continue it with --resume" in sentence(hasfl(*train), 2)
    assert "(seed was 0, now 1)" in sentence(hasfl(*train, "--resume", "--seed", 1), 2)
    assert "(training.strategy was 'sfl', now 'fl')" in sentence(
        hasfl(*train, "--resume", "--strategy", "fl"), 2
    )
    write(tmp_path, QUICK | {"training.learning_rate": "0.1"})
    assert "(training.learning_rate was 0.05, now 0.1)" in sentence(resume(), 2)
    assert kept(finished) == before


def test_a_comparison_with_runs_of_another_scenario_says_what_compare_can_do(
    hasfl: Hasfl, tmp_path: Path
) -> None:
    compare = ("compare", write(tmp_path), "--out", tmp_path, "--strategies", "sfl")
    assert hasfl(*compare).code == 0
    write(tmp_path, {"training.learning_rate": "0.1"})
    said = sentence(hasfl(*compare), 2)
    assert "small-sfl-seed0 was begun with other settings" in said
    assert "--run" not in said  # which compare does not have
    assert "--out" in said


Tensors = dict[str, NDArray[Any]]
State = dict[str, Any]
DAMAGES: dict[str, Callable[[Tensors, State], tuple[Tensors, Any]]] = {
    "a state without fields": lambda tensors, state: (tensors, {"rounds": state["rounds"]}),
    "a state that is a list": lambda tensors, state: (tensors, [state]),
    "rounds in words": lambda tensors, state: (tensors, state | {"rounds": "two"}),
    "more rounds than recorded": lambda tensors, state: (tensors, state | {"rounds": 99}),
    "devices that there are not": lambda tensors, state: (tensors, state | {"devices": [0, 1, 2, 77]}),
    "an older version": lambda tensors, state: (
        tensors,
        state | {"split": {key: state["split"][key] for key in ("depth", "devices")}},
    ),
    "tensors of other names": lambda tensors, state: ({f"x{k}": v for k, v in tensors.items()}, state),
    "tensors of other shapes": lambda tensors, state: ({k: np.zeros(3) for k in tensors}, state),
}


@pytest.mark.parametrize("damage", quick_then_slow(["cut off", "empty", *DAMAGES], quick=8))
def test_a_damaged_checkpoint(finished: Path, resume: Callable[[], Outcome], damage: str) -> None:
    (finished / "result.json").unlink()
    recorded, path = (finished / "rounds.jsonl").read_bytes(), finished / "checkpoint.safetensors"
    whole = path.read_bytes()
    if damage in DAMAGES:
        tensors, state = DAMAGES[damage](*read_tensors(path))
        write_tensors(path, tensors, json.dumps(state))
    else:
        path.write_bytes(b"" if damage == "empty" else whole[:1000])
    assert str(finished) in sentence(resume(), 2)
    assert (finished / "rounds.jsonl").read_bytes() == recorded
    path.write_bytes(whole)
    assert resume().code == 0


@pytest.mark.parametrize("file", ["scenario.toml", "settings.json", "rounds.jsonl"])
def test_other_files_that_are_damaged_or_gone(
    finished: Path, resume: Callable[[], Outcome], file: str
) -> None:
    (finished / "result.json").unlink()
    keep = (finished / file).read_bytes()
    (finished / file).write_text("{?\n")
    assert str(finished) in sentence(resume(), 2)
    (finished / file).unlink()
    assert str(finished) in sentence(resume(), 2)
    (finished / file).write_bytes(keep)
    assert resume().code == 0


@pytest.mark.parametrize(
    "changes", [{"training.target": "1e-9"}, {"fleet.memory": '"1 kB"'}, {"stop.samples": "3"}], ids=str
)
def test_a_training_that_cannot_begin_leaves_nothing(
    hasfl: Hasfl, tmp_path: Path, changes: dict[str, str]
) -> None:
    sentence(hasfl("train", write(tmp_path, changes), "--out", tmp_path / "runs"), 2)
    assert [file for file in files(tmp_path) if file.startswith("runs/")] == []
