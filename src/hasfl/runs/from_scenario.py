"""From a scenario file to a simulation that is ready to run."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from hasfl.arrays import IntN
from hasfl.callables import call, find
from hasfl.data.dataset import Dataset
from hasfl.data.npz_files import shares_of
from hasfl.data.partition import partition
from hasfl.data.sources import load_dataset
from hasfl.errors import InputError, naming
from hasfl.fleet import Fleet
from hasfl.learning.aggregation import aggregation
from hasfl.learning.local_term import local_term
from hasfl.learning.optimizers import optimizer
from hasfl.models.layered_model import LayeredModel
from hasfl.models.networks import chained, plain_network
from hasfl.paths import expanded
from hasfl.planning.strategies.catalogue import strategy
from hasfl.runs.objectives import objective
from hasfl.runs.run_constants import known_constants
from hasfl.runs.scenario import Scenario
from hasfl.runs.simulation import Simulation, simulation
from hasfl.runs.trace_file import read_trace
from hasfl.seeds import Seeds
from hasfl.settings import Settings
from hasfl.world import (
    Absences,
    AlwaysThere,
    Fixed,
    RandomDropout,
    RandomWalk,
    Rates,
    Redrawn,
    Schedule,
    World,
)

DEALING = ("partition", "alpha", "shards_per_device", "samples")  # keys of [data] that say who gets what
TRAIN_AND_TEST = 2  # the torch datasets that a user's callable may return


def simulation_of(
    scenario: Scenario, *, folder: Path, tell: Callable[[str], None] = lambda step: None
) -> Simulation:
    """The training that a scenario describes; paths and callables in it are searched in its folder first.

    `tell` is called before each step that may take a while, with a phrase such as "loading digits".
    """
    fleet = scenario.draw()
    tell(f"loading {scenario.data_name}")
    data, shares = shared_data(scenario, fleet.names, folder=folder)
    tell(f"cutting {scenario.model_name}")
    model = model_of(scenario, data, folder=folder)
    _require_outputs(scenario, data)
    settings = settings_of(scenario, folder=folder)
    if settings.known_constants is not None and len(settings.known_constants) != len(model):
        raise InputError(
            f"[constants] has {len(settings.known_constants)} layers but {scenario.model_name} has "
            f"{len(model)}: give one entry per layer, or leave [constants] out to have them estimated"
        )
    world = world_of(scenario, fleet, folder=folder)
    return simulation(model, data, world, settings, shares=shares)


def settings_of(scenario: Scenario, *, folder: Path) -> Settings:
    """How the scenario says to train, with the user's own objects in place of their names."""
    named = scenario.training
    with naming("training.strategy"):
        chosen = strategy(named.strategy, folder)
    with naming("training.optimizer"):
        steps = optimizer(named.optimizer, folder)
    with naming("training.loss"):
        loss = objective(named.loss, "loss", folder)
    with naming("training.metric"):
        metric = objective(named.metric, "metric", folder)
    with naming("training.aggregation"):
        rule = aggregation(named.aggregation, folder)
    with naming("training.local_term"):
        term = local_term(named.local_term, folder)
    known = known_constants(scenario, folder=folder)
    return replace(
        scenario.settings(),
        strategy=chosen,
        known_constants=known,
        rounds_known=scenario.constants is None or scenario.constants.run is None,
        optimizer=steps,
        loss=loss,
        metric=metric,
        aggregation=rule,
        local_term=term,
    )


def _require_outputs(scenario: Scenario, data: Dataset) -> None:
    """Refuse a number of outputs that the usual loss or metric cannot use."""
    asked, training = scenario.model.classes, scenario.training
    if asked is None or None not in (training.loss, training.metric):
        return
    if asked < data.outputs or (not data.classes and asked != data.outputs):
        least = "at least " if data.classes else ""
        raise InputError(
            f"model.classes must be {least}{data.outputs}, the number of outputs that {data.name} needs, got "
            f"{asked}: leave it out"
        )


def load_data(scenario: Scenario, *, folder: Path) -> Dataset:
    """The data of a scenario; files are searched in its folder first, then in the data folder."""
    name, section = scenario.data_name, scenario.data
    if ":" in name:
        if section.columns is not None:
            raise InputError(
                f"data.columns has no effect on {name}, which returns finished data: leave it out"
            )
        return own_data(name, folder)
    place = None if section.folder is None else folder / expanded(section.folder)
    return load_dataset(name, folder=place, beside=folder, columns=section.columns)


