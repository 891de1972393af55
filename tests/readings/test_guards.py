"""What guards a training against wrong readings: errors that are told, and a guess that is not far off.

The grids are trainings of many fixed plans (docs/constants.md). Rounds go with 1 + s_J mean_i n(b_i)
in them, with one number s_J for each deepest cut J.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from hasfl.constants import MeasuredConstants
from hasfl.fleet import FleetRanges, draw_fleet
from hasfl.plan import Plan
from hasfl.planning.exact.planner import best_plan
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.profiling.shipped import shipped_layers
from hasfl.readings.belief import Belief
from hasfl.readings.tracking import Measured, Tracked
from hasfl.seeds import Seeds
from hasfl.strategies.catalogue import strategy
from hasfl.strategies.decider import StrategyDecider
from hasfl.strategies.steadiness import CAUTION, saving
from hasfl.theory.objective import evaluate
from tests.planning.random_problems import measured, random_problem

SEEDS = st.integers(0, 10_000)
ERRORS = st.sampled_from([0.05, 0.3, 1.0])
OFF = st.integers(-10, 10).map(lambda k: k / 10)  # by how many standard errors
NOTHING = Measured(0.0, math.inf)


def believed(seed: int, *errors: float) -> Problem:
    """A random problem in which noise and drift matter, and how well noise, drift and skew are known."""
    problem = measured(random_problem(seed, devices=(2, 4), layers=(3, 6), max_batch=32), seed)
    rng, (noise, drift, skew) = np.random.default_rng(seed), errors
    constants = replace(
        problem.constants,
        noise=float(10 ** rng.uniform(0, 1.5)),
        drift_of=rng.uniform(0, 2, len(problem.profile)),
        noise_error=noise,
        drift_error=drift,
        skew_error=skew,
    )
    fleet = replace(problem.fleet, memory=np.full(len(problem.fleet), 1e15))
    return replace(problem, fleet=fleet, constants=constants, interval=max(problem.interval, 2))


def in_truth(problem: Problem, noise: float, drift: float, skew: float) -> Problem:
    """The problem as it is, where the constants are so many standard errors off."""
    known = problem.constants
    assert isinstance(known, MeasuredConstants)
    share_of = known.drift_of / max(float(known.drift_of.sum()), 1e-300)
    true = replace(
        known,
        noise=known.noise * math.exp(noise * known.noise_error),
        drift_of=known.drift_of * math.exp(drift * known.drift_error),
        skew_of=np.maximum(known.skew_of + skew * known.skew_error * share_of, 0.0),
    )
    return replace(problem, constants=true)


def decided(problem: Problem, kept: Plan, round: int) -> Plan:
    """The plan that is chosen where another one is in use."""
    decider = StrategyDecider(strategy("hasfl"), Seeds(0))
    return decider.plan(problem, np.arange(len(problem.fleet)), round, kept).plan


@given(SEEDS, ERRORS, ERRORS, ERRORS, OFF, OFF, OFF, st.integers(2, 3000))
@hypothesis_settings(max_examples=60)
def test_a_change_is_never_worse_than_no_change_by_more_than_the_error(
    seed: int, noise: float, drift: float, skew: float, n: float, d: float, s: float, round: int
) -> None:
    """Where all constants together are a standard error off, though the plan in use is the best in truth."""
    problem, far = believed(seed, noise, drift, skew), max(math.hypot(n, d, s), 1.0)
    truth = in_truth(problem, n / far, d / far, s / far)
    kept = best_plan(truth, gap=1e-2).plan
    chosen = decided(problem, kept, round)
    stated = saving(kept, chosen, problem, rounds=round)
    lost = evaluate(chosen, truth).objective / evaluate(kept, truth).objective - 1
    assert lost <= stated.error + 1e-12
    assert chosen == kept or stated.share > CAUTION * stated.error


def test_changes_for_the_better_by_what_is_believed_are_not_all_made() -> None:
    """Some would lose time in truth. The guard keeps plans from these, and stays out of the way of others."""
    worse, refused, better, made = 0, 0, 0, 0
    for seed in range(40):
        problem = believed(seed, 1.0, 1.0, 1.0)
        truth = in_truth(problem, *np.random.default_rng(seed).choice([-1.0, 1.0], 3) / math.sqrt(3))
        best, true_best = (best_plan(each, gap=1e-2).plan for each in (problem, truth))
        if evaluate(best, truth).objective > 1.02 * evaluate(true_best, truth).objective:
            worse += 1
            refused += decided(problem, true_best, round=3000) == true_best
        poor = Plan.uniform(len(problem.fleet), batch_size=problem.max_batch, cut=len(problem.profile))
        if evaluate(best, truth).objective < 0.5 * evaluate(poor, truth).objective:
            better += 1
            made += decided(problem, poor, round=3000) == best
    assert refused > worse / 2 > 2
    assert made > 0.8 * better > 8


# The guess.

DEVICES, INTERVAL = 20, 15  # of Table I


def profile(model: str) -> Profile:
    layers = shipped_layers(model, classes=None, norm=None)
    assert layers is not None
    return Profile.of(layers)


def on_table_one(model: str, constants: MeasuredConstants, seed: int = 0) -> Problem:
    fleet = draw_fleet(FleetRanges(devices=DEVICES), Seeds(seed))
    return Problem(
        fleet=fleet, profile=profile(model), constants=constants, learning_rate=5e-4, interval=INTERVAL
    )


@pytest.mark.parametrize("model", ["small-cnn", "resnet18"])
def test_readings_that_say_nothing_leave_the_plans_of_the_guess(model: str) -> None:
    guess, told = (Belief.guessed(profile(model), DEVICES, INTERVAL) for _ in range(2))
    for depth in (1, 3):
        told.take(noise=NOTHING, drift=NOTHING, skew=NOTHING, depth=depth)
        told.take(noise=NOTHING, drift=None, skew=None, depth=depth)
    plans = [best_plan(on_table_one(model, each.constants()), gap=1e-2).plan for each in (guess, told)]
    assert plans[0] == plans[1]
    assert decided(on_table_one(model, told.constants()), plans[0], round=100) == plans[0]


@pytest.mark.parametrize("seed", range(3))
def test_the_guess_takes_single_samples_for_digits(seed: int) -> None:
    """They were best in the grid of digits."""
    guess = Belief.guessed(profile("small-cnn"), DEVICES, INTERVAL).constants()
    plan = best_plan(on_table_one("small-cnn", guess, seed), gap=1e-2).plan
    assert plan.batch_sizes.tolist() == [1] * DEVICES


# s_J by deepest cut; between these cuts it is interpolated.
GRIDS = {
    "vgg16": {1: 13.0, 2: 18.0, 4: 19.0, 7: 34.0, 10: 61.0, 13: 86.0},  # CIFAR-10
    "resnet18": {1: 5.4, 2: 7.2, 4: 11.7, 6: 21.0},  # CIFAR-100
}


def law_of_grid(model: str) -> MeasuredConstants:
    cuts, costs = zip(*GRIDS[model].items(), strict=True)
    upto = np.interp(np.arange(1, len(profile(model)) + 1), cuts, costs)
    return MeasuredConstants(rounds=1.0, noise=upto[0], drift_of=np.diff(upto / upto[0], prepend=1.0))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("knows_noise", [False, True])
@pytest.mark.parametrize("model", GRIDS)
def test_plans_of_the_guess_are_good_by_the_laws_of_the_grids(
    model: str, knows_noise: bool, seed: int
) -> None:
    """Of the whole guess, or of guessed drift with the grid's noise: within 1.2 of the least time."""
    known = Belief.guessed(profile(model), DEVICES, INTERVAL)
    if knows_noise:
        known.noise, known.skew = Tracked(math.log(GRIDS[model][1]), 0.0), Tracked(0.0, 0.0)
    plan = best_plan(on_table_one(model, known.constants(), seed), gap=1e-2).plan
    truth = on_table_one(model, law_of_grid(model), seed)
    best = best_plan(truth, gap=1e-2).objective
    assert evaluate(plan, truth).objective < 1.2 * best
    single = Plan(np.ones(DEVICES, dtype=np.int64), plan.cuts)
    assert evaluate(single, truth).objective > 1.2 * best
