"""Makes a `Task`, the complete and checked description of a training, from a Python call or a scenario."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hasfl.arrays import SHOWN, IntN
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
from hasfl.models.cutting import layered
from hasfl.models.layered_model import LayeredModel
from hasfl.models.networks import chained, plain_network
from hasfl.paths import expanded
from hasfl.planning.strategies.catalogue import strategy
from hasfl.runs.objectives import objective
from hasfl.runs.run_constants import known_constants
from hasfl.runs.scenario import Scenario
from hasfl.runs.trace_file import read_trace
from hasfl.seeds import Seeds
from hasfl.settings import Descent, Machine, Planning, Serving, Settings
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """Everything that decides how a training goes: model, data, world and settings, already checked."""

    model: LayeredModel
    data: Dataset
    shares: Sequence[IntN]  # the indices of the samples that each device holds
    world: World
    settings: Settings

    @classmethod
    def of(
        cls,
        model: nn.Module,
        data: Dataset,
        fleet: Fleet | World,
        settings: Settings,
        shares: Sequence[IntN] | None = None,
    ) -> "Task":
        """Make a task from a model, data, a fleet and settings.

        A plain module is cut into layers, and a fleet becomes a world that does not change. Without `shares`,
        the data set tells which samples each device holds. If it does not, samples are dealt out at random.
        """
        _require_dataset(data)
        world = _world(fleet, settings)
        chain = model if isinstance(model, LayeredModel) else layered(model, data.x_train[:2])
        _require_fits(chain, data)
        held = _shares(shares, data, world.fleet.names, settings)
        return cls(model=chain, data=data, shares=held, world=world, settings=settings)


# ── from a Python call ───────────────────────────────────────────────────────────────────────────────────


def settings_from(given: Mapping[str, Any]) -> Settings:
    """Make settings from keywords; the message for an unknown name suggests a known one."""
    known = [field.name for field in fields(Settings)]
    for name in given:
        if name not in known:
            raise InputError(f"{name} is not a setting of its own: {_hint(name, known)}")
    return Settings(**given)


def _hint(name: str, known: Sequence[str]) -> str:
    """Advice for an unknown name: the group that has a setting of this name, or the most similar name."""
    for group in (Descent, Planning, Serving, Machine):
        if name in {field.name for field in fields(group)}:
            return f"give it in a group, as {group.__name__.lower()}={group.__name__}({name}=…)"
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"


def _require_dataset(data: object) -> None:
    if not isinstance(data, Dataset):
        hint = "Dataset.of_torch" if isinstance(data, torch.utils.data.Dataset) else "Dataset.of_arrays"
        raise InputError(
            f"data must be a hasfl.Dataset with samples to train on and to test on, got a "
            f"{type(data).__name__}: make one with {hint}"
        )


def _world(fleet: Fleet | World, settings: Settings) -> World:
    """The world of a training; a fleet becomes a world that does not change."""
    if isinstance(fleet, Fleet):
        return World(
            fleet=fleet,
            seeds=Seeds(settings.seed),
            interval=settings.interval,
            participation=settings.participation,
        )
    if fleet.interval != settings.interval:
        raise InputError(
            f"the world has intervals of {fleet.interval} rounds, the training of {settings.interval}: "
            "make them the same"
        )
    if fleet.participation not in (1, settings.participation):
        raise InputError(
            f"the world has participation {fleet.participation:g}, the training {settings.participation:g}: "
            "make them the same, or leave it out of the world"
        )
    return replace(fleet, participation=settings.participation)


def _require_fits(model: LayeredModel, data: Dataset) -> None:
    expected = _in_words(model.example_input.shape[1:], model.example_input.dtype)
    samples = _in_words(data.sample_shape, data.x_train.dtype)
    if expected != samples:
        raise InputError(
            f"the model takes samples of {expected}, but those of {data.name} are {samples}: choose a model "
            "for this data, or other data"
        )


def _in_words(shape: Sequence[int], dtype: torch.dtype) -> str:
    return f"{'x'.join(map(str, shape))} in {str(dtype).removeprefix('torch.')}"


def _shares(
    shares: Sequence[IntN] | None, data: Dataset, devices: Sequence[str], settings: Settings
) -> Sequence[IntN]:
    """The samples that each device holds: `shares`, else those of the data set, else dealt out at random."""
    if shares is None and data.shares is None:
        return partition(data.y_train.numpy(), len(devices), Seeds(settings.seed))
    if shares is None:
        shares = shares_of(data, devices)
    if len(shares) != len(devices):
        raise InputError(
            f"there are shares for {len(shares)} devices but the fleet has {len(devices)}: give one for each"
        )
    for i, share in enumerate(shares):
        indices = np.asarray(share)
        if not indices.size:
            raise InputError(
                f"device {i} has no samples, but every device needs one: give shares[{i}] a sample"
            )
        if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
            raise InputError(f"shares[{i}] must be a list of sample indices, got {str(share)[:SHOWN]}")
        if indices.min() < 0 or indices.max() >= len(data.y_train):
            raise InputError(f"shares[{i}] must lie from 0 to {len(data.y_train) - 1}, the last sample")
    return shares


# ── from a scenario ──────────────────────────────────────────────────────────────────────────────────────


DEALING = ("partition", "alpha", "shards_per_device", "samples")  # keys of [data] on dealing out samples
TRAIN_AND_TEST = 2  # number of torch datasets that a user's callable may return


def task_of(scenario: Scenario, *, folder: Path, tell: Callable[[str], None] = lambda step: None) -> Task:
    """The task that a scenario describes; its paths and callables are searched in `folder` first.

    `tell` is called before each slow step, with a phrase such as "loading digits".
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
    return Task.of(model, data, world_of(scenario, fleet, folder=folder), settings, shares)


