"""The guard against plans that ruin a training: it fires where the loss stands still, and nowhere else."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from hasfl.plan import Decision, Plan
from hasfl.planning.strategies.decider import (
    LEAST_FALL,
    LEAST_ROUNDS,
    SMALL_BATCH,
    GuardedDecider,
    StrategyDecider,
    fall_of,
    stalls,
)
from hasfl.planning.tables import largest_batch_in_memory
from hasfl.problem import Problem
from hasfl.seeds import Seeds
from tests.planning.random_problems import measured
from tests.planning.situations import pair, roomy

I = 50  # noqa: E741  # rounds of an interval, as in the paper
LONG = LEAST_ROUNDS // I  # intervals after which the guard may fire
SEEDS = st.integers(0, 1000)


def a_problem(seed: int = 1, **changes: object) -> Problem:
    return replace(measured(roomy(seed), seed), max_batch=64, samples=None, **changes)


def small(problem: Problem, b: int = 2) -> Plan:
    return Plan.uniform(len(problem.fleet), batch_size=b, cut=1)


def guarded(plan: Plan) -> GuardedDecider:
    """A guard over a strategy that always answers with the same plan."""
    decider = StrategyDecider(replace(pair("hasfl"), together=lambda now: plan), Seeds(0))
    return GuardedDecider(decider, I)


def intervals(guard: GuardedDecider, problem: Problem, losses: list[float], first: int = 1) -> list[Decision]:
    """The decisions on plans; a loss is that of every round of an interval, and the last plan is unused."""
    devices, plan, decisions = np.arange(len(problem.fleet)), None, []
    for k, loss in enumerate([*losses, None]):
        decision = guard.plan(problem, devices, first + k * I, plan)
        decisions.append(decision)
        plan = decision.plan
        for _ in range(I if loss is not None else 0):
            guard.watch(loss)
    return decisions


def test_batches_are_doubled_where_the_loss_stands_still() -> None:
    problem = a_problem()
    plan = small(problem)
    decisions = intervals(guarded(plan), problem, [2.3] * (2 * LONG))
    batches = [int(decision.plan.batch_sizes[0]) for decision in decisions]
    assert batches == [2] * LONG + [4] * LONG + [8]
    assert all((decision.plan.cuts == plan.cuts).all() for decision in decisions)
    (note,) = decisions[LONG].notes
    assert note == (
        "batches doubled: the training loss did not fall from the middle third to the last third of the "
        f"past {LEAST_ROUNDS} rounds, so the batches are too small"
    )
    assert not decisions[LONG + 1].notes


def test_a_small_fall_is_named() -> None:
    problem = a_problem()
    losses = [2.0] * (2 * LONG // 3) + [1.9] * (LONG // 3)
    assert "fell by only 5.0 %" in intervals(guarded(small(problem)), problem, losses)[-1].notes[0]


@given(SEEDS, st.floats(LEAST_FALL + 0.01, 0.5), st.integers(1, 3 * LONG))
def test_no_guard_where_the_loss_falls(seed: int, fall: float, count: int) -> None:
    """Every history that is long enough to be judged has fallen by enough."""
    problem = a_problem()
    power = -np.log2(1 - fall)
    losses = [float((k + 1) ** -power) for k in range(count)]
    assume(all(fall_of(losses[:k]) >= LEAST_FALL for k in range(LONG, count + 1)))
    for decision in intervals(guarded(small(problem)), problem, losses):
        assert decision.plan == small(problem)


def test_a_plateau_that_is_short_is_no_stall() -> None:
    assert not stalls([1.0] * (LONG - 1), I)
    assert stalls([1.0] * LONG, I)
    assert not stalls([1.0, 1.0], LEAST_ROUNDS)


def test_large_batches_stay() -> None:
    problem = a_problem()
    decisions = intervals(guarded(small(problem, SMALL_BATCH)), problem, [1.0] * (3 * LONG))
    assert all((decision.plan.batch_sizes == SMALL_BATCH).all() for decision in decisions)


@given(SEEDS, st.integers(1, 15), st.integers(1, 5))
@hypothesis_settings(max_examples=40)
def test_enlarged_plans_fit(seed: int, b: int, doublings: int) -> None:
    """Doubled batches hold every limit that the plan held, and no batch becomes smaller."""
    problem = a_problem(seed)
    memory = problem.fleet.memory * 10.0 ** -np.arange(len(problem.fleet))
    problem = replace(problem, fleet=replace(problem.fleet, memory=memory))
    limit = np.minimum(largest_batch_in_memory(problem, np.zeros(len(memory), dtype=np.int64)), 64)
    if (limit < 1).any():
        return
    plan = Plan(np.minimum(b, limit).astype(np.int64), np.ones(len(memory), dtype=np.int64))
    for decision in intervals(guarded(plan), problem, [1.0] * (doublings * LONG)):
        assert (decision.plan.batch_sizes >= plan.batch_sizes).all()
        assert (decision.plan.batch_sizes <= limit).all()


def test_a_later_plan_is_enlarged_too() -> None:
    problem = a_problem()
    guard = guarded(small(problem))
    plan = intervals(guard, problem, [1.0] * LONG)[-1].plan
    faster = replace(problem, fleet=replace(problem.fleet, up_rate=2 * problem.fleet.up_rate))
    devices = np.arange(len(problem.fleet))
    assert (guard.plan(faster, devices, LEAST_ROUNDS + 1 + I, plan).plan.batch_sizes == 4).all()
    assert (guard.rebatch(faster, devices, LEAST_ROUNDS + 2 + I, plan).plan.batch_sizes == 4).all()


@pytest.mark.parametrize("stop", [1, LONG - 1, LONG, LONG + 1])
def test_resumed_equals_uninterrupted(stop: int) -> None:
    """Also where the pause falls within an interval: the losses of its first rounds are kept."""
    problem = a_problem()
    plan, losses = small(problem), [1.0] * (2 * LONG)
    whole = intervals(guarded(plan), problem, losses)
    first = guarded(plan)
    before = intervals(first, problem, losses[:stop])
    first.watch(1.0)
    later = guarded(plan)
    later.restore(json.loads(json.dumps(first.saved())), problem)
    assert later.newest == first.newest == [1.0]
    assert (later.losses, later.factor, later.chosen) == (first.losses, first.factor, first.chosen)
    devices, current, after = np.arange(len(problem.fleet)), before[-1].plan, []
    for k in range(stop, 2 * LONG):
        for _ in range(I - len(later.newest)):
            later.watch(1.0)
        after.append(later.plan(problem, devices, 1 + (k + 1) * I, current))
        current = after[-1].plan
    assert [each.plan for each in before + after] == [each.plan for each in whole]
