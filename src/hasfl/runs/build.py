"""Builds the training of a task, and defines `simulate`, which users of the library call.

`training_of` builds everything around an engine, for a simulation and for parties on a network alike.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hasfl.arrays import IntN
from hasfl.constants import BoundConstants, MeasuredConstants
from hasfl.data.dataset import Dataset, raw_bits
from hasfl.data.partition import unlikeness
from hasfl.errors import InputError
from hasfl.fleet import Fleet
from hasfl.goal import Goal
from hasfl.guesses import guesses
from hasfl.learning.aggregation import aggregation
from hasfl.learning.engine import Job, LocalEngine
from hasfl.learning.local_term import local_term
from hasfl.learning.optimizers import Updates, optimizer, slots_per_weight
from hasfl.learning.reference_engine import ReferenceEngine
from hasfl.learning.served_model import CALIBRATION_SAMPLES
from hasfl.learning.simulated_engine import SimulatedEngine
from hasfl.learning.state import Weights
from hasfl.learning.training_data import TrainingData, given_by_every_device
from hasfl.models.costs import count_layers
from hasfl.models.layered_model import LayeredModel
from hasfl.plan import Order, Plan
from hasfl.planning.strategies.catalogue import strategy
from hasfl.planning.strategies.decider import GuardedDecider, StrategyDecider
from hasfl.planning.strategies.strategy import Strategy
from hasfl.profile import Profile
from hasfl.record import RoundRecord
from hasfl.runs.objectives import loss_and_metric
from hasfl.runs.resuming import fingerprint
from hasfl.runs.task import Task, settings_from
from hasfl.seeds import Seeds
from hasfl.settings import Settings
from hasfl.theory.latency import Arrangement
from hasfl.theory.paradigms import usual_participants
from hasfl.training.clock import NOTHING, Cost, Judging, ModelledClock
from hasfl.training.forecaster import Forecaster
from hasfl.training.loop import Decider, Engine, Training
from hasfl.training.observer import ConstantsSource, EstimatedConstants, FixedConstants, Observer
from hasfl.training.paper_estimates import Probe
from hasfl.world import ObservedWorld, World

# ── any training ─────────────────────────────────────────────────────────────────────────────────────────


# The batch size for which the paper's constants are estimated before the first plan; chosen by hand.
FIRST_BATCH = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleCounts:
    """How many samples every device has for each purpose, their size, and how unlike their labels are."""

    sizes: IntN  # |D_i|, the samples that each device trains on
    held_out: IntN  # held-out samples of each device
    calibrating: IntN  # training samples of each device that measure the batch norms of a served model
    sample_bits: float  # bits of one raw sample
    unlikeness: float | None  # unlikeness of labels (data/partition.py); None if samples have no class

    @classmethod
    def of(
        cls,
        sizes: IntN,
        *,
        held_out: IntN,
        sample_bits: float,
        measures_norms: bool,
        unlikeness: float | None,
    ) -> "SampleCounts":
        """Count the samples; if `measures_norms`, every device calibrates with a few training samples."""
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
    samples: SampleCounts,
    world: ObservedWorld,
    profile: Profile,
    settings: Settings,
    *,
    checkpoint_seconds: float = 0.0,
) -> Training:
    """Build the training around an engine, which may be a simulation or parties on a network.

    With `probe=None`, the paper's constants cannot be estimated.
    """
    chosen, known = strategy(settings.strategy), settings.known_constants
    observer = Observer(
        world=world,
        paradigm=chosen.paradigm,
        profile=profile,
        samples=samples.sizes,
        rates=settings.rates,
        max_batch=settings.max_batch,
        target=settings.planning.target,
        source=_source(probe, samples, chosen, world, profile, settings),
    )
    estimates = isinstance(observer.source, EstimatedConstants)
    if estimates and (observer.samples[world.present(1)] < 2).all():
        raise InputError(
            f"{chosen.name} estimates the paper's constants in training, which no device can do with one "
            "sample: give [constants], or more samples"
        )
    clock = ModelledClock(
        profile=profile,
        paradigm=chosen.paradigm,
        sample_bits=samples.sample_bits,
        keeps_mean=settings.serving.averages,
    )
    evaluate_every = settings.evaluate_every or settings.interval
    endless = known.rounds if isinstance(known, MeasuredConstants) and settings.rounds_known else None
    return Training(
        engine=engine,
        decider=_decider(chosen, observer.source, settings),
        observer=observer,
        clock=clock,
        goal=settings.goal,
        interval=settings.interval,
        samples=samples.sizes,
        evaluate_every=evaluate_every,
        beforehand=_estimated_beforehand(observer, clock),
        judging=Judging(samples.held_out, samples.calibrating) if settings.needs_held_out else None,
        judges_always=settings.evaluate_every is not None,
        forecaster=Forecaster(
            goal=settings.goal,
            evaluate_every=evaluate_every,
            interval=settings.interval,
            held_out=int(samples.held_out.sum()),
            slowness=observer.slowness,
            endless=endless,  # R∞ of the goal
        ),
        report_every=settings.machine.report_every or (settings.interval if settings.machine.on_gpu else 1),
        checkpoint_seconds=checkpoint_seconds,
    )


def _decider(chosen: Strategy, source: ConstantsSource, settings: Settings) -> Decider:
    """The decider of a strategy. A guard watches the batch sizes that follow from measured constants."""
    # With plans = "stay", no plan is made after this round, because the constants change no more.
    last = source.last_change * settings.interval + 1 if settings.planning.plans == "stay" else None
    decider = StrategyDecider(chosen, Seeds(settings.seed), last)
    guarded = chosen.is_steady and chosen.changes_batches and not chosen.of_the_paper
    return GuardedDecider(decider, settings.interval) if guarded else decider


def _source(
    probe: Probe | None,
    samples: SampleCounts,
    chosen: Strategy,
    world: ObservedWorld,
    profile: Profile,
    settings: Settings,
) -> ConstantsSource:
    """The source of constants: the paper's if they are to be estimated; else fixed ones, given or guessed."""
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
            unlikeness=samples.unlikeness,
            learning_rate=settings.learning_rate if settings.optimizer == "sgd" else None,
        )
    )


