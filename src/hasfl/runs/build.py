"""From a model, data, a fleet and settings to everything that takes part in a training.

What comes after the engine is the same for a simulation and for parties on a network.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from torch import nn

from hasfl.arrays import SHOWN, IntN
from hasfl.constants import BoundConstants, MeasuredConstants
from hasfl.data.dataset import Dataset
from hasfl.data.npz_files import shares_of
from hasfl.data.partition import partition, unlikeness
from hasfl.errors import InputError
from hasfl.fleet import Fleet
from hasfl.guesses import guesses
from hasfl.learning.engine import Job, LocalEngine
from hasfl.learning.optimizers import Updates, optimizer, slots_per_weight
from hasfl.learning.reference_engine import ReferenceEngine
from hasfl.learning.served_model import CALIBRATION_SAMPLES
from hasfl.learning.simulated_engine import SimulatedEngine
from hasfl.learning.training_data import TrainingData, given_by_every_device
from hasfl.models.costs import count_layers
from hasfl.models.cutting import layered
from hasfl.models.layered_model import LayeredModel
from hasfl.plan import Order, Plan
from hasfl.planning.strategies.catalogue import strategy
from hasfl.planning.strategies.decider import GuardedDecider, StrategyDecider
from hasfl.planning.strategies.strategy import Strategy
from hasfl.profile import Profile
from hasfl.runs.objectives import loss_and_metric
from hasfl.seeds import Seeds
from hasfl.settings import Descent, Machine, Planning, Serving, Settings
from hasfl.theory.latency import Arrangement
from hasfl.theory.paradigms import usual_participants
from hasfl.training.clock import NOTHING, Cost, ModelledClock
from hasfl.training.constants_source import ConstantsSource, EstimatedConstants, FixedConstants
from hasfl.training.forecaster import Forecaster
from hasfl.training.judging import Judging
from hasfl.training.loop import Training
from hasfl.training.observer import WorldObserver
from hasfl.training.paper_estimates import Probe
from hasfl.training.protocols import Decider, Engine
from hasfl.world import ObservedWorld, World

# ── any training ─────────────────────────────────────────────────────────────────────────────────────────


FIRST_BATCH = 16  # the batch size that the paper's constants are estimated for before there is a plan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Holdings:
    """What is known of the samples of every device, without the samples."""

    sizes: IntN  # |D_i|, samples to train on
    held_out: IntN  # samples that judge models
    calibrating: IntN  # samples that measure the batch norms of a served model
    sample_bits: float  # of a raw sample
    unlikeness: float | None  # of the labels (data/partition.py); None where a sample has no class

    @classmethod
    def of(
        cls,
        sizes: IntN,
        *,
        held_out: IntN,
        sample_bits: float,
        measures_norms: bool,
        unlikeness: float | None,
    ) -> "Holdings":
        """Where batch norms are measured, every device gives a few of its samples for it."""
        few = given_by_every_device(sizes, CALIBRATION_SAMPLES)
        return cls(
            sizes=sizes,
            held_out=held_out,
            calibrating=few if measures_norms else np.zeros_like(sizes),
            sample_bits=sample_bits,
            unlikeness=unlikeness,
        )


def training_of(
    engine: Engine,
    probe: Probe | None,
    holdings: Holdings,
    world: ObservedWorld,
    profile: Profile,
    settings: Settings,
) -> Training:
    """A training that is ready to run. Without a probe, the paper's constants cannot be estimated."""
    chosen = strategy(settings.strategy)
    observer = _observer(probe, holdings, chosen, world, profile, settings)
    clock = ModelledClock(
        profile=profile,
        paradigm=chosen.paradigm,
        sample_bits=holdings.sample_bits,
        keeps_mean=settings.serving.averages,
    )
    return Training(
        engine=engine,
        decider=_decider(chosen, observer.source, settings),
        observer=observer,
        clock=clock,
        goal=settings.goal,
        interval=settings.interval,
        samples=holdings.sizes,
        evaluate_every=settings.evaluate_every or settings.interval,
        beforehand=_learnt_beforehand(observer, clock),
        judging=Judging(holdings.held_out, holdings.calibrating) if settings.needs_held_out else None,
        judges_always=settings.evaluate_every is not None,
        forecaster=_forecaster(holdings, observer, settings),
        report_every=settings.machine.report_every or (settings.interval if settings.machine.on_gpu else 1),
    )


def _decider(chosen: Strategy, source: ConstantsSource, settings: Settings) -> Decider:
    """The strategy at work. A guard watches over batch sizes that follow from constants of hasfl's law."""
    decider = StrategyDecider(chosen, Seeds(settings.seed), _last_new_plan(source, settings))
    guarded = chosen.is_steady and chosen.changes_batches and not chosen.of_the_paper
    return GuardedDecider(decider, settings.interval) if guarded else decider


def _last_new_plan(source: ConstantsSource, settings: Settings) -> int | None:
    """The last round that may begin with a new plan, where plans stay: then constants change no more."""
    return source.last_change * settings.interval + 1 if settings.planning.plans == "stay" else None