def settings_of(scenario: Scenario, *, folder: Path) -> Settings:
    """The settings of a scenario, with the objects that names such as "hasfl" or "module:callable" mean."""
    finders: dict[str, Callable[[Any, Path], Any]] = {
        "strategy": strategy,
        "optimizer": optimizer,
        "loss": lambda name, folder: objective(name, "loss", folder),
        "metric": lambda name, folder: objective(name, "metric", folder),
        "aggregation": aggregation,
        "local_term": local_term,
    }
    objects = {}
    for key, find_object in finders.items():
        with naming(f"training.{key}"):
            objects[key] = find_object(getattr(scenario.training, key), folder)
    return scenario.settings(
        **objects,
        known_constants=known_constants(scenario, folder=folder),
        rounds_known=scenario.constants is None or scenario.constants.run is None,
    )


def _require_outputs(scenario: Scenario, data: Dataset) -> None:
    """Raise InputError if the usual loss or metric cannot use the number of outputs in `model.classes`."""
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
    """Load the data set of a scenario; files are searched in `folder` first, then in the data folder."""
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
    """Load the data set of a scenario; also returns the indices of the samples that each device holds."""
    data, section = load_data(scenario, folder=folder), scenario.data
    if data.shares is not None:
        if useless := [key for key in DEALING if key in section.model_fields_set]:
            raise InputError(
                f"data.{useless[0]} has no effect on {data.name}, whose samples belong to devices already: "
                "leave it out"
            )
        return data, shares_of(data, devices)
    with naming(f"[data] of {data.name}"):
        return data, scenario.deal_out(data.y_train.numpy(), len(devices))


def own_data(name: str, folder: Path) -> Dataset:
    """The data set that a user's callable returns, as a Dataset or as two torch datasets, to train and test.

    Random numbers that the callable draws from torch's generator are the same in every run, with any seed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        function = find(name, "data", folder)  # importing the module may draw random numbers too
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
    """The model of a scenario for a data set, cut into layers; its weights depend on the seed alone."""
    return chained(*module_of(scenario, data.x_train[:1], data.outputs, folder=folder))


def module_of(scenario: Scenario, samples: Tensor, outputs: int, *, folder: Path) -> tuple[nn.Module, Tensor]:
    """The model of a scenario before it is cut, and a batch of samples as an example input.

    `samples` is a batch of the data set; only its shape and type count. `outputs` is the number of outputs
    that the labels need.
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
    """The world of a scenario: how its fleet changes over a run."""
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
    # A round without a device is refused now. Devices get fewer only in the rounds in which a device leaves.
    for absence in scenario.absence:
        if absence.first_round <= (scenario.stop.rounds or 0):
            schedule.present(
                absence.first_round, len(fleet), Seeds(scenario.seed), scenario.training.interval
            )
    return schedule
