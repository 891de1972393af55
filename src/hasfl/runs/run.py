"""Trains a run, and keeps its records, checkpoints, model and result in the folder of the run."""

import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from hasfl import __version__
from hasfl.errors import naming
from hasfl.learning.memory import held_memory
from hasfl.learning.state import Weights
from hasfl.record import RoundRecord
from hasfl.report.analysis import Outcome, as_result, outcome
from hasfl.runs.build import Simulation
from hasfl.runs.interruption import Interruption
from hasfl.runs.request import RunRequest
from hasfl.runs.resuming import MARKS, back_to_checkpoint, require_same
from hasfl.runs.store import MODEL, MODEL_INPUT, RunFolder, require_free
from hasfl.runs.task import task_of
from hasfl.training.loop import Training

STOPPED = "interrupted after a whole round; --resume continues from there"
STOPPED_AT_THE_END = "interrupted in the last round; the run is finished"


class Prepared(Protocol):
    """A training that is ready to run: a simulation, or parties on a network."""

    @property
    def training(self) -> Training:
        """The training loop, with its engine, decider, observer and clock."""

    @property
    def marks(self) -> Mapping[str, str]:
        """Hashes of the data and the model; a resumed run must have the same ones."""

    @property
    def looped_layers(self) -> Mapping[str, str]:
        """The layers that are trained for one device after the other, each with the reason."""

    def model(self) -> Weights:
        """The model that is handed out, as the module's `state_dict` names its tensors."""

    def model_input(self) -> Mapping[str, Any]:
        """The shape and type of a sample, and the number of outputs; `export` needs them."""


Prepare = Callable[[RunRequest, Callable[[str], None]], Prepared]  # the second argument is told slow steps


class Watcher(Protocol):
    """Is told what happens to runs. A subclass overrides the methods for the events that it needs."""

    def asked(self, request: RunRequest) -> None:
        """The run is next: nothing has been done for it yet."""
        return

    def prepares(self, step: str) -> None:
        """A slow step before the first round begins, such as "loading digits"."""
        return

    def found(self, request: RunRequest) -> None:
        """The folder of the run holds a finished training already."""
        return

    def remarks(self, sentence: str) -> None:
        """A sentence that the user should read before the run goes on."""
        return

    def started(self, request: RunRequest, prepared: Prepared, last: RoundRecord | None) -> None:
        """A training begins, or is resumed after the round `last`."""
        return

    def recorded(self, record: RoundRecord) -> None:
        """A round is over, and its record is in the folder."""
        return

    def finished(self, reached: Outcome) -> None:
        """A training is over, and its model and result are in the folder."""
        return


def simulated(request: RunRequest, tell: Callable[[str], None]) -> Prepared:
    """Prepare the simulation that a request asks for."""
    scenario = request.scenario()
    task = task_of(scenario, folder=request.folder, tell=tell)
    return Simulation.of(task, checkpoint_seconds=scenario.training.checkpoint_seconds)


