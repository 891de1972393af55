"""Notes on plans: what changed, what a change saves, and when nothing is said."""

import json
from dataclasses import replace

import numpy as np
import pytest

from hasfl.constants import Conditions, MeasuredConstants
from hasfl.plan import Decision, Plan
from hasfl.planning.exact.planner import best_plan
from hasfl.problem import Problem
from hasfl.seeds import Seeds
from hasfl.strategies.catalogue import strategy
from hasfl.strategies.decider import StrategyDecider
from hasfl.strategies.reasons import BELIEVED, first_plan, reads_anew, what_changed
from hasfl.strategies.steadiness import saving
from hasfl.theory.objective import evaluate
from hasfl.units import format_share
from tests.planning.random_problems import measured, random_problem
from tests.strategies.situations import roomy


def a_problem(seed: int = 1, **constants: float) -> Problem:
    problem = measured(roomy(seed), seed)
    return replace(problem, constants=replace(problem.constants, **constants))


def reading(problem: Problem, factor: float) -> Problem:
    """The same problem after a reading of the noise."""
    noise = problem.constants.noise * factor
    return replace(problem, constants=replace(problem.constants, noise=noise))


def test_a_reading_is_told_with_what_it_changed() -> None:
    problem = a_problem(noise=0.5)
    assert what_changed(problem, problem) == ""
    assert what_changed(problem, reading(problem, 6)) == f"{BELIEVED} 3 samples (before 0.5)"
    drift = replace(problem.constants, drift_of=np.full(len(problem.profile), 100.0))
    assert ", drift " in what_changed(problem, replace(problem, constants=drift))


@pytest.mark.parametrize("factor", [0.3, 2.0])
def test_another_learning_rate_is_no_reading(factor: float) -> None:
    """Although noise and drift change with it."""
    problem = a_problem()
    rate = problem.learning_rate
    known = Conditions(rate, len(problem.fleet), problem.interval)
    scaled = problem.constants.under(replace(known, learning_rate=factor * rate), known)
    assert scaled.noise != problem.constants.noise
    later = replace(problem, learning_rate=factor * rate, constants=scaled)
    assert not reads_anew(problem, later)
    assert what_changed(problem, later).startswith("the learning rate is ")
    assert reads_anew(problem, reading(later, 1.5))


def test_rates_and_devices_are_told() -> None:
    problem = a_problem()
    faster = replace(problem, fleet=replace(problem.fleet, up_rate=2 * problem.fleet.up_rate))
    assert what_changed(problem, faster) == "compute or rates changed"
    both = what_changed(problem, reading(faster, 2))
    assert both.startswith(BELIEVED)
    assert both.endswith(" and compute or rates changed")
    fewer = replace(problem, fleet=problem.fleet.only(np.arange(len(problem.fleet) - 1)))
    assert what_changed(problem, fewer).startswith("other devices take part")


@pytest.mark.parametrize(("before", "now"), [(3, 2), (2, 3), (3, 1), (1, 3)])
def test_another_number_of_devices_is_no_reading(before: int, now: int) -> None:
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
    assert BELIEVED in what_changed(problems[0], reading(problems[1], 2))


def test_the_papers_constants_are_estimated() -> None:
    problem = random_problem(1)
    other = replace(problem, constants=replace(problem.constants, smoothness=9.0))
    assert (what_changed(problem, problem), what_changed(problem, other)) == (
        "",
        "the constants were estimated anew",
    )
    assert first_plan(problem) == ()


def test_the_first_plan_says_what_it_rests_on() -> None:
    known = a_problem(noise=3.0, noise_error=0.0)
    assert first_plan(known) == ("first plan: it rests on a noise of 3 samples",)
    guessed = a_problem(noise=0.5, noise_error=float(np.log(4)))
    (note,) = first_plan(guessed)
    assert note == "first plan: it rests on a noise of 0.5 samples, right to a factor of 4"
    assert first_plan(a_problem(noise=1.0, noise_error=0.0))[0].endswith("a noise of 1 sample")


def decided(old: Plan, before: Problem, now: Problem, t: int = 10**6) -> tuple[Decision, StrategyDecider]:
    """What hasfl decides for `now` with a plan in use that was made for `before`."""
    devices = np.arange(len(now.fleet))
    decider = StrategyDecider(strategy("hasfl"), Seeds(0))
    decider.plan(before, devices, 1, None)
    return decider.plan(now, devices, t, old), decider


def test_a_note_says_what_the_decision_rests_on() -> None:
    """The saving in it is that of the two plans, and it says `new plan` if and only if the plan is new."""
    new = kept = 0
    for seed in range(15):
        before = a_problem(seed, noise=1.0, noise_error=0.8, drift_error=0.8)
        now = reading(before, 4)
        old = best_plan(before, gap=1e-3).plan
        (plan, (note,)), decider = decided(old, before, now)
        best = decider.answer
        assert best is not None
        share = 1 - evaluate(best, now).objective / evaluate(old, now).objective
        found = saving(old, best, now, rounds=10**6)
        assert found.share == pytest.approx(share)
        assert BELIEVED in note
        if plan != old:
            assert note.startswith("new plan: ")
            assert note.endswith(f"; it takes {format_share(share)} less time than the old plan")
            new += 1
        elif best == old:
            assert note.endswith("; it is still the best")
        else:
            assert note.startswith("plan kept: ")
            assert f"a new plan would save only {format_share(max(share, 0.0))} of the time" in note
            assert format_share(found.error) in note
            kept += 1
    assert new > 3
    assert kept > 1


def test_nothing_is_said_where_nothing_was_read_and_the_plan_stays() -> None:
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
        now = reading(before, 3)
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
        assert decider.plan(reading(problem, 3), devices, 16, plan).notes == ()


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
