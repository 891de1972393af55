"""The plan with one cut and batch sizes in proportion to speed, against the exact planner."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.errors import Infeasible
from hasfl.fleet import PER_DEVICE
from hasfl.planning.exact.planner import best_plan
from hasfl.planning.strategies.rules import proportional, proportional_batches
from hasfl.planning.tables import CostTables
from hasfl.theory.objective import evaluate
from tests.planning.random_problems import measured
from tests.planning.situations import hopeless, only, random_situation, roomy, situation

SEEDS = st.integers(0, 10_000)


@given(SEEDS)
def test_it_is_feasible_and_never_better_than_the_best_plan(seed: int) -> None:
    now = random_situation(seed)
    now = replace(now, problem=measured(now.problem, seed))
    try:
        plan = proportional(now)
    except Infeasible:
        with pytest.raises(Infeasible):
            best_plan(now.problem)
        return
    assert len(set(plan.cuts.tolist())) == 1
    report = evaluate(plan, now.problem)
    assert report.feasible
    assert report.objective >= best_plan(now.problem, gap=1e-6).objective * (1 - 1e-5)


@given(SEEDS)
def test_a_quicker_device_never_gets_fewer_samples(seed: int) -> None:
    now = situation(measured(roomy(seed), seed))
    plan = proportional(now)
    tables = CostTables.of(now.problem)
    seconds = (tables.up_seconds + tables.down_seconds)[np.arange(len(plan)), plan.cut_index]
    assert (np.diff(plan.batch_sizes[np.argsort(seconds)]) <= 0).all()
    assert (proportional_batches(now, plan.cuts) == plan.batch_sizes).all()


def test_equal_devices_get_equal_batches_and_the_best_cut_for_these() -> None:
    problem = measured(roomy(4), 4)
    first = {field: np.full(len(problem.fleet), getattr(problem.fleet, field)[0]) for field in PER_DEVICE}
    now = situation(replace(problem, fleet=replace(problem.fleet, **first)))
    plan = proportional(now)
    assert len(set(plan.batch_sizes.tolist())) == 1
    found = evaluate(plan, now.problem).objective
    for cut in range(1, len(problem.profile) + 1):
        cuts = np.full(len(problem.fleet), cut)
        other = replace(plan, cuts=cuts, batch_sizes=proportional_batches(now, cuts))
        assert found <= evaluate(other, now.problem).objective


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(Infeasible, match="reach the target"):
        proportional(situation(hopeless(roomy(2))))
    tiny = roomy(2)
    none = replace(tiny, fleet=replace(tiny.fleet, memory=np.ones(len(tiny.fleet))))
    with pytest.raises(Infeasible, match="of memory"):
        proportional(only(situation(none), np.array([0])))