def carry_out(
    request: RunRequest,
    watcher: Watcher,
    *,
    resume: bool,
    prepare: Prepare = simulated,
    stop_asked: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Train the run that a request asks for. With `resume`, continue the run if its folder exists.

    When `stop_asked` returns True, training stops after the round, as at Ctrl-C.
    """
    watcher.asked(request)
    interruption = Interruption(stop_asked)
    if resume and request.path.exists():
        return _go_on(request, watcher, prepare, interruption)
    require_free(request.path)  # checked first, so that nothing is computed in vain
    prepared = _prepared(request, watcher, prepare)
    watcher.prepares("planning")
    with naming(str(request.scenario_file)):
        prepared.training.begin()  # before the folder is made, so that a failing first plan leaves no folder
    with RunFolder.create(
        request.path,
        scenario_text=request.text,
        settings=request.settings(),
        environment=environment(),
    ) as folder:
        return _train(folder, request, prepared, prepared.marks, watcher, interruption)


def _go_on(request: RunRequest, watcher: Watcher, prepare: Prepare, interruption: Interruption) -> Outcome:
    """Continue a run from its last checkpoint, unless the run is finished and its goal is unchanged."""
    with RunFolder.open(request.path) as folder:
        other_goal = require_same(folder, request)
        if folder.finished and not other_goal:
            folder.require_whole()
            watcher.found(request)
            return outcome(request.strategy, folder.records())
        folder.lock()
        prepared = _prepared(request, watcher, prepare)
        marks = prepared.marks
        kept = back_to_checkpoint(folder, prepared.training, marks, other_goal=other_goal)
        prepared.training.begin()
        _say_what_is_repeated(folder, len(kept), watcher)
        folder.go_on_with(request.text, request.settings())
        folder.rewind(len(kept))
        last = kept[-1] if kept else None
        return _train(folder, request, prepared, marks, watcher, interruption, last)


def _say_what_is_repeated(folder: RunFolder, kept: int, watcher: Watcher) -> None:
    """Tell the watcher how many rounds after the last checkpoint are trained again, with the same result."""
    again = len(folder.records()) - kept
    if folder.lost_its_model:
        watcher.remarks(f"{folder.path} has no {MODEL} any more, so the last rounds are trained again")
    if again:
        rounds = "1 recorded round is" if again == 1 else f"{again} recorded rounds are"
        watcher.remarks(f"{rounds} trained again, because the last checkpoint is of round {kept}")


def _prepared(request: RunRequest, watcher: Watcher, prepare: Prepare) -> Prepared:
    with naming(str(request.scenario_file)):
        return prepare(request, watcher.prepares)


def _train(
    folder: RunFolder,
    request: RunRequest,
    prepared: Prepared,
    marks: Mapping[str, str],
    watcher: Watcher,
    interruption: Interruption,
    last: RoundRecord | None = None,
) -> Outcome:
    """Train after the round `last`, or from the beginning, until the goal is reached.

    `marks` holds hashes of the data and the model. The first checkpoint is saved before the first round, so
    that every run can be resumed.
    """
    training = prepared.training
    began = time.monotonic() - folder.elapsed_seconds()

    def save(arrays: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        folder.save_checkpoint(arrays, {**values, MARKS: marks})

    with interruption:
        if last is None:
            save(*training.saved())
        watcher.started(request, prepared, last)
        for record in training.rounds():
            folder.append(record)
            elapsed, memory = round(time.monotonic() - began, 6), held_memory(torch.device("cpu"))
            folder.append_timing(
                {"round": record.round, "elapsed_seconds": elapsed, "peak_memory_bytes": memory}
            )
            watcher.recorded(record)
            if training.save_if_due(save, record, stopping=interruption.wanted):
                interruption.act(STOPPED)
        reached = outcome(request.strategy, folder.records())
        folder.save_model({name: tensor.cpu().numpy() for name, tensor in prepared.model().items()})
        folder.save_result(as_result(reached, training.goal) | {MODEL_INPUT: prepared.model_input()})
        watcher.finished(reached)
        interruption.act(STOPPED_AT_THE_END)
    return reached


def environment() -> Mapping[str, Any]:
    """The versions and the hardware of this machine, so that a result can be traced back to them."""
    return {
        "hasfl": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cuda": torch.version.cuda,
    }


def commit() -> str | None:
    """The git commit of the source, plus "with changes" if files differ from it; None without git.

    For a copy of the source without its history, the environment variable HASFL_COMMIT gives the commit.
    """
    if (told := os.environ.get("HASFL_COMMIT")) is not None:
        return told
    source = Path(__file__).parent
    try:
        found, changed = (
            subprocess.run(["git", *question], cwd=source, capture_output=True, text=True, check=True).stdout
            for question in (["rev-parse", "HEAD"], ["status", "--porcelain", "--", "."])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.strip() + (" with changes" if changed.strip() else "")
