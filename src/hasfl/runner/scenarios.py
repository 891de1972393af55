"""From a scenario file to a simulation that is ready to run."""

from dataclasses import replace
from pathlib import Path

import torch

from hasfl.arrays import IntN
from hasfl.data import Dataset, load_dataset, partition
from hasfl.documents.document import STANDARD_INPUT, read_toml
from hasfl.documents.scenario import Scenario
from hasfl.documents.trace_file import read_trace
from hasfl.errors import InputError
from hasfl.fleet import Fleet
from hasfl.networks import LayeredModel, network
from hasfl.networks.catalogue import ANY_SHAPE
from hasfl.runner.simulation import Simulation, simulation
from hasfl.seeds import Seeds
from hasfl.world import AlwaysThere, Fixed, RandomDropout, RandomWalk, Redrawn, Schedule, World
from hasfl.world.absences import Absences
from hasfl.world.rates import Rates


def read_scenario(path: Path) -> Scenario:
    """Read a scenario file."""
    if str(path) == STANDARD_INPUT:
        raise InputError(
            "training needs a scenario in a file, since its run keeps a copy; got standard input"
        )
    return read_toml(str(path), Scenario)


def simulation_of(scenario: Scenario, *, folder: Path) -> Simulation:
    """The training that a scenario describes; paths in it are relative to its folder."""
    fleet = scenario.draw()
    data, shares = shared_data(scenario, len(fleet), folder=folder)
    model = model_of(scenario, data)
    settings = scenario.settings()
    if settings.known_constants is not None and len(settings.known_constants) != len(model):
        raise InputError(
            f"[constants] has {len(settings.known_constants)} layers but {scenario.model_name} has "
            f"{len(model)}: give one entry per layer, or leave [constants] out to have them estimated"
        )
    world = world_of(scenario, fleet, folder=folder)
    return simulation(model, data, world, settings, shares=shares)


def load_data(scenario: Scenario, *, folder: Path) -> Dataset:
    """The data of a scenario; a path in it is relative to its folder."""
    place = None if scenario.data.folder is None else folder / Path(scenario.data.folder).expanduser()
    return load_dataset(scenario.data_name, folder=place)


def shared_data(scenario: Scenario, devices: int, *, folder: Path) -> tuple[Dataset, tuple[IntN, ...]]:
    """The data of a scenario, and which samples each device holds."""
    data, section = load_data(scenario, folder=folder), scenario.data
    shares = partition(
        data.y_train.numpy(),
        devices,
        Seeds(scenario.seed),
        kind=section.partition,
        shards_per_device=section.shards_per_device,
        alpha=section.alpha,
        samples=section.samples,
    )
    return data, shares


def model_of(scenario: Scenario, data: Dataset) -> LayeredModel:
    """The model of a scenario, for its data, with weights that depend on the seed alone."""
    section, name = scenario.model, scenario.model_name
    if section.profile is not None:
        raise InputError("model.profile gives a model's costs, but training needs the model: set model.name")
    own = ":" in name
    shape = tuple(section.input) if section.input else data.sample_shape if own or name in ANY_SHAPE else None
    classes = section.classes if own else section.classes or data.classes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(Seeds(scenario.seed).stream("weights").integers(2**63)))
        return network(name, classes=classes, norm=section.norm, input_shape=shape)


def world_of(scenario: Scenario, fleet: Fleet, *, folder: Path) -> World:
    """How the fleet of a scenario changes over a run."""
    return World(
        fleet=fleet,
        seeds=Seeds(scenario.seed),
        interval=scenario.training.interval,
        rates=_rates(scenario, fleet, folder),
        absences=_absences(scenario, fleet),
    )


def _rates(scenario: Scenario, fleet: Fleet, folder: Path) -> Rates:
    section = scenario.world
    match section.rates:
        case "redrawn":
            return Redrawn(replace(scenario.fleet.ranges(), devices=len(fleet)))
        case "walk":
            return RandomWalk(section.step, section.bound)
        case "trace":
            return read_trace(folder / Path(section.trace or "").expanduser(), fleet)
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
    return Schedule(
        tuple((index[each.device], each.first_round, each.last_round) for each in scenario.absence)
    )
