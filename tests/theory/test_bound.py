"""Theorem 1 and Corollary 1: the paper's insights as properties, and one value by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.constants import BoundConstants
from hasfl.errors import TargetUnreachable
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.theory.bound import Corollary1, Theorem1
from hasfl.theory.objective import rounds_needed
from tests.generators import settings


def rounds(problem: Problem, plan: Plan) -> float:
    return rounds_needed(plan, problem)


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
    bound = Corollary1.of(problem).bound.squared_gradient(plan, rounds(problem, plan))
    assert bound == pytest.approx(problem.target, rel=1e-9)


CONSTANTS = BoundConstants(
    smoothness=2.0, initial_gap=3.0, variance_of=np.array([4.0, 6.0]), moment_of=np.array([1.0, 5.0])
)
PLAN = Plan(np.array([2, 4]), np.array([1, 2]))
PROFILE = Profile(
    **dict.fromkeys(("activation_bits_at", "gradient_bits_at", "optimizer_bits_upto"), np.ones(2)),
    **dict.fromkeys(("forward_flops_upto", "backward_flops_upto", "param_bits_upto"), np.ones(2)),
)
BOUND = Theorem1.of(CONSTANTS, PROFILE, devices=2, learning_rate=0.1, interval=3)


def test_by_hand() -> None:
    # sampling = 2·0.1/4 · (10/2 + 10/4) = 0.375; drift = 4·4·0.01·9·6 = 8.64
    floor = BOUND.floor(PLAN)
    assert (floor.sampling, floor.drift) == pytest.approx((0.375, 8.64))
    # R = 2·3 / (0.1 · (10 − 9.015))
    found = Corollary1(BOUND, 10.0).rounds(PLAN.batch_sizes, 2)
    assert float(found) == pytest.approx(6 / (0.1 * 0.985))


@pytest.mark.parametrize("target", [9.015, 9.0, 1e-3])
def test_a_target_at_or_below_the_floor_is_refused_with_advice(target: float) -> None:
    with pytest.raises(
        TargetUnreachable, match=r"target .* floor 9.015 .*sampling 0.375, drift 8.64.* layer 2"
    ):
        Corollary1(BOUND, target).require_reachable(PLAN)
    assert np.isinf(Corollary1(BOUND, target).rounds(PLAN.batch_sizes, 2))


def test_a_target_at_the_floor_up_to_rounding_is_out_of_reach() -> None:
    at_the_floor = np.nextafter(BOUND.floor(PLAN).total, np.inf)
    with pytest.raises(TargetUnreachable):
        Corollary1(BOUND, float(at_the_floor)).require_reachable(PLAN)
    above = BOUND.floor(PLAN).total * (1 + 1e-9)
    Corollary1(BOUND, above).require_reachable(PLAN)


def test_a_single_sample_has_its_price_where_a_private_layer_has_batch_norm() -> None:
    # layer 2 has batch norm: cuts of 1 leave it common, and 1/b counts; a deepest cut of 2 makes it private
    normed = replace(PROFILE, batch_norm_of=np.array([False, True]))
    constants = replace(CONSTANTS, single_noise=3.0)
    bound = Theorem1.of(constants, normed, devices=2, learning_rate=0.1, interval=3)
    singles = np.array([1, 4])
    # sampling = 2·0.1/4 · 10 · (1 + 1/4), or (3 + 1/4)
    assert bound.floor(Plan(singles, np.array([1, 1]))).sampling == pytest.approx(0.625)
    assert bound.floor(Plan(singles, np.array([1, 2]))).sampling == pytest.approx(1.625)
    assert bound.floor(PLAN).sampling == pytest.approx(0.375)
