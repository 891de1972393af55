"""From a model, data, a fleet and settings to everything that takes part in a training."""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from torch import nn

from hasfl.arrays import SHOWN, IntN
from hasfl.constants import BoundConstants, MeasuredConstants
from hasfl.data import Dataset, partition
from hasfl.engines.job import Job, cross_entropy
from hasfl.engines.local import LocalEngine
from hasfl.engines.reference import ReferenceEngine
from hasfl.engines.simulated import SimulatedEngine
from hasfl.errors import InputError
from hasfl.fleet import Fleet
from hasfl.networks import LayeredModel, layered
from hasfl.plan import Order, Plan
from hasfl.profile import Layer, Profile
from hasfl.profiling.costs import count_layers
from hasfl.readings.probe import Probe
from hasfl.readings.sources import (
    ConstantsSource,
    EstimatedConstants,
    FixedConstants,
    TrackedConstants,
    early,
)
from hasfl.seeds import Seeds
from hasfl.settings import Machine, Planning, Serving, Settings
from hasfl.state.optimizers import optimizer
from hasfl.state.training_data import TrainingData
from hasfl.strategies.catalogue import strategy
from hasfl.strategies.decider import StrategyDecider
from hasfl.strategies.strategy import Strategy
from hasfl.training.clock import ModelledClock
from hasfl.training.loop import Training
from hasfl.training.observer import WorldObserver
from hasfl.world import World

ENGINES: dict[str, type[LocalEngine]] = {"simulated": SimulatedEngine, "reference": ReferenceEngine}
RAW_BITS = {
    torch.float32: 8.0,
    torch.int64: 16.0,
}  # of one number of a raw sample: a pixel is a byte, a token two
FIRST_BATCH = 16  # the batch size that the paper's constants are estimated for before there is a plan


def settings_from(given: Mapping[str, Any]) -> Settings:
    """Settings by name; an unknown name is refused with the nearest one that is known."""
    known = [field.name for field in fields(Settings)]
    for name in given:
        if name not in known:
            raise InputError(f"{name} is not a setting of its own: {_hint(name, known)}")
    return Settings(**given)


def _hint(name: str, known: Sequence[str]) -> str:
    """The group that a setting belongs to, or the nearest name that is known."""
    for group in (Planning, Serving, Machine):
        if name in {field.name for field in fields(group)}:
            return f"give it in a group, as {group.__name__.lower()}={group.__name__}({name}=…)"
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"


def assemble(
    model: nn.Module, data: Dataset, fleet: Fleet | World, settings: Settings, shares: Sequence[IntN] | None
) -> tuple[Training, LocalEngine]:
    """A training that is ready to run, and its engine; the model is copied."""
    _require_gpu(settings)
    world = _world(fleet, settings)
    chain = model if isinstance(model, LayeredModel) else layered(model, data.x_train[:2])
    _require_fits(chain, data)
    layers = count_layers(chain)
    _require_outputs(layers, data, settings)
    job = _job(deepcopy(chain), data, _shares(shares, data, len(world.fleet), settings), settings)
    engine = ENGINES[settings.machine.engine](job)
    return _training(engine, world, Profile.of(layers, optimizer=settings.optimizer), settings), engine


def _require_gpu(settings: Settings) -> None:
    if settings.machine.device == "cuda" and not torch.cuda.is_available():
        raise InputError("device is cuda, but torch finds no GPU here: use cpu, or a build of torch for it")


def _world(fleet: Fleet | World, settings: Settings) -> World:
    """A fleet alone is a world that does not change."""
    if isinstance(fleet, Fleet):
        return World(fleet=fleet, seeds=Seeds(settings.seed), interval=settings.interval)
    if fleet.interval != settings.interval:
        raise InputError(
            f"the world has intervals of {fleet.interval} rounds, the training of {settings.interval}: "
            "make them the same"
        )
    return fleet


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


def _require_outputs(layers: Sequence[Layer], data: Dataset, settings: Settings) -> None:
    outputs = layers[-1].output_shape
    if settings.sample_loss is None and (not outputs or outputs[0] < data.classes):
        raise InputError(
            f"the model must have an output for each of the {data.classes} classes of {data.name}, but its "
            f"last layer gives {'x'.join(map(str, outputs)) or 'one number'}: leave out model.classes, or "
            "choose another model"
        )


