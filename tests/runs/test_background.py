"""Commands in the background of a script: they hear no Ctrl-C, and SIGTERM stops them as Ctrl-C would."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hasfl.cli.training_view import TrainingView
from hasfl.runs.store import FolderLock
from tests.cli.conftest import Hasfl
from tests.runs.scenarios import rounds, write

BACKGROUND = ("sh", "-c", 'trap "" INT HUP; exec "$@"', "sh", sys.executable, "-m", "hasfl")
PATIENCE = 120.0  # seconds until torch is imported and a few rounds are trained, on the busiest machine
ENDLESS = {"stop.rounds": "1000000"}


def until(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.05)


@contextmanager
def in_background(*arguments: object) -> Iterator["subprocess.Popen[str]"]:
    command = [*BACKGROUND, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said_at_the_end(process: "subprocess.Popen[str]") -> str:
    process.terminate()
    said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 143, said
    assert "Traceback" not in said
    return said.splitlines()[-1]


def children_of(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def test_a_command_that_does_not_train_yet_is_interrupted(
    hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminated(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(TrainingView, "prepares", terminated)
    outcome = hasfl("train", write(tmp_path), "--out", tmp_path)
    assert (outcome.code, outcome.err.splitlines()[-1]) == (143, "hasfl: interrupted")
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_a_comparison_ends_its_processes(tmp_path: Path) -> None:
    options = ("--strategies", "sfl,fl", "--out", tmp_path, "--on", "local:2")
    with in_background("compare", write(tmp_path, ENDLESS), *options) as process:
        until(lambda: all(len(rounds(tmp_path / f"small-{name}-seed0")) > 2 for name in ("sfl", "fl")))
        children = children_of(process.pid)
        assert len(children) == 2
        said = said_at_the_end(process)
    assert said == "hasfl: interrupted; the same command continues from there"
    assert not any(Path(f"/proc/{child}").exists() for child in children)


@pytest.mark.slow
def test_following_a_run_ends(hasfl: Hasfl, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    assert hasfl("train", write(tmp_path), "--out", tmp_path, "--run", "run").code == 0
    run = tmp_path / "run"
    (run / "result.json").unlink()
    lock = FolderLock.take(run)  # a process that writes it
    with in_background("export", run, "--to", "tensorboard", "--follow") as process:
        # A file that is not empty has rounds, and the command follows the run.
        until(lambda: any(file.stat().st_size for file in (run / "tensorboard").glob("events*")))
        assert "ended following after round 4" in said_at_the_end(process)
    lock.release()