def _estimated_beforehand(observer: Observer, clock: ModelledClock) -> Cost:
    """Estimate the paper's constants before the first plan, if the strategy needs them; returns the cost.

    No plan is in use yet, so the cost is that of passes at cut 1. All devices have the same model.
    """
    devices = observer.world.present(1)
    plan = Plan.uniform(len(devices), batch_size=FIRST_BATCH, cut=1)
    order = Order(round=0, devices=devices, plan=plan, drawn=np.zeros_like(devices))
    now = Arrangement(plan, observer.fleet(1, devices), depth=0)
    effort = observer.learn(order, lambda effort: True)
    return NOTHING if effort is None else clock.estimate(now, effort)


# ── a simulation ─────────────────────────────────────────────────────────────────────────────────────────


ENGINES: dict[str, type[LocalEngine]] = {"simulated": SimulatedEngine, "reference": ReferenceEngine}


@dataclass(frozen=True, slots=True)
class Simulation:
    """A training in virtual time. Iterating over the simulation trains; `model` then returns the weights."""

    training: Training
    engine: LocalEngine

    @classmethod
    def of(cls, task: Task, *, checkpoint_seconds: float = 0.0) -> "Simulation":
        """The simulation of a task, with a copy of its model.

        `checkpoint_seconds` is the least wall time between two checkpoints.
        """
        settings = task.settings
        _require_gpu(settings)
        if settings.machine.wire != "float32":
            raise InputError(
                f'wire (training.wire in a scenario) is "{settings.machine.wire}", but a simulation sends '
                "nothing: leave it out, or train on real machines"
            )
        engine = ENGINES[settings.machine.engine](_job(task))
        job = engine.job
        profile = Profile.of(count_layers(task.model), optimizer=slots_per_weight(job.updates.optimizer))
        # In a simulation, estimates of constants may use the whole state and all data.
        probe = Probe(
            layers=engine.layers, state=engine.state, data=job.data, updates=job.updates, loss=job.loss
        )
        training = training_of(
            engine,
            probe,
            _sample_counts(engine),
            task.world,
            profile,
            settings,
            checkpoint_seconds=checkpoint_seconds,
        )
        return cls(training, engine)

    def __iter__(self) -> Iterator[RoundRecord]:
        """Train until the goal is reached, with one record per round. A second loop continues the first."""
        return self.training.rounds()

    def model(self) -> Weights:
        """The weights and buffers of the model that is handed out, named as in the module's `state_dict`."""
        return self.engine.job.model.state_names.state_dict(self.engine.model())

    def load_into(self, model: nn.Module) -> None:
        """Copy the weights of the model that is handed out into a module of the same kind."""
        model.load_state_dict(self.model())

    @property
    def marks(self) -> Mapping[str, str]:
        """Hashes of the data and the model; a resumed run must have the same ones."""
        return fingerprint(self.engine.job)

    def model_input(self) -> Mapping[str, Any]:
        """The shape and type of a sample, and the number of outputs; `export` needs them."""
        job = self.engine.job
        return form_of_samples(job.model, job.data.x[:1])

    @property
    def looped_layers(self) -> Mapping[str, str]:
        """The layers that are trained for one device after the other, each with the reason."""
        return self.engine.looped_layers


