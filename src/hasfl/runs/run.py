"""A training that is kept in a folder: started, checkpointed, interrupted, resumed, finished."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol

import torch

from hasfl.engines.memory import held_memory
from hasfl.record import RoundRecord
from hasfl.reporting.locked_folder import require_free
from hasfl.reporting.metrics import Outcome, outcome
from hasfl.reporting.store import RunFolder
from hasfl.runner.scenarios import simulation_of
from hasfl.runner.simulation import Simulation
from hasfl.runs.environment import environment
from hasfl.runs.interruption import Interruption
from hasfl.runs.request import RunRequest
from hasfl.runs.resuming import back_to_checkpoint, require_same
from hasfl.training.checkpoint import saved

STOPPED = "interrupted after a whole round; --resume continues from there"
STOPPED_AT_THE_END = "interrupted in the last round; the run is finished"


class Watcher(Protocol):
    """Is told about trainings while they run."""

    def asked(self, request: RunRequest) -> None:
        """It is this run's turn."""

    def prepares(self, step: str) -> None:
        """A step before the first round begins, such as "loading digits"."""

    def found(self, request: RunRequest) -> None:
        """The folder holds a finished training already."""

    def started(self, request: RunRequest, simulation: Simulation, last: RoundRecord | None) -> None:
        """A training begins, or goes on after the round `last`."""

    def recorded(self, record: RoundRecord) -> None:
        """A round is over."""

    def finished(self, reached: Outcome) -> None:
        """A training is over."""


def carry_out(request: RunRequest, watcher: Watcher, *, resume: bool) -> Outcome:
    """Train as requested. With `resume`, a run that the folder holds is continued."""
    watcher.asked(request)
    if resume and request.path.exists():
        return _go_on(request, watcher)
    require_free(request.path)  # before anything is computed
    simulation = _prepared(request, watcher)
    watcher.prepares("planning")
    simulation.training.begin()  # before the folder is made: a failing first plan leaves none behind
    with RunFolder.create(
        request.path,
        scenario_text=request.text,
        settings=request.settings(),
        environment=environment(),
    ) as folder:
        return _train(folder, request, simulation, watcher, None)


def _go_on(request: RunRequest, watcher: Watcher) -> Outcome:
    """Continue a run from its last checkpoint, unless it is finished and nothing else is asked for."""
    with RunFolder.open(request.path) as folder:
        other_goal = require_same(folder, request)
        if folder.finished and not other_goal:
            watcher.found(request)
            return outcome(request.strategy, folder.records())
        folder.lock()
        simulation = _prepared(request, watcher)
        kept = back_to_checkpoint(folder, simulation, other_goal=other_goal)
        simulation.training.begin()
        folder.go_on_with(request.text, request.settings())
        folder.rewind(len(kept))
        return _train(folder, request, simulation, watcher, kept[-1] if kept else None)


def _prepared(request: RunRequest, watcher: Watcher) -> Simulation:
    return simulation_of(request.scenario(), folder=request.folder, tell=watcher.prepares)


def _train(
    folder: RunFolder,
    request: RunRequest,
    simulation: Simulation,
    watcher: Watcher,
    last: RoundRecord | None,
) -> Outcome:
    """Train from a whole round on to the end.

    There is always a checkpoint to go on from: the first one is from before the first round. None is saved
    after the round that ends training. So a run that gets a higher budget trains that round again, as a run
    does that had this budget from the beginning.
    """
    training, seconds = simulation.training, request.scenario().training.checkpoint_seconds
    began = time.monotonic() - folder.elapsed_seconds()
    with Interruption() as interruption:
        if last is None:
            folder.save_checkpoint(*saved(training))
        watcher.started(request, simulation, last)
        last_checkpoint = time.monotonic()
        for record in training.rounds():
            folder.append(record)
            folder.append_timing(_timing(record, began))
            watcher.recorded(record)
            settled = training.progress is not None and record.round == training.progress.order.round - 1
            late = time.monotonic() - last_checkpoint >= seconds
            wanted = interruption.wanted or (record.aggregated and late)
            if settled and wanted and training.goes_on:
                folder.save_checkpoint(*saved(training))
                last_checkpoint = time.monotonic()
                interruption.act(STOPPED)
        reached = _finish(folder, request, simulation)
        watcher.finished(reached)
        interruption.act(STOPPED_AT_THE_END)
    return reached


def _timing(record: RoundRecord, began: float) -> Mapping[str, Any]:
    elapsed, memory = round(time.monotonic() - began, 6), held_memory(torch.device("cpu"))
    return {"round": record.round, "elapsed_seconds": elapsed, "peak_memory_bytes": memory}


def _finish(folder: RunFolder, request: RunRequest, simulation: Simulation) -> Outcome:
    reached = outcome(request.strategy, folder.records())
    folder.save_model({name: tensor.cpu().numpy() for name, tensor in simulation.model().items()})
    folder.save_result(asdict(reached))
    return reached
