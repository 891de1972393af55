"""Small scenarios that train in a moment, and what a run of one leaves behind."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from hasfl.cli.training_view import TrainingView
from hasfl.record import RoundRecord
from tests.cli.conftest import Outcome

SMALL = {
    "data.name": '"digits"',
    "fleet.devices": "4",
    "training.learning_rate": "0.05",
    "training.interval": "2",
    "training.max_batch": "8",
    "stop.rounds": "4",
}
MOVING = {  # random batch sizes, cuts that follow estimates, slots, rates that drift, devices that leave
    "training.strategy": '"rbs+hams"',
    "training.optimizer": '"momentum"',
    "training.learning_rate": "0.02",
    "training.interval": "3",
    "world.leave": "0.15",
    "world.rates": '"walk"',
}
CONSTANTS = """
[constants]
smoothness = 1.0
initial_gap = 2.0
variance_of = [20, 20, 20, 20, 20]
moment_of = [1, 1, 1, 1, 1]
"""
PIS = """
[[device]]
name = "pi"
count = 3
flops = "30 GFLOPS"
up_rate = "20 Mbps"
down_rate = "50 Mbps"
"""
SAME_AGAIN = ("rounds.jsonl", "model.safetensors", "result.json")  # files of which every repetition is alike


def write(folder: Path, changes: dict[str, str] | None = None, tables: str = "", name: str = "small") -> Path:
    """A scenario file: the small one with these dotted keys changed, and tables after them."""
    path = folder / f"{name}.toml"
    lines = [f"{key} = {value}" for key, value in (SMALL | (changes or {})).items() if value]
    path.write_text("\n".join(lines) + "\n" + tables)
    return path


def rounds(run: Path) -> list[dict[str, Any]]:
    """What a run has recorded."""
    path = run / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def kept(run: Path) -> dict[str, bytes]:
    """The files of a finished run that must not depend on how often it was stopped."""
    return {file: (run / file).read_bytes() for file in SAME_AGAIN}


def files(folder: Path) -> list[str]:
    """Every file and folder below a folder, hidden ones too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def sentence(outcome: Outcome, code: int = 2) -> str:
    """The one sentence that says what went wrong; before it only what was begun is printed."""
    *before, last = outcome.err.splitlines()
    assert (outcome.code, outcome.out) == (code, ""), outcome
    assert last.startswith("hasfl: ")
    assert not [line for line in before if line.startswith(("hasfl: ", "Traceback", " "))], outcome
    return last


def press_control_c_in(
    monkeypatch: pytest.MonkeyPatch,
    rounds: set[int],
    times: int = 1,
    number: signal.Signals = signal.SIGINT,
) -> None:
    """Let somebody who looks on press Ctrl-C, or send another signal, when these rounds are over."""
    recorded = TrainingView.recorded

    def pressed(view: TrainingView, record: RoundRecord) -> None:
        recorded(view, record)
        for _ in range(times if record.round in rounds else 0):
            os.kill(os.getpid(), number)

    monkeypatch.setattr(TrainingView, "recorded", pressed)
