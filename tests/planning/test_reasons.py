"""Notes on plans: what changed, what a change saves, and when nothing is said."""

import json
from dataclasses import replace

import numpy as np
import pytest

from hasfl.constants import Conditions, Guess, Guesses, MeasuredConstants
from hasfl.plan import Decision, Plan
from hasfl.planning.exact.guess_ratios import ratios, weighed
from hasfl.planning.exact.planner import best_plan
from hasfl.planning.strategies.catalogue import strategy
from hasfl.planning.strategies.decider import (
    ESTIMATED_ANEW,
    StrategyDecider,
    estimated_anew,
    first_plan,
    saving,
    what_changed,
)
from hasfl.problem import Problem
from hasfl.seeds import Seeds
from hasfl.theory.objective import evaluate
from hasfl.units import format_share
from tests.planning.random_problems import measured, random_problem
from tests.planning.situations import roomy


def a_problem(seed: int = 1, **constants: float) -> Problem:
    problem = measured(roomy(seed), seed)
    return replace(problem, constants=replace(problem.constants, **constants))


def other_links(problem: Problem, seed: int) -> Problem:
    """The same problem, with every uplink several times as fast or as slow."""
    fleet = problem.fleet
    factors = np.random.default_rng(seed).uniform(-2.0, 2.0, len(fleet))
    return replace(problem, fleet=replace(fleet, up_rate=fleet.up_rate * np.exp(factors)))


@pytest.mark.parametrize("factor", [0.3, 2.0])
def test_another_learning_rate_is_told_alone(factor: float) -> None:
    """Although noise and drift change with it."""
    problem = a_problem()
    rate = problem.learning_rate
    known = Conditions(rate, len(problem.fleet), problem.interval)
    scaled = problem.constants.under(replace(known, learning_rate=factor * rate), known)
    assert scaled.noise != problem.constants.noise
    later = replace(problem, learning_rate=factor * rate, constants=scaled)
    assert what_changed(problem, later) == f"the learning rate is {factor * rate:.3g} (before {rate:.3g})"


def test_rates_and_devices_are_told() -> None:
    problem = a_problem()
    faster = replace(problem, fleet=replace(problem.fleet, up_rate=2 * problem.fleet.up_rate))
    assert what_changed(problem, faster) == "compute or rates changed"
    assert what_changed(problem, problem) == ""
    fewer = replace(problem, fleet=problem.fleet.only(np.arange(len(problem.fleet) - 1)))
    assert what_changed(problem, fewer).startswith("other devices take part")


@pytest.mark.parametrize(("before", "now"), [(3, 2), (2, 3), (3, 1), (1, 3)])
def test_another_number_of_devices_is_told_alone(before: int, now: int) -> None:
    """Although noise and drift change with it."""
    whole = a_problem(noise=1.0)
    known = Conditions(whole.learning_rate, len(whole.fleet), whole.interval)
    problems = [
        replace(
            whole,
            fleet=whole.fleet.only(np.arange(count)),
            constants=whole.constants.under(replace(known, devices=count), known),
        )
        for count in (before, now)
    ]
    assert what_changed(*problems) == "other devices take part"


def test_the_papers_constants_are_estimated() -> None:
    problem = random_problem(1)
    other = replace(problem, constants=replace(problem.constants, smoothness=9.0))
    assert (what_changed(problem, problem), what_changed(problem, other)) == ("", ESTIMATED_ANEW)
    faster = replace(other, fleet=replace(problem.fleet, up_rate=2 * problem.fleet.up_rate))
    assert what_changed(problem, faster) == f"{ESTIMATED_ANEW} and compute or rates changed"
    assert first_plan(Plan.uniform(len(problem.fleet), batch_size=1, cut=1), problem) == ()


def test_the_first_plan_says_what_it_rests_on() -> None:
    known = a_problem(noise=3.0, noise_error=0.0)
    plan = Plan.uniform(len(known.fleet), batch_size=4, cut=1)
    assert first_plan(plan, known) == ("first plan: it rests on a noise of 3 samples",)
    (note,) = first_plan(plan, a_problem(noise=0.5, noise_error=float(np.log(4))))
    assert note == "first plan: it rests on a noise of 0.5 samples, right to a factor of 4"
    (one,) = first_plan(plan, a_problem(noise=1.0, noise_error=0.0))
    assert one.endswith("a noise of 1 sample")


def guessing(seed: int = 1) -> Problem:
    """A problem with two guesses of the constants."""
    problem = a_problem(seed)
    each = [
        Guess(says=says, weight=weight, constants=problem.constants.times("noise", factor))
        for says, weight, factor in (("little", 3.0, 0.1), ("much", 1.0, 10.0))
    ]
    return replace(problem, constants=Guesses(tuple(each)))


def test_the_first_plan_for_guesses_has_its_ratios() -> None:
    problem = weighed(guessing())
    plan = best_plan(problem, gap=1e-3).plan
    little, much = ratios(plan, problem)
    (note,) = first_plan(plan, problem)
    assert note == (
        "first plan: it rests on 2 guesses of the constants; it takes "
        f"{0.75 * little.ratio + 0.25 * much.ratio:.2f} times as long as the best plan for one of them in "
        f"the mean, and {max(little.ratio, much.ratio):.2f} times at worst"
    )
    decider = StrategyDecider(strategy("hasfl"), Seeds(0))
    devices = np.arange(len(problem.fleet))
    decision = decider.plan(guessing(), devices, 1, None)
    assert decision.notes == first_plan(decision.plan, problem)