def shared_data(
    scenario: Scenario, devices: Sequence[str], *, folder: Path
) -> tuple[Dataset, tuple[IntN, ...]]:
    """The data of a scenario, and which samples each of the devices holds."""
    data, section = load_data(scenario, folder=folder), scenario.data
    if data.shares is not None:
        if useless := [key for key in DEALING if key in section.model_fields_set]:
            raise InputError(
                f"data.{useless[0]} has no effect on {data.name}, whose samples belong to devices already: "
                "leave it out"
            )
        return data, shares_of(data, devices)
    with naming(f"[data] of {data.name}"):
        shares = partition(
            data.y_train.numpy(),
            len(devices),
            Seeds(scenario.seed),
            kind=section.partition,
            shards_per_device=section.shards_per_device,
            alpha=section.alpha,
            samples=section.samples,
        )
    return data, shares


def own_data(name: str, folder: Path) -> Dataset:
    """The data that a user's callable returns: a Dataset, or torch's datasets for training and testing.

    What the callable draws from torch's generator is the same in every run, whatever the seed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        function = find(name, "data", folder)  # importing its module may draw random numbers too
        if not callable(function):
            raise InputError(f"data {name!r} must be a function or a class, got {type(function).__name__}")
        torch.manual_seed(0)
        made: object = call(function, name, "data", folder)
    if isinstance(made, Dataset):
        return made
    if isinstance(made, tuple | list) and len(made) == TRAIN_AND_TEST:
        with naming(f"data {name!r}"):
            return Dataset.of_torch(name, *made)
    raise InputError(
        f"{name} must return a hasfl.Dataset, or a pair of torch datasets for training and testing, got a "
        f"{type(made).__name__}"
    )


def model_of(scenario: Scenario, data: Dataset, *, folder: Path) -> LayeredModel:
    """The model of a scenario, for its data, cut into layers; its weights depend on the seed alone."""
    return chained(*module_of(scenario, data.x_train[:1], data.outputs, folder=folder))


def module_of(scenario: Scenario, samples: Tensor, outputs: int, *, folder: Path) -> tuple[nn.Module, Tensor]:
    """The model of a scenario before it is cut, and a batch of the samples that it takes.

    `samples` is a batch of the data, of which only shape and type count; `outputs` is how many numbers the
    data ask for.
    """
    section, name = scenario.model, scenario.model_name
    if section.profile is not None:
        raise InputError("model.profile gives a model's costs, but training needs the model: set model.name")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(Seeds(scenario.seed).stream("weights").integers(2**63)))
        return plain_network(
            name,
            classes=section.classes if ":" in name else section.classes or outputs,
            norm=section.norm,
            input_shape=None if section.input is None else tuple(section.input),
            tokens=section.tokens,
            samples=samples,
            folder=folder,
        )


def world_of(scenario: Scenario, fleet: Fleet, *, folder: Path) -> World:
    """How the fleet of a scenario changes over a run."""
    return World(
        fleet=fleet,
        seeds=Seeds(scenario.seed),
        interval=scenario.training.interval,
        rates=_rates(scenario, fleet, folder),
        absences=_absences(scenario, fleet),
        participation=scenario.training.participation,
    )


def _rates(scenario: Scenario, fleet: Fleet, folder: Path) -> Rates:
    section = scenario.world
    match section.rates:
        case "redrawn":
            return Redrawn(replace(scenario.fleet.ranges(), devices=len(fleet)))
        case "walk":
            return RandomWalk(section.step, section.bound)
        case "trace":
            return read_trace(folder / expanded(section.trace or ""), fleet)
        case _:
            return Fixed()


def _absences(scenario: Scenario, fleet: Fleet) -> Absences:
    section = scenario.world
    if section.leave is not None:
        return RandomDropout(section.leave, section.come_back)
    if not scenario.absence:
        return AlwaysThere()
    index = {name: i for i, name in enumerate(fleet.names)}
    for absence in scenario.absence:
        if absence.device not in index:
            raise InputError(f"absence of device {absence.device!r}: the fleet has no device of that name")
    schedule = Schedule(
        tuple((index[each.device], each.first_round, each.last_round) for each in scenario.absence)
    )
    _require_somebody(schedule, scenario, len(fleet))
    return schedule


def _require_somebody(schedule: Schedule, scenario: Scenario, devices: int) -> None:
    """Refuse a schedule that leaves nobody in a round to come. It is enough to look where a device leaves."""
    rounds = scenario.stop.rounds or 0
    for absence in scenario.absence:
        if absence.first_round <= rounds:
            schedule.present(absence.first_round, devices, Seeds(scenario.seed), scenario.training.interval)