def _observer(
    probe: Probe | None,
    holdings: Holdings,
    chosen: Strategy,
    world: ObservedWorld,
    profile: Profile,
    settings: Settings,
) -> WorldObserver:
    observer = WorldObserver(
        world=world,
        paradigm=chosen.paradigm,
        profile=profile,
        samples=holdings.sizes,
        rates=settings.rates,
        max_batch=settings.max_batch,
        target=settings.planning.target,
        source=_source(probe, holdings, chosen, world, profile, settings),
    )
    estimates = isinstance(observer.source, EstimatedConstants)
    if estimates and (observer.samples[world.present(1)] < 2).all():
        raise InputError(
            f"{chosen.name} estimates the paper's constants in training, which no device can do with one "
            "sample: give [constants], or more samples"
        )
    return observer


def _source(
    probe: Probe | None,
    holdings: Holdings,
    chosen: Strategy,
    world: ObservedWorld,
    profile: Profile,
    settings: Settings,
) -> ConstantsSource:
    """Where the constants come from."""
    if settings.known_constants is not None:
        return FixedConstants(settings.known_constants)
    if not chosen.uses_constants:
        kind = BoundConstants if settings.kind_of_constants == "paper" else MeasuredConstants
        return FixedConstants(kind.unknown(len(profile)))
    if settings.kind_for(of_the_paper=chosen.of_the_paper) == "paper":
        if probe is None:
            raise InputError(
                "the paper's constants cannot be estimated by devices and servers, because this needs "
                "gradients of the whole model of one device in one place: give [constants], for example "
                'those of a simulated run (from = the run\'s folder), or train with constants = "measured"'
            )
        return EstimatedConstants(probe, settings.interval, stay=settings.planning.plans == "stay")
    return FixedConstants(
        guesses(
            profile,
            devices=usual_participants(world, chosen.paradigm),
            interval=settings.interval,
            unlikeness=holdings.unlikeness,
            learning_rate=settings.learning_rate if settings.optimizer == "sgd" else None,
        )
    )


def _learnt_beforehand(observer: WorldObserver, clock: ModelledClock) -> Cost:
    """Estimate the paper's constants before the first plan; returns the cost.

    No plan is in use yet, so passes are counted at cut 1. The model is the same everywhere.
    """
    devices = observer.world.present(1)
    plan = Plan.uniform(len(devices), batch_size=FIRST_BATCH, cut=1)
    order = Order(round=0, devices=devices, plan=plan, drawn=np.zeros_like(devices))
    now = Arrangement(plan, observer.fleet(1, devices), depth=0)
    learnt = observer.learn(order, lambda effort: True)
    return NOTHING if learnt is None else clock.estimate(now, learnt.effort)


def _forecaster(holdings: Holdings, observer: WorldObserver, settings: Settings) -> Forecaster:
    """Forecasts when training will reach its goal, by evaluations on the samples that are held out."""
    return Forecaster(
        goal=settings.goal,
        evaluate_every=settings.evaluate_every or settings.interval,
        interval=settings.interval,
        held_out=int(holdings.held_out.sum()),
        slowness=observer.slowness,
        endless=_endless_rounds(settings),
    )


def _endless_rounds(settings: Settings) -> float | None:
    """R∞ of the goal; None where no known constants tell it."""
    known = settings.known_constants
    return known.rounds if isinstance(known, MeasuredConstants) and settings.rounds_known else None


# ── a simulation ─────────────────────────────────────────────────────────────────────────────────────────


ENGINES: dict[str, type[LocalEngine]] = {"simulated": SimulatedEngine, "reference": ReferenceEngine}
RAW_BITS = {
    torch.float32: 8.0,
    torch.int64: 16.0,
}  # of one number of a raw sample: a pixel is a byte, a token two


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
    _require_full_wire(settings)
    _require_dataset(data)
    world = _world(fleet, settings)
    chain = model if isinstance(model, LayeredModel) else layered(model, data.x_train[:2])
    _require_fits(chain, data)
    layers = count_layers(chain)
    job = _job(deepcopy(chain), data, _shares(shares, data, world.fleet.names, settings), settings)
    engine = ENGINES[settings.machine.engine](job)
    profile = Profile.of(layers, optimizer=slots_per_weight(job.updates.optimizer))
    return training_of(engine, _probe(engine), _holdings(engine), world, profile, settings), engine


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


def _require_full_wire(settings: Settings) -> None:
    if (wire := settings.machine.wire) != "float32":
        raise InputError(
            f'wire (training.wire in a scenario) is "{wire}", but a simulation sends nothing: leave it out, '
            "or train on real machines"
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
        if not indices.size:
            raise InputError(
                f"device {i} has no samples, but every device needs one: give shares[{i}] a sample"
            )
        if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
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


def _probe(engine: LocalEngine) -> Probe:
    """Estimates of constants may look at everything, because everything is here."""
    job = engine.job
    return Probe(layers=engine.layers, state=engine.state, data=job.data, updates=job.updates, loss=job.loss)


def _holdings(engine: LocalEngine) -> Holdings:
    data, calibration = engine.job.data, engine.calibration
    counts = data.label_counts()
    return Holdings.of(
        data.sizes,
        held_out=np.array([len(own) for own in data.held_out_shares]),
        sample_bits=RAW_BITS[data.x.dtype] * data.x[0].numel(),
        measures_norms=calibration is not None and calibration.drawn is not None,
        unlikeness=None if counts is None else unlikeness(counts),
    )
