"""From an engine and what is known of a fleet to everything that takes part in a training.

It is the same for a simulation and for parties on a network.
"""

from dataclasses import dataclass

import numpy as np

from hasfl.arrays import IntN
from hasfl.constants import BoundConstants, MeasuredConstants
from hasfl.errors import InputError
from hasfl.guesses import guesses
from hasfl.learning.served_model import CALIBRATION_SAMPLES
from hasfl.learning.training_data import given_by_every_device
from hasfl.plan import Order, Plan
from hasfl.planning.strategies.catalogue import strategy
from hasfl.planning.strategies.decider import StrategyDecider
from hasfl.planning.strategies.guard import GuardedDecider
from hasfl.planning.strategies.strategy import Strategy
from hasfl.profile import Profile
from hasfl.seeds import Seeds
from hasfl.settings import Settings
from hasfl.theory.paradigms import usual_participants
from hasfl.theory.traffic import Arrangement
from hasfl.training.clock import NOTHING, Cost, ModelledClock
from hasfl.training.constants_source import ConstantsSource, EstimatedConstants, FixedConstants
from hasfl.training.forecaster import Forecaster
from hasfl.training.judging import Judging
from hasfl.training.loop import Training
from hasfl.training.observer import WorldObserver
from hasfl.training.paper_estimates import Probe
from hasfl.training.protocols import Decider, Engine
from hasfl.world import ObservedWorld

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
