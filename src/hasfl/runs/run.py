"""A training that is kept in a folder: started, checkpointed, interrupted, resumed, finished."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from hasfl.documents.document import parse_toml, read_text
from hasfl.documents.scenario import Scenario
from hasfl.engines.memory import held_memory
from hasfl.errors import InputError
from hasfl.record import RoundRecord
from hasfl.reporting.metrics import Outcome, outcome
from hasfl.reporting.store import RunFolder
from hasfl.runs.environment import environment
from hasfl.runs.interruption import Interruption
from hasfl.runner.scenarios import simulation_of
from hasfl.runner.simulation import Simulation
from hasfl.strategies.catalogue import strategy
from hasfl.training.checkpoint import restore, saved


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """Which strategy and seed of a scenario to train, and the folder to keep the run in."""

    scenario_file: Path
    text: str  # of the scenario file when the request was made
    path: Path  # of the run's folder
    strategy: str
    seed: int
    device: str | None = None  # instead of the scenario's

    @classmethod
    def of(
        cls,
        scenario_file: Path,
        runs: Path,
        *,
        strategy_name: str,
        seed: int,
        name: str | None = None,
        device: str | None = None,
    ) -> "RunRequest":
        """A request for a folder under `runs`, named `name` or after scenario, strategy and seed."""
        plain = strategy(strategy_name).name
        own = f"{scenario_file.stem}-{plain}-seed{seed}".replace(":", "-").replace(",", "-")
        return cls(
            scenario_file=scenario_file,
            text=read_text(str(scenario_file)),
            path=runs / (name or own),
            strategy=plain,
            seed=seed,
            device=device,
        )

    def scenario(self) -> Scenario:
        """The scenario with this strategy and seed."""
        scenario = parse_toml(self.text, Scenario, str(self.scenario_file))
        chosen: dict[str, Any] = {"strategy": self.strategy}
        if self.device is not None:
            chosen["device"] = self.device
        training = replace(scenario.training, **chosen)
        return scenario.model_copy(update={"training": training, "seed": self.seed})

    def settings(self) -> Mapping[str, Any]:
        """The choices that are not in the scenario file."""
        return {"strategy": self.strategy, "seed": self.seed, "device": self.device}


class Watcher(Protocol):
    """Is told about trainings while they run."""

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
    scenario = request.scenario()
    if not (resume and request.path.exists()):
        simulation = simulation_of(scenario, folder=request.scenario_file.parent)
        simulation.training.begin()  # before the folder is made: a failing first plan leaves none behind
        with RunFolder.create(
            request.path,
            scenario_text=request.text,
            settings=request.settings(),
            environment=environment(),
        ) as folder:
            watcher.started(request, simulation, None)
            return _train(folder, request, scenario, simulation, watcher)
    with RunFolder.open(request.path) as folder:
        _require_same(folder, request)
        if folder.finished:
            watcher.found(request)
            return outcome(request.strategy, folder.records())
        folder.lock()
        simulation = simulation_of(scenario, folder=request.scenario_file.parent)
        watcher.started(request, simulation, _back_to_checkpoint(folder, simulation))
        return _train(folder, request, scenario, simulation, watcher)


def _require_same(folder: RunFolder, request: RunRequest) -> None:
    """Refuse to continue a run with another scenario, strategy or seed."""
    if folder.scenario_text() != request.text or folder.settings() != request.settings():
        raise InputError(
            f"{folder.path} was begun with another scenario, strategy or seed than is asked for now: "
            "restore the scenario file from its scenario.toml, or choose another place with --out"
        )


def _back_to_checkpoint(folder: RunFolder, simulation: Simulation) -> RoundRecord | None:
    """Forget the rounds after the last checkpoint, which are trained again; returns the last round kept."""
    checkpoint = folder.load_checkpoint()
    if checkpoint is None:
        folder.rewind(0)
        return None
    arrays, values = checkpoint
    try:
        records = folder.records()[: values["rounds"]]
        restore(simulation.training, arrays, values, records)
    except (InputError, IndexError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"the checkpoint of {folder.path} is not one of this training ({error}): restore it from a copy, "
            "or remove the run and begin it anew"
        ) from None
    folder.rewind(values["rounds"])
    return records[-1] if records else None


def _train(
    folder: RunFolder, request: RunRequest, scenario: Scenario, simulation: Simulation, watcher: Watcher
) -> Outcome:
    training, began = simulation.training, time.monotonic()
    last_checkpoint = began
    with Interruption() as interruption:
        for record in training.rounds():
            folder.append(record)
            folder.append_timing(_timing(record, began))
            watcher.recorded(record)
            settled = training.progress is not None and record.round == training.progress.order.round - 1
            late = time.monotonic() - last_checkpoint >= scenario.training.checkpoint_seconds
            if settled and (interruption.wanted or (record.aggregated and late)):
                folder.save_checkpoint(*saved(training))
                last_checkpoint = time.monotonic()
                interruption.act()
    reached = _finish(folder, request, simulation)
    watcher.finished(reached)
    return reached


def _timing(record: RoundRecord, began: float) -> Mapping[str, Any]:
    elapsed, memory = round(time.monotonic() - began, 6), held_memory(torch.device("cpu"))
    return {"round": record.round, "elapsed_seconds": elapsed, "peak_memory_bytes": memory}


def _finish(folder: RunFolder, request: RunRequest, simulation: Simulation) -> Outcome:
    reached = outcome(request.strategy, folder.records())
    folder.save_model({name: tensor.cpu().numpy() for name, tensor in simulation.model().items()})
    folder.save_result(asdict(reached))
    return reached
