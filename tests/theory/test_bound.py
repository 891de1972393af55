"""Theorem 1 and Corollary 1: the paper's insights as properties, and one value by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.errors import TargetUnreachable
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.profile import GradientStats
from hasfl.theory.bound import bound_floor, gradient_bound, rounds_to_target
from tests.generators import settings


def rounds(problem: Problem, plan: Plan) -> float:
    return rounds_to_target(
        plan,
        problem.stats,
        learning_rate=problem.learning_rate,
        interval=problem.interval,
        target=problem.target,
    )


@given(settings(), st.data())
def test_insight_1_more_samples_never_need_more_rounds(
    setting: tuple[Problem, Plan], data: st.DataObject
) -> None:
    problem, plan = setting
    added = data.draw(st.lists(st.integers(0, 100), min_size=len(plan), max_size=len(plan)))
    larger = Plan(plan.batch_sizes + np.array(added), plan.cuts)
    assert rounds(problem, larger) <= rounds(problem, plan) * (1 + 1e-12)


@given(settings(), st.permutations(range(6)))
def test_insight_1_devices_compensate_for_each_other(setting: tuple[Problem, Plan], order: list[int]) -> None:
    problem, plan = setting
    shuffled = Plan(plan.batch_sizes[[i for i in order if i < len(plan)]], plan.cuts)
    assert rounds(problem, shuffled) == pytest.approx(rounds(problem, plan), rel=1e-9)


@given(settings(), st.data())
def test_insight_2_only_the_deepest_cut_matters_and_deeper_is_not_better(
    setting: tuple[Problem, Plan], data: st.DataObject
) -> None:
    problem, plan = setting
    shallower = [data.draw(st.integers(1, int(cut))) for cut in plan.cuts]
    assert rounds(problem, Plan(plan.batch_sizes, np.array(shallower))) <= rounds(problem, plan) * (1 + 1e-12)
    levelled = Plan(plan.batch_sizes, np.full(len(plan), plan.deepest_cut))
    assert rounds(problem, levelled) == rounds(problem, plan)


@given(settings(), st.data())
def test_insight_2_with_interval_1_the_cut_does_not_matter(
    setting: tuple[Problem, Plan], data: st.DataObject
) -> None:
    problem, plan = setting
    every_round = replace(problem, interval=1)
    cuts = data.draw(st.lists(st.integers(1, len(problem.profile)), min_size=len(plan), max_size=len(plan)))
    assert rounds(every_round, Plan(plan.batch_sizes, np.array(cuts))) == rounds(every_round, plan)


@given(settings())
def test_corollary_1_inverts_theorem_1(setting: tuple[Problem, Plan]) -> None:
    problem, plan = setting
    bound = gradient_bound(
        plan,
        problem.stats,
        learning_rate=problem.learning_rate,
        interval=problem.interval,
        rounds=rounds(problem, plan),
    )
    assert bound == pytest.approx(problem.target, rel=1e-9)


STATS = GradientStats(
    smoothness=2.0, initial_gap=3.0, variance_of=np.array([4.0, 6.0]), moment_of=np.array([1.0, 5.0])
)
PLAN = Plan(np.array([2, 4]), np.array([1, 2]))


def test_by_hand() -> None:
    # sampling = 2·0.1/4 · (10/2 + 10/4) = 0.375; drift = 4·4·0.01·9·6 = 8.64
    floor = bound_floor(PLAN, STATS, learning_rate=0.1, interval=3)
    assert (floor.sampling, floor.drift) == pytest.approx((0.375, 8.64))
    # R = 2·3 / (0.1 · (10 − 9.015))
    found = rounds_to_target(PLAN, STATS, learning_rate=0.1, interval=3, target=10.0)
    assert found == pytest.approx(6 / (0.1 * 0.985))


@pytest.mark.parametrize("target", [9.015, 9.0, 1e-3])
def test_a_target_at_or_below_the_floor_is_refused_with_advice(target: float) -> None:
    with pytest.raises(
        TargetUnreachable, match=r"target .* floor 9.015 .*sampling 0.375, drift 8.64.* layer 2"
    ):
        rounds_to_target(PLAN, STATS, learning_rate=0.1, interval=3, target=target)
