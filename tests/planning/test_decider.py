"""A strategy at work: questions that stay the same are searched once, with or without a pause between."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hasfl.arrays import IntN
from hasfl.errors import Infeasible, InputError, TargetUnreachable
from hasfl.plan import Plan
from hasfl.planning.exact.planner import best_plan
from hasfl.planning.strategies.catalogue import strategy
from hasfl.planning.strategies.decider import StrategyDecider
from hasfl.planning.strategies.rules import Situation
from hasfl.planning.strategies.strategy import Strategy
from hasfl.problem import Problem
from hasfl.seeds import Seeds
from hasfl.theory.objective import evaluate
from tests.planning.random_problems import measured
from tests.planning.situations import pair, roomy

Answers = Callable[[Situation], Plan]


def a_problem(seed: int = 1) -> Problem:
    return measured(roomy(seed), seed)


def devices(problem: Problem) -> np.ndarray:
    return np.arange(len(problem.fleet))


def counting(answers: Answers) -> tuple[Strategy, list[int]]:
    """hasfl with other answers, and the rounds in which it was asked."""
    asked: list[int] = []

    def together(now: Situation) -> Plan:
        asked.append(now.round)
        return answers(now)

    return replace(pair("hasfl"), together=together), asked


def best(now: Situation) -> Plan:
    return best_plan(now.problem, gap=1e-2, start=now.start).plan


def too_far(now: Situation) -> Plan:
    raise TargetUnreachable("too far")


def test_the_same_question_is_searched_once() -> None:
    counted, asked = counting(best)
    decider, problem = StrategyDecider(counted, Seeds(0)), a_problem()
    plan = None
    for t in (1, 16, 31):
        plan, notes = decider.plan(problem, devices(problem), t, plan)
        assert decider.rebatch(problem, devices(problem), t + 1, plan) == (plan, ())
        assert [note.partition(":")[0] for note in notes] == (["first plan"] if t == 1 else [])
    assert asked == [1]
    decider.plan(replace(problem, max_batch=7), devices(problem), 46, plan)
    assert asked == [1, 46]


def test_a_better_plan_that_did_not_pay_yet_is_taken_when_it_does() -> None:
    """It is remembered, so that rounds alone decide."""
    waited = 0
    for seed in range(40):
        given = replace(a_problem(seed), interval=2)
        slow = replace(given.fleet, server_fed_up_rate=1e5, server_fed_down_rate=1e5)  # to move layers
        problem = replace(given, fleet=slow)
        old = Plan.uniform(len(slow), batch_size=4, cut=len(problem.profile))
        counted, asked = counting(best)
        decider = StrategyDecider(counted, Seeds(0))
        taken = [decider.plan(problem, devices(problem), t, old).plan for t in (3, 10**9 + 1)]
        assert asked == [3]
        assert taken[0] in (old, decider.answer)
        if taken[0] != taken[1]:
            assert taken == [old, decider.answer]
            assert evaluate(taken[1], problem).objective < evaluate(old, problem).objective
            waited += 1
    assert waited > 3


@pytest.mark.parametrize("pause", [False, True])
def test_a_question_without_an_answer_is_searched_again_only_by_the_next_interval(pause: bool) -> None:
    problem = a_problem()
    counted, asked = counting(best)
    decider = StrategyDecider(counted, Seeds(0))
    plan = decider.plan(problem, devices(problem), 1, None).plan
    other = replace(problem, max_batch=7)
    decider.strategy, failing = counting(too_far)
    for t in (16, 31):
        assert decider.plan(other, devices(problem), t, plan) == (
            plan,
            ("no plan found, the old one is kept: too far",),
        )
        if pause:
            saved = json.loads(json.dumps(decider.saved()))
            decider = StrategyDecider(decider.strategy, Seeds(0))
            decider.restore(saved, other)
        assert decider.answer is None, "a plan for another problem"
        assert decider.rebatch(other, devices(problem), t + 1, plan) == (plan, ())
    assert (asked, failing) == ([1], [16, 31])


def test_a_pause_changes_no_answer() -> None:
    """Neither the plan that was kept nor the better one that waits."""
    for seed in range(20):
        problem = a_problem(seed)
        old = Plan.uniform(len(problem.fleet), batch_size=2, cut=1)
        counted, asked = counting(best)
        whole = StrategyDecider(counted, Seeds(0))
        plan = whole.plan(problem, devices(problem), 16, old).plan
        resumed = StrategyDecider(counted, Seeds(0))
        resumed.restore(json.loads(json.dumps(whole.saved())), problem)
        assert resumed.answer == whole.answer
        for t in (31, 10**6 + 1):
            after = [each.plan(problem, devices(problem), t, plan) for each in (whole, resumed)]
            assert after[0] == after[1]
        assert asked == [16]


def test_after_a_pause_another_problem_is_planned() -> None:
    counted, asked = counting(best)
    whole, problem = StrategyDecider(counted, Seeds(0)), a_problem()
    plan = whole.plan(problem, devices(problem), 1, None).plan
    resumed = StrategyDecider(counted, Seeds(0))
    resumed.restore(json.loads(json.dumps(whole.saved())), problem)
    resumed.plan(replace(problem, max_batch=7), devices(problem), 16, plan)
    assert asked == [1, 16]


def test_a_pause_before_the_first_plan() -> None:
    counted, asked = counting(best)
    decider, problem = StrategyDecider(counted, Seeds(0)), a_problem()
    decider.restore(json.loads(json.dumps(decider.saved())), problem)
    assert decider.answer is None
    decider.plan(problem, devices(problem), 1, None)
    assert asked == [1]


def test_a_device_that_leaves_is_a_new_question() -> None:
    problem = a_problem()
    counted, asked = counting(best)
    decider = StrategyDecider(counted, Seeds(0))
    plan = decider.plan(problem, devices(problem), 1, None).plan
    there = devices(problem)[:-1]
    fewer = replace(problem, fleet=problem.fleet.only(there))
    kept = Plan(plan.batch_sizes[:-1], plan.cuts[:-1])
    rebatched = decider.rebatch(fewer, there, 2, kept).plan
    assert np.array_equal(rebatched.cuts, kept.cuts)
    assert decider.rebatch(fewer, there, 3, rebatched).plan is rebatched
    decider.plan(fewer, there, 16, rebatched)
    assert asked == [1, 16]


def test_a_plan_that_shall_stay_stays_while_it_fits() -> None:
    """Whatever else is better by then; not a draw, and not before."""
    changed = 0
    for seed in range(20):
        problem = a_problem(seed)
        there, old = devices(problem), Plan.uniform(len(problem.fleet), batch_size=2, cut=1)
        free, staying = (StrategyDecider(strategy("hasfl"), Seeds(0), stays_after=n) for n in (None, 61))
        early, late = (staying.plan(problem, there, t, old).plan for t in (61, 10**6))
        assert early == free.plan(problem, there, 61, old).plan
        assert late is old
        changed += free.plan(problem, there, 10**6, old).plan != old
        tight = replace(problem, max_batch=1)
        assert staying.rebatch(problem, there, 10**6, old).plan is old
        assert staying.rebatch(tight, there, 10**6, old).plan.batch_sizes.max() == 1
        assert staying.plan(tight, there, 10**6, old).plan.batch_sizes.max() == 1
        drawing = StrategyDecider(strategy("rbs+rms"), Seeds(0), stays_after=61)
        assert len({drawing.plan(problem, there, t, old).plan for t in range(100, 120)}) > 1
    assert changed > 3


@pytest.mark.parametrize("name", ["habs+rms", "rbs+rms", "habs+rms-alike", "rbs+rms-alike"])
def test_random_cuts_are_drawn_anew_at_every_aggregation(name: str) -> None:
    chosen, problem = strategy(name), a_problem()
    assert chosen.draws_cuts
    assert chosen.changes_cuts
    assert not chosen.is_steady
    decider, plan, seen = StrategyDecider(chosen, Seeds(0)), None, set()
    for t in range(1, 200, 15):
        plan, _ = decider.plan(problem, devices(problem), t, plan)
        seen.add(tuple(plan.cuts.tolist()))
        again, _ = decider.rebatch(problem, devices(problem), t + 1, plan)
        assert np.array_equal(again.cuts, plan.cuts)
    assert len(seen) > 2


@pytest.mark.parametrize("name", ["rbs+hams", "habs+rms", "rbs+rms"])
def test_what_is_drawn_is_drawn_anew(name: str) -> None:
    problem = a_problem()
    decider = StrategyDecider(strategy(name), Seeds(0))
    plans = {decider.plan(problem, devices(problem), t, None).plan for t in range(1, 12)}
    assert len(plans) > 5


@pytest.mark.parametrize("error", [Infeasible("too small"), TargetUnreachable("too far")])
@pytest.mark.parametrize("name", ["hasfl", "rbs+rms"])
def test_a_plan_that_cannot_be_renewed_is_kept_with_a_note(error: Exception, name: str) -> None:
    """Whether the strategy looks for the best plan or not; a later answer is taken."""
    problem, there, troubled = a_problem(), devices(a_problem()), {16}

    def answers(now: Situation) -> Plan:
        if now.round in troubled:
            raise error
        return Plan.uniform(len(there), batch_size=now.round, cut=1)

    decider = StrategyDecider(replace(pair(name), together=answers), Seeds(0))
    plan = decider.plan(problem, there, 1, None).plan
    other = replace(problem, max_batch=problem.max_batch - 1)
    assert decider.plan(other, there, 16, plan) == (plan, (f"no plan found, the old one is kept: {error}",))
    later, notes = decider.plan(problem, there, 31, None)
    assert later == Plan.uniform(len(there), batch_size=31, cut=1)
    assert notes == (("new plan: other limits hold",) if name == "hasfl" else ())


@pytest.mark.parametrize("error", [Infeasible("too small"), TargetUnreachable("too far")])
def test_it_is_kept_within_an_interval_too(error: Exception) -> None:
    """Fewer devices have more noise: what was feasible with one that left need not be without it."""

    def failing(now: Situation, cuts: IntN) -> IntN:
        raise error

    problem, plan = a_problem(), Plan([2, 4], [1, 1])
    there = np.array([0, 2])
    fewer = replace(problem, fleet=problem.fleet.only(there))
    decider = StrategyDecider(replace(pair("hasfl"), batch_rule=failing), Seeds(0))
    assert decider.rebatch(fewer, there, 2, plan) == (plan, (f"no plan found, the old one is kept: {error}",))
    assert decider.rebatch(fewer, there, 3, plan) == (plan, ())  # the same question is not asked twice


@pytest.mark.parametrize("error", [Infeasible("too small"), TargetUnreachable("too far")])
def test_without_a_plan_to_keep_devices_take_the_first_cut_and_what_fits(error: Exception) -> None:
    """The devices are others than before, and nothing good is known for them."""

    def failing(now: Situation) -> Plan:
        raise error

    problem = replace(a_problem(), max_batch=32)
    there = devices(problem)[1:]
    others = replace(problem, fleet=problem.fleet.only(there), samples=9 + there)
    decider = StrategyDecider(counting(failing)[0], Seeds(0))
    expected = Plan(9 + there, np.ones_like(there))
    assert decider.plan(others, there, 16, None) == (expected, (f"no good plan: {error}",))


def test_what_fits_nobody_is_an_error_in_any_round() -> None:
    problem = a_problem()
    tiny = replace(problem, fleet=replace(problem.fleet, memory=np.ones(len(problem.fleet))))
    with pytest.raises(Infeasible, match="B of memory"):
        StrategyDecider(counting(too_far)[0], Seeds(0)).plan(tiny, devices(tiny), 16, None)


@pytest.mark.parametrize("error", [Infeasible("too small"), TargetUnreachable("too far")])
@pytest.mark.parametrize("name", ["hasfl", "rbs+rms"])
def test_a_first_plan_that_cannot_be_found_is_an_error(error: Exception, name: str) -> None:
    def failing(now: Situation) -> Plan:
        raise error

    problem = a_problem()
    decider = StrategyDecider(replace(pair(name), together=failing), Seeds(0))
    with pytest.raises(type(error), match=str(error)):
        decider.plan(problem, devices(problem), 1, None)


def test_other_errors_are_not_hidden() -> None:
    def failing(now: Situation) -> Plan:
        raise InputError("a fault")

    problem = a_problem()
    decider, plan = StrategyDecider(counting(failing)[0], Seeds(0)), Plan.uniform(3, batch_size=1, cut=1)
    with pytest.raises(InputError, match="a fault"):
        decider.plan(problem, devices(problem), 16, plan)