def _shares(shares: Sequence[IntN] | None, data: Dataset, devices: int, settings: Settings) -> Sequence[IntN]:
    """Which samples each device holds: as given, or dealt out at random."""
    if shares is None:
        return partition(data.y_train.numpy(), devices, Seeds(settings.seed))
    if len(shares) != devices:
        raise InputError(
            f"there are shares for {len(shares)} devices but the fleet has {devices}: give one for each"
        )
    for i, share in enumerate(shares):
        indices = np.asarray(share)
        if indices.ndim != 1 or not indices.size or not np.issubdtype(indices.dtype, np.integer):
            raise InputError(f"shares[{i}] must be a list of sample indices, got {str(share)[:SHOWN]}")
        if indices.min() < 0 or indices.max() >= len(data.y_train):
            raise InputError(f"shares[{i}] must lie from 0 to {len(data.y_train) - 1}, the last sample")
    return shares


def _job(model: LayeredModel, data: Dataset, shares: Sequence[IntN], settings: Settings) -> Job:
    device = settings.machine.device
    x, y, x_test, y_test = (
        tensor.to(device) for tensor in (data.x_train, data.y_train, data.x_test, data.y_test)
    )
    samples = TrainingData.of(
        x, y, shares, Seeds(settings.seed), augment=settings.augment, held_out=settings.held_out_share
    )
    if settings.goal.judges_model and samples.held_out is None:
        raise InputError(
            "accuracy, loss or convergence shall end training, but no device has two samples, one of them to "
            "hold out: end training after a number of rounds, samples or seconds"
        )
    return Job(
        model=model.to(device),
        data=samples,
        test=(x_test, y_test),
        optimizer=optimizer(settings.optimizer, settings.learning_rate),
        sample_loss=settings.sample_loss or cross_entropy,
        half=settings.machine.precision == "bfloat16",
        serving=settings.serving,
    )


def _training(engine: LocalEngine, world: World, profile: Profile, settings: Settings) -> Training:
    chosen, data = strategy(settings.strategy), engine.job.data
    on_cpu = settings.machine.device == "cpu"
    return Training(
        engine=engine,
        decider=StrategyDecider(chosen, Seeds(settings.seed), _last_new_plan(settings)),
        observer=_observer(engine, chosen, world, profile, settings),
        clock=ModelledClock(
            profile=profile,
            paradigm=chosen.paradigm,
            sample_bits=RAW_BITS[data.x.dtype] * data.x[0].numel(),
            keeps_mean=settings.serving.averages,
        ),
        goal=settings.goal,
        interval=settings.interval,
        samples=data.sizes,
        evaluate_every=settings.evaluate_every or settings.interval,
        report_every=settings.machine.report_every or (1 if on_cpu else settings.interval),
    )


def _last_new_plan(settings: Settings) -> int | None:
    """The last round that may begin with a new plan, where plans stay: the one after the early readings."""
    return early(settings.interval)[-1] * settings.interval + 1 if settings.planning.plans == "stay" else None


def _observer(
    engine: LocalEngine, chosen: Strategy, world: World, profile: Profile, settings: Settings
) -> WorldObserver:
    job = engine.job
    observer = WorldObserver(
        probe=Probe(
            layers=engine.layers,
            state=engine.state,
            data=job.data,
            optimizer=job.optimizer,
            sample_loss=job.sample_loss,
        ),
        world=world,
        paradigm=chosen.paradigm,
        profile=profile,
        samples=job.data.sizes,
        learning_rate=settings.learning_rate,
        max_batch=settings.max_batch,
        target=settings.planning.target,
        source=_source(chosen, world, profile, settings),
    )
    reads = not isinstance(observer.source, FixedConstants)
    if reads and (observer.samples[world.present(1)] < 2).all():
        raise InputError(
            f"{chosen.name} reads its constants from training, which no device can do with one sample: give "
            "[constants], or more samples"
        )
    observer.learn(_before_the_first_plan(world), math.nan)
    return observer


def _source(chosen: Strategy, world: World, profile: Profile, settings: Settings) -> ConstantsSource:
    """Where the constants come from. Algorithm 2 needs the paper's."""
    if settings.known_constants is not None:
        return FixedConstants(settings.known_constants)
    if not chosen.uses_constants:
        kind = BoundConstants if settings.kind_of_constants == "paper" else MeasuredConstants
        return FixedConstants(kind.unknown(len(profile)))
    stay = settings.planning.plans == "stay"
    if chosen.of_the_paper or settings.kind_of_constants == "paper":
        return EstimatedConstants(settings.interval, stay)
    return TrackedConstants.guessed(profile, len(world.fleet), settings.interval, stay=stay)


def _before_the_first_plan(world: World) -> Order:
    """An order for the time before the first round, when the paper's constants are estimated."""
    devices = world.present(1)
    plan = Plan.uniform(len(devices), batch_size=FIRST_BATCH, cut=1)
    return Order(round=0, devices=devices, plan=plan, drawn=np.zeros_like(devices))
