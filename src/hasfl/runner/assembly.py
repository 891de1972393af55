"""From a model, data, a fleet and settings to everything that takes part in a training."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from torch import nn

from hasfl.arrays import SHOWN, IntN
from hasfl.constants import BoundConstants, MeasuredConstants
from hasfl.data import Dataset, partition, shares_of
from hasfl.effort import TimeSpent
from hasfl.engines.job import Job
from hasfl.engines.local import LocalEngine
from hasfl.engines.reference import ReferenceEngine
from hasfl.engines.simulated import SimulatedEngine
from hasfl.errors import InputError
from hasfl.fleet import Fleet
from hasfl.networks import LayeredModel, layered
from hasfl.plan import Order, Plan
from hasfl.profile import Profile
from hasfl.profiling.costs import count_layers
from hasfl.readings.in_process import InProcessReader
from hasfl.readings.probe import Probe
from hasfl.readings.sources import (
    ConstantsSource,
    EstimatedConstants,
    FixedConstants,
    TrackedConstants,
    first_estimates,
    settled,
)
from hasfl.runner.objectives import loss_and_metric
from hasfl.seeds import Seeds
from hasfl.serving.calibration import CALIBRATION_SAMPLES
from hasfl.settings import Descent, Machine, Planning, Serving, Settings
from hasfl.state.own_optimizer import optimizer, slots_per_weight
from hasfl.state.training_data import TrainingData
from hasfl.state.updates import Updates
from hasfl.strategies.catalogue import strategy
from hasfl.strategies.decider import StrategyDecider
from hasfl.strategies.strategy import Strategy
from hasfl.theory.paradigms import usual_participants
from hasfl.theory.traffic import Arrangement
from hasfl.training.clock import NOTHING, Cost, ModelledClock
from hasfl.training.forecaster import Forecaster
from hasfl.training.judging import Judging
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
    for group in (Descent, Planning, Serving, Machine):
        if name in {field.name for field in fields(group)}:
            return f"give it in a group, as {group.__name__.lower()}={group.__name__}({name}=…)"
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"


def assemble(
    model: nn.Module, data: Dataset, fleet: Fleet | World, settings: Settings, shares: Sequence[IntN] | None
) -> tuple[Training, LocalEngine]:
    """A training that is ready to run, and its engine; the model is copied."""
    _require_gpu(settings)
    _require_dataset(data)
    world = _world(fleet, settings)
    chain = model if isinstance(model, LayeredModel) else layered(model, data.x_train[:2])
    _require_fits(chain, data)
    layers = count_layers(chain)
    job = _job(deepcopy(chain), data, _shares(shares, data, world.fleet.names, settings), settings)
    engine = ENGINES[settings.machine.engine](job)
    profile = Profile.of(layers, optimizer=slots_per_weight(job.updates.optimizer))
    return _training(engine, world, profile, settings), engine


def _require_dataset(data: object) -> None:
    if not isinstance(data, Dataset):
        hint = "Dataset.of_torch" if isinstance(data, torch.utils.data.Dataset) else "Dataset.of_arrays"
        raise InputError(
            f"data must be a hasfl.Dataset with samples to train on and to test on, got a "
            f"{type(data).__name__}: make one with {hint}"
        )


def _require_gpu(settings: Settings) -> None:
    device = settings.machine.device
    if not settings.machine.on_gpu:
        return
    if not torch.cuda.is_available():
        raise InputError(
            f"device (training.device in a scenario) is {device}, but torch finds no GPU here: use cpu, or a "
            "build of torch for it"
        )
    number, there = torch.device(device).index or 0, torch.cuda.device_count()
    if number >= there:
        raise InputError(
            f"device (training.device in a scenario) is {device}, but torch finds GPUs 0 to {there - 1} here"
            ": use one of them"
        )


def _world(fleet: Fleet | World, settings: Settings) -> World:
    """A fleet alone is a world that does not change."""
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
    """Which samples each device holds: as the caller says, else as the data say, else dealt out at random."""
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
    if settings.needs_held_out and samples.held_out is None:
        raise InputError(
            "held-out samples shall say when training ends or which model is best, but no device has two "
            "samples, one of them to hold out: end training after a number of rounds, samples or seconds, "
            "and keep the final model"
        )
    loss, metric = loss_and_metric(model.to(device), data, settings, device)
    return Job(
        model=model,
        data=samples,
        test=(x_test, y_test),
        updates=Updates(
            optimizer(settings.optimizer),
            settings.rates,
            settings.descent.weight_decay,
            settings.descent.clip,
        ),
        loss=loss,
        metric=metric,
        half=settings.machine.precision == "bfloat16",
        serving=settings.serving,
    )


def _training(engine: LocalEngine, world: World, profile: Profile, settings: Settings) -> Training:
    chosen, data = strategy(settings.strategy), engine.job.data
    observer = _observer(engine, chosen, world, profile, settings)
    clock = ModelledClock(
        profile=profile,
        paradigm=chosen.paradigm,
        sample_bits=RAW_BITS[data.x.dtype] * data.x[0].numel(),
        keeps_mean=settings.serving.averages,
    )
    return Training(
        engine=engine,
        decider=StrategyDecider(chosen, Seeds(settings.seed), _last_new_plan(observer.source, settings)),
        observer=observer,
        clock=clock,
        goal=settings.goal,
        interval=settings.interval,
        samples=data.sizes,
        evaluate_every=settings.evaluate_every or settings.interval,
        beforehand=_learnt_beforehand(observer, clock),
        judging=_judging(engine) if settings.needs_held_out else None,
        judges_always=settings.evaluate_every is not None,
        forecaster=_forecaster(engine, observer, settings),
        report_every=settings.machine.report_every or (settings.interval if settings.machine.on_gpu else 1),
    )


def _last_new_plan(source: ConstantsSource, settings: Settings) -> int | None:
    """The last round that may begin with a new plan, where plans stay: the one after the last reading."""
    if settings.planning.plans != "stay":
        return None
    reads = isinstance(source, TrackedConstants)
    intervals = settled(settings.interval) if reads else first_estimates(settings.interval)[-1]
    return intervals * settings.interval + 1


def _observer(
    engine: LocalEngine, chosen: Strategy, world: World, profile: Profile, settings: Settings
) -> WorldObserver:
    job = engine.job
    observer = WorldObserver(
        reader=InProcessReader(
            Probe(
                layers=engine.layers,
                state=engine.state,
                data=job.data,
                updates=job.updates,
                loss=job.loss,
            )
        ),
        world=world,
        paradigm=chosen.paradigm,
        profile=profile,
        samples=job.data.sizes,
        rates=settings.rates,
        max_batch=settings.max_batch,
        target=settings.planning.target,
        source=_source(chosen, world, profile, settings),
    )
    estimates = isinstance(observer.source, EstimatedConstants)
    if estimates and (observer.samples[world.present(1)] < 2).all():
        raise InputError(
            f"{chosen.name} estimates the paper's constants in training, which no device can do with one "
            "sample: give [constants], or more samples"
        )
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
    tracked = TrackedConstants.guessed(profile, usual_participants(world, chosen.paradigm), settings.interval)
    return replace(tracked, stay=stay)


def _learnt_beforehand(observer: WorldObserver, clock: ModelledClock) -> Cost:
    """Estimate the paper's constants before the first plan; returns the cost.

    No plan is in use yet, so passes are counted at cut 1. The model is the same everywhere.
    """
    devices = observer.world.present(1)
    plan = Plan.uniform(len(devices), batch_size=FIRST_BATCH, cut=1)
    order = Order(round=0, devices=devices, plan=plan, drawn=np.zeros_like(devices))
    now = Arrangement(plan, observer.fleet(1, devices), depth=0)
    learnt = observer.learn(order, TimeSpent(0.0, lambda effort: clock.reading(now, effort).seconds))
    if learnt is None:
        return NOTHING
    return clock.reading(now, learnt.effort)


def _forecaster(engine: LocalEngine, observer: WorldObserver, settings: Settings) -> Forecaster:
    """Forecasts when training will reach its goal, by evaluations on the samples that are held out."""
    return Forecaster(
        goal=settings.goal,
        evaluate_every=settings.evaluate_every or settings.interval,
        interval=settings.interval,
        held_out=sum(map(len, engine.job.data.held_out_shares)),
        slowness=observer.slowness,
        endless=_endless_rounds(settings),
    )


def _endless_rounds(settings: Settings) -> float | None:
    """R∞ of the goal; None where the constants are read, because readings do not tell it."""
    known = settings.known_constants
    return known.rounds if isinstance(known, MeasuredConstants) and settings.rounds_known else None


def _judging(engine: LocalEngine) -> Judging:
    """The samples of every device that an evaluation needs."""
    data, calibration = engine.job.data, engine.calibration
    measures = calibration is not None and calibration.drawn is not None
    return Judging(
        held_out=np.array([len(own) for own in data.held_out_shares]),
        calibrating=data.number_of_every_device(CALIBRATION_SAMPLES)
        if measures
        else np.zeros_like(data.sizes),
    )
