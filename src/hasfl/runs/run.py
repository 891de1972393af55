"""A training that is kept in a folder: started, checkpointed, interrupted, resumed, finished."""

import time
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from hasfl.engines.job import Job
from hasfl.engines.memory import held_memory
from hasfl.errors import naming
from hasfl.record import RoundRecord
from hasfl.reporting.locked_folder import require_free
from hasfl.reporting.metrics import Outcome, as_result, outcome
from hasfl.reporting.store import MODEL, RunFolder
from hasfl.runner.fingerprint import fingerprint
from hasfl.runner.scenarios import simulation_of
from hasfl.runner.simulation import Simulation
from hasfl.runs.environment import environment
from hasfl.runs.interruption import Interruption
from hasfl.runs.request import RunRequest
from hasfl.runs.resuming import MARKS, back_to_checkpoint, require_same
from hasfl.runs.saved_model import MODEL_INPUT
from hasfl.training.checkpoint import saved
from hasfl.training.loop import Training

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

    def remarks(self, sentence: str) -> None:
        """Something that the user should know about the run before it goes on."""

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
    with naming(str(request.scenario_file)):
        simulation.training.begin()  # before the folder is made: a failing first plan leaves none behind
    with RunFolder.create(
        request.path,
        scenario_text=request.text,
        settings=request.settings(),
        environment=environment(),
    ) as folder:
        return _train(folder, request, simulation, fingerprint(simulation), watcher)


def _go_on(request: RunRequest, watcher: Watcher) -> Outcome:
    """Continue a run from its last checkpoint, unless it is finished and nothing else is asked for."""
    with RunFolder.open(request.path) as folder:
        other_goal = require_same(folder, request)
        if folder.finished and not other_goal:
            folder.require_whole()
            watcher.found(request)
            return outcome(request.strategy, folder.records())
        folder.lock()
        simulation = _prepared(request, watcher)
        marks = fingerprint(simulation)
        kept = back_to_checkpoint(folder, simulation, marks, other_goal=other_goal)
        simulation.training.begin()
        _say_what_is_repeated(folder, len(kept), watcher)
        folder.go_on_with(request.text, request.settings())
        folder.rewind(len(kept))
        return _train(folder, request, simulation, marks, watcher, kept[-1] if kept else None)


def _say_what_is_repeated(folder: RunFolder, kept: int, watcher: Watcher) -> None:
    """Rounds after the last checkpoint are trained again, with the same result."""
    again = len(folder.records()) - kept
    if folder.lost_its_model:
        watcher.remarks(f"{folder.path} has no {MODEL} any more, so the last rounds are trained again")
    if again:
        rounds = "1 recorded round is" if again == 1 else f"{again} recorded rounds are"
        watcher.remarks(f"{rounds} trained again, because the last checkpoint is of round {kept}")


def _prepared(request: RunRequest, watcher: Watcher) -> Simulation:
    scenario = request.scenario()
    with naming(str(request.scenario_file)):
        return simulation_of(scenario, folder=request.folder, tell=watcher.prepares)


def _train(
    folder: RunFolder,
    request: RunRequest,
    simulation: Simulation,
    marks: Mapping[str, str],
    watcher: Watcher,
    last: RoundRecord | None = None,
) -> Outcome:
    """Train from a whole round on to the end. The marks are those of data and model.

    There is always a checkpoint to go on from: the first one is from before the first round. None is saved
    after the round that ends training. So a run that gets a higher budget trains that round again, as a run
    does that had this budget from the beginning.
    """
    training, seconds = simulation.training, request.scenario().training.checkpoint_seconds
    began = time.monotonic() - folder.elapsed_seconds()
    with Interruption() as interruption:
        if last is None:
            _save_checkpoint(folder, training, marks)
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
                _save_checkpoint(folder, training, marks)
                last_checkpoint = time.monotonic()
                interruption.act(STOPPED)
        reached = _finish(folder, request, simulation)
        watcher.finished(reached)
        interruption.act(STOPPED_AT_THE_END)
    return reached


def _save_checkpoint(folder: RunFolder, training: Training, marks: Mapping[str, str]) -> None:
    arrays, values = saved(training)
    folder.save_checkpoint(arrays, {**values, MARKS: marks})


def _timing(record: RoundRecord, began: float) -> Mapping[str, Any]:
    elapsed, memory = round(time.monotonic() - began, 6), held_memory(torch.device("cpu"))
    return {"round": record.round, "elapsed_seconds": elapsed, "peak_memory_bytes": memory}


def _finish(folder: RunFolder, request: RunRequest, simulation: Simulation) -> Outcome:
    reached = outcome(request.strategy, folder.records())
    folder.save_model({name: tensor.cpu().numpy() for name, tensor in simulation.model().items()})
    result = as_result(reached, simulation.training.goal)
    folder.save_result(result | {MODEL_INPUT: _model_input(simulation.engine.job)})
    return reached


def _model_input(job: Job) -> Mapping[str, Any]:
    """What `export` must know of the data: the form of a sample, and how many outputs it asks for."""
    with torch.inference_mode():
        outputs = job.model.eval()(job.data.x[:1])
    shape, dtype = job.data.x.shape[1:], str(job.data.x.dtype).removeprefix("torch.")
    return {"shape": list(shape), "type": dtype, "outputs": outputs.shape[-1]}
