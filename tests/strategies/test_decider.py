"""A strategy at work: questions that stay the same are searched once, with or without a pause between."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hasfl.errors import TargetUnreachable
from hasfl.plan import Plan
from hasfl.planning.exact.planner import best_plan
from hasfl.problem import Problem
from hasfl.seeds import Seeds
from hasfl.strategies.catalogue import strategy
from hasfl.strategies.decider import StrategyDecider
from hasfl.strategies.situation import Situation
from hasfl.strategies.strategy import Strategy
from hasfl.theory.objective import evaluate
from tests.planning.random_problems import measured
from tests.strategies.situations import roomy

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

    return replace(strategy("hasfl"), together=together), asked


def best(now: Situation) -> Plan:
    return best_plan(now.problem, gap=1e-2, start=now.start).plan


def test_the_same_question_is_searched_once() -> None:
    counted, asked = counting(best)
    decider, problem = StrategyDecider(counted, Seeds(0)), a_problem()
    plan = None
    for t in (1, 16, 31):
        plan = decider.plan(problem, devices(problem), t, plan)
        assert decider.rebatch(problem, devices(problem), t + 1, plan) is plan
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
        taken = [decider.plan(problem, devices(problem), t, old) for t in (3, 10**9 + 1)]
        assert asked == [3]
        assert taken[0] in (old, decider.found)
        if taken[0] != taken[1]:
            assert taken == [old, decider.found]
            assert evaluate(taken[1], problem).objective < evaluate(old, problem).objective
            waited += 1
    assert waited > 3


@pytest.mark.parametrize("pause", [False, True])
def test_a_question_without_an_answer_is_searched_again_only_by_the_next_interval(pause: bool) -> None:
    def none(now: Situation) -> Plan:
        raise TargetUnreachable("too far")

    problem = a_problem()
    counted, asked = counting(best)
    decider = StrategyDecider(counted, Seeds(0))
    plan = decider.plan(problem, devices(problem), 1, None)
    other = replace(problem, max_batch=7)
    decider.strategy, failing = counting(none)
    for t in (16, 31):
        with pytest.raises(TargetUnreachable):
            decider.plan(other, devices(problem), t, plan)
        if pause:
            saved = json.loads(json.dumps(decider.saved()))
            decider = StrategyDecider(decider.strategy, Seeds(0))
            decider.restore(saved)
            decider.answer(other)
        assert decider.found is None, "a plan for another problem"
        assert decider.rebatch(other, devices(problem), t + 1, plan) is plan
    assert (asked, failing) == ([1], [16, 31])


def test_a_pause_changes_no_answer() -> None:
    """Neither the plan that was kept nor the better one that waits."""
    for seed in range(20):
        problem = a_problem(seed)
        old = Plan.uniform(len(problem.fleet), batch_size=2, cut=1)
        counted, asked = counting(best)
        whole = StrategyDecider(counted, Seeds(0))
        plan = whole.plan(problem, devices(problem), 16, old)
        resumed = StrategyDecider(counted, Seeds(0))
        resumed.restore(json.loads(json.dumps(whole.saved())))
        resumed.answer(problem)
        assert resumed.found == whole.found
        for t in (31, 10**6 + 1):
            after = [each.plan(problem, devices(problem), t, plan) for each in (whole, resumed)]
            assert after[0] == after[1]
        assert asked == [16]


def test_a_device_that_leaves_is_a_new_question() -> None:
    problem = a_problem()
    counted, asked = counting(best)
    decider = StrategyDecider(counted, Seeds(0))
    plan = decider.plan(problem, devices(problem), 1, None)
    there = devices(problem)[:-1]
    fewer = replace(problem, fleet=problem.fleet.only(there))
    kept = Plan(plan.batch_sizes[:-1], plan.cuts[:-1])
    rebatched = decider.rebatch(fewer, there, 2, kept)
    assert np.array_equal(rebatched.cuts, kept.cuts)
    assert decider.rebatch(fewer, there, 3, rebatched) is rebatched
    decider.plan(fewer, there, 16, rebatched)
    assert asked == [1, 16]


def test_a_plan_that_shall_stay_stays_while_it_fits() -> None:
    """Whatever else is better by then; not a draw, and not before."""
    changed = 0
    for seed in range(20):
        problem = a_problem(seed)
        there, old = devices(problem), Plan.uniform(len(problem.fleet), batch_size=2, cut=1)
        free, staying = (StrategyDecider(strategy("hasfl"), Seeds(0), stays_after=n) for n in (None, 61))
        early, late = (staying.plan(problem, there, t, old) for t in (61, 10**6))
        assert early == free.plan(problem, there, 61, old)
        assert late is old
        changed += free.plan(problem, there, 10**6, old) != old
        tight = replace(problem, max_batch=1)
        assert staying.rebatch(problem, there, 10**6, old) is old
        assert staying.rebatch(tight, there, 10**6, old).batch_sizes.max() == 1
        assert staying.plan(tight, there, 10**6, old).batch_sizes.max() == 1
        drawing = StrategyDecider(strategy("rbs+rms"), Seeds(0), stays_after=61)
        assert len({drawing.plan(problem, there, t, old) for t in range(100, 120)}) > 1
    assert changed > 3


def test_batches_that_were_enlarged_for_an_end_stay_large_as_far_as_they_fit() -> None:
    """Also when a device leaves in the middle, or memory shrinks."""
    problem = a_problem()
    decider = StrategyDecider(strategy("hasfl"), Seeds(0))
    usual = decider.plan(problem, devices(problem), 1, None)
    decider.before_ending = usual
    there = devices(problem)[:-1]
    fewer = replace(problem, fleet=problem.fleet.only(there), max_batch=usual.batch_sizes.max() + 5)
    larger = Plan(usual.batch_sizes[:-1] + np.where(there == 0, 3, 9), usual.cuts[:-1])
    rebatched = decider.rebatch(fewer, there, 2, larger)
    assert np.array_equal(rebatched.cuts, larger.cuts)
    assert rebatched.batch_sizes.tolist() == np.minimum(larger.batch_sizes, fewer.max_batch).tolist()
    assert decider.rebatch(fewer, there, 3, rebatched) is rebatched


@pytest.mark.parametrize("name", ["rbs+hams", "habs+rms", "rbs+rms"])
def test_what_is_drawn_is_drawn_anew(name: str) -> None:
    problem = a_problem()
    decider = StrategyDecider(strategy(name), Seeds(0))
    plans = {decider.plan(problem, devices(problem), t, None) for t in range(1, 12)}
    assert len(plans) > 5