def form_of_samples(model: LayeredModel, sample: Tensor) -> Mapping[str, Any]:
    """The shape and the type of the samples that a model takes, and the number of its outputs."""
    with torch.inference_mode():
        outputs = model.eval()(sample)
    shape, dtype = sample.shape[1:], str(sample.dtype).removeprefix("torch.")
    return {"shape": list(shape), "type": dtype, "outputs": outputs.shape[-1]}


def simulate(
    model: nn.Module,
    data: Dataset,
    fleet: Fleet | World,
    *,
    shares: Sequence[IntN] | None = None,
    rounds: int | None = None,
    **settings: Any,
) -> Simulation:
    """Train a model over a fleet in virtual time.

        for record in simulate(model, data, fleet, strategy="hasfl", learning_rate=0.1, rounds=30):
            print(record.round, record.loss, record.accuracy, record.clock)

    A plain module can be cut wherever exactly one tensor passes from one part to the next. Training works on
    a copy of the model; `Simulation.load_into` copies the trained weights into a module. With a `World` in
    place of a fleet, rates change, and devices leave and come back.

    `shares` holds the indices of the samples of each device. Without it, the data set tells them, or samples
    are dealt out at random. `rounds` is short for `goal=Goal(rounds=…)`. All other keywords are the fields of
    `hasfl.Settings`: `strategy`, `learning_rate`, `interval`, `optimizer`, `participation`, `max_batch`,
    `evaluate_every`, `goal`, `seed`, `held_out`, `augment`, `known_constants`, `rounds_known`, `loss`,
    `metric`, `aggregation`, `local_term`, and the groups `descent`, `planning`, `serving` and `machine`.
    """
    if rounds is not None:
        goal = settings.get("goal")
        if goal is not None and not isinstance(goal, Goal):
            raise InputError(f"goal must be a Goal, got {goal!r}")
        settings["goal"] = Goal(rounds=rounds) if goal is None else replace(goal, rounds=rounds)
    return Simulation.of(Task.of(model, data, fleet, settings_from(settings), shares))


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


def _job(task: Task) -> Job:
    data, settings, model = task.data, task.settings, deepcopy(task.model)
    device = settings.machine.device
    x, y, x_test, y_test = (
        tensor.to(device) for tensor in (data.x_train, data.y_train, data.x_test, data.y_test)
    )
    samples = TrainingData.of(
        x, y, task.shares, Seeds(settings.seed), augment=settings.augment, held_out=settings.held_out_share
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
        aggregation=aggregation(settings.aggregation),
        local_term=local_term(settings.local_term),
        half=settings.machine.precision == "bfloat16",
        serving=settings.serving,
    )


def _sample_counts(engine: LocalEngine) -> SampleCounts:
    data, calibration = engine.job.data, engine.calibration
    counts = data.label_counts()
    return SampleCounts.of(
        data.sizes,
        held_out=np.array([len(own) for own in data.held_out_shares]),
        sample_bits=raw_bits(data.x.shape[1:], data.x.dtype),
        measures_norms=calibration is not None and calibration.drawn is not None,
        unlikeness=None if counts is None else unlikeness(counts),
    )