def test_guesses_that_follow_the_devices_are_told_as_other_devices_only() -> None:
    problem = guessing()
    fewer = problem.fleet.only(np.arange(len(problem.fleet) - 1))
    known = Conditions(problem.learning_rate, len(problem.fleet), problem.interval)
    now = replace(known, devices=len(fewer))
    later = replace(problem, fleet=fewer, constants=problem.constants.under(now, known))
    assert what_changed(problem, later) == "other devices take part"
    assert not estimated_anew(problem, later)


def decided(old: Plan, before: Problem, now: Problem, t: int = 10**6) -> tuple[Decision, StrategyDecider]:
    """What hasfl decides for `now` with a plan in use that was made for `before`."""
    devices = np.arange(len(now.fleet))
    decider = StrategyDecider(strategy("hasfl"), Seeds(0))
    decider.plan(before, devices, 1, None)
    return decider.plan(now, devices, t, old), decider


def test_a_note_says_what_the_decision_rests_on() -> None:
    """The saving in it is that of the two plans, and it says `new plan` if and only if the plan is new."""
    new = kept = 0
    for seed in range(60):
        before = a_problem(seed, noise=1.0, noise_error=0.8, drift_error=0.8)
        now = other_links(before, seed)
        old = best_plan(before, gap=1e-3).plan
        (plan, notes), decider = decided(old, before, now)
        best = decider.answer
        assert best is not None
        if best == old:
            assert notes == ()
            continue
        (note,) = notes
        share = 1 - evaluate(best, now).objective / evaluate(old, now).objective
        found = saving(old, best, now, rounds=10**6)
        assert found.share == pytest.approx(share)
        assert ": compute or rates changed; " in note
        if plan != old:
            assert note.startswith("new plan: ")
            assert note.endswith(f"; it takes {format_share(share)} less time than the old plan")
            new += 1
        else:
            assert note.startswith("plan kept: ")
            assert f"a new plan would save only {format_share(max(share, 0.0))} of the time" in note
            assert format_share(found.error) in note
            kept += 1
    assert new > 3
    assert kept > 1


def test_a_plan_that_is_still_the_best_after_an_estimate_is_told() -> None:
    before = roomy(1)
    now = replace(
        before, constants=replace(before.constants, smoothness=before.constants.smoothness * 1.0001)
    )
    old = best_plan(before, gap=1e-3).plan
    (plan, notes), _ = decided(old, before, now)
    assert plan == old
    assert notes == (f"plan kept: {ESTIMATED_ANEW}; it is still the best",)


def test_nothing_is_said_where_the_plan_stays_the_best() -> None:
    """Rates that change leave the same plan the best: the records stay small."""
    problem = a_problem()
    devices = np.arange(len(problem.fleet))
    decider = StrategyDecider(strategy("hasfl"), Seeds(0))
    plan = decider.plan(problem, devices, 1, None).plan
    hardly = replace(problem, fleet=replace(problem.fleet, memory=problem.fleet.memory * 0.99))
    assert decider.plan(hardly, devices, 16, plan) == (plan, ())
    assert decider.plan(hardly, devices, 31, plan) == (plan, ())


def test_a_pause_changes_no_note() -> None:
    for seed in range(10):
        before = a_problem(seed, noise=1.0, noise_error=0.4)
        devices = np.arange(len(before.fleet))
        whole = StrategyDecider(strategy("hasfl"), Seeds(0))
        plan = whole.plan(before, devices, 1, None).plan
        resumed = StrategyDecider(strategy("hasfl"), Seeds(0))
        resumed.restore(json.loads(json.dumps(whole.saved())), before)
        now = other_links(before, seed)
        assert whole.plan(now, devices, 16, plan) == resumed.plan(now, devices, 16, plan)


def test_a_plan_that_does_not_fit_any_more_says_so() -> None:
    before = a_problem()
    old = Plan.uniform(len(before.fleet), batch_size=before.max_batch, cut=1)
    now = replace(before, max_batch=before.max_batch - 1)
    (_, (note,)), _ = decided(old, before, now)
    assert note == "new plan: other limits hold; the old plan does not fit any more"


def test_random_strategies_have_nothing_to_say() -> None:
    problem = a_problem()
    devices = np.arange(len(problem.fleet))
    for name in ("rbs+rms", "rbs+hams", "habs+rms"):
        decider = StrategyDecider(strategy(name), Seeds(0))
        plan = decider.plan(problem, devices, 1, None).plan
        assert decider.plan(other_links(problem, 3), devices, 16, plan).notes == ()


def test_a_clipped_batch_size_is_said_once_for_each_problem() -> None:
    problem = replace(a_problem(), max_batch=8)
    devices = np.arange(len(problem.fleet))
    few = replace(problem, samples=np.full(len(devices), 3))
    decider = StrategyDecider(strategy("b=8+cut=1"), Seeds(0))
    plan, notes = decider.plan(few, devices, 1, None)
    assert [note.partition(":")[0] for note in notes] == ["batch sizes"]
    assert decider.rebatch(few, devices, 2, plan).notes == ()
    assert decider.plan(few, devices, 16, plan).notes == ()
    assert isinstance(few.constants, MeasuredConstants)
