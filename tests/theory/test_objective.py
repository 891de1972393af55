"""Θ: from parts and by one formula; the margins of C1 and C4."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from hasfl.constants import BoundConstants
from hasfl.errors import InputError, TargetUnreachable
from hasfl.fleet import PER_DEVICE, PER_SERVER, Fleet
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.theory.objective import evaluate, margins
from tests.generators import settings
from tests.theory.test_latency import naive_aggregation_seconds, naive_split_seconds


def direct_objective(problem: Problem, plan: Plan) -> float:
    """Eq. (43) in one expression."""
    constants, gamma, interval = problem.constants, problem.learning_rate, problem.interval
    sampling = sum(variance / b for b in plan.batch_sizes for variance in constants.variance_of)
    moments = sum(constants.moment_of[j] for j in range(max(plan.cuts)))
    denominator = gamma * (
        problem.target
        - constants.smoothness * gamma * sampling / len(plan) ** 2
        - (interval > 1) * 4 * constants.smoothness**2 * gamma**2 * interval**2 * moments
    )
    seconds = naive_split_seconds(problem, plan) + naive_aggregation_seconds(problem, plan) / interval
    return float(2 * constants.initial_gap * seconds / denominator)


@given(settings())
def test_from_parts_equals_direct(setting: tuple[Problem, Plan]) -> None:
    problem, plan = setting
    report = evaluate(plan, problem)
    assert report.objective == pytest.approx(direct_objective(problem, plan), rel=1e-6)
    assert report.objective == report.rounds * report.round_seconds
    assert report.round_seconds == report.split_seconds + report.aggregation_seconds / problem.interval


@given(settings())
def test_memory_margin_is_what_c4_says(setting: tuple[Problem, Plan]) -> None:
    problem, plan = setting
    profile, margin = problem.profile, margins(plan, problem)
    for i in range(len(plan)):
        held = range(plan.cuts[i])
        activations = sum(profile.activation_bits_at[j] + profile.gradient_bits_at[j] for j in held)
        states = profile.optimizer_bits_upto[held[-1]] + profile.param_bits_upto[held[-1]]
        needed = plan.batch_sizes[i] * activations + states
        assert margin.memory[i] == pytest.approx(
            problem.fleet.memory[i] - needed, rel=1e-9, abs=1e-9 * (needed + problem.fleet.memory[i])
        )


@given(settings())
def test_a_plan_that_just_fills_the_memory_is_feasible_and_one_bit_less_is_not(
    setting: tuple[Problem, Plan],
) -> None:
    problem, plan = setting
    needed = problem.fleet.memory - margins(plan, problem).memory
    full = replace(problem, fleet=replace(problem.fleet, memory=np.ceil(needed) + 1))
    assert evaluate(plan, full).feasible
    short = np.ceil(needed) + 1
    short[-1] = needed[-1] * (1 - 1e-9) - 1e-4  # more than the rounding of a difference to 1e11
    assert not evaluate(plan, replace(problem, fleet=replace(problem.fleet, memory=short))).feasible


@given(settings())
def test_a_batch_above_the_largest_is_not_feasible(setting: tuple[Problem, Plan]) -> None:
    problem, plan = setting
    roomy = replace(problem, fleet=replace(problem.fleet, memory=np.full(len(plan), 1e15)))
    largest = int(plan.batch_sizes.max())
    assert evaluate(plan, replace(roomy, max_batch=largest)).feasible
    assert largest == 1 or not evaluate(plan, replace(roomy, max_batch=largest - 1)).feasible


@given(settings())
def test_the_target_margin_is_what_the_rounds_divide_by(setting: tuple[Problem, Plan]) -> None:
    problem, plan = setting
    report = evaluate(plan, problem)
    descended = 2 * problem.constants.initial_gap / (problem.learning_rate * report.rounds)
    assert report.margins.target == pytest.approx(descended, rel=1e-9)
    unreachable = replace(problem, target=(problem.target - report.margins.target) * (1 - 1e-9))
    with pytest.raises(TargetUnreachable):
        evaluate(plan, unreachable)


@given(settings())
def test_a_plan_for_another_fleet_or_model_is_refused(setting: tuple[Problem, Plan]) -> None:
    problem, plan = setting
    with pytest.raises(InputError, match=f"for {len(plan) + 1} devices but the fleet has {len(plan)}"):
        evaluate(Plan.uniform(len(plan) + 1, batch_size=1, cut=1), problem)
    layers = len(problem.profile)
    with pytest.raises(InputError, match=f"between 1 and {layers}, .* got {layers + 1}"):
        evaluate(Plan.uniform(len(plan), batch_size=1, cut=layers + 1), problem)


def test_c4_may_be_touched() -> None:
    profile = Profile(
        forward_flops_upto=np.array([1.0]),
        backward_flops_upto=np.array([1.0]),
        activation_bits_at=np.array([10.0]),
        gradient_bits_at=np.array([20.0]),
        param_bits_upto=np.array([300.0]),
        optimizer_bits_upto=np.array([600.0]),
    )
    ones = np.ones(1)
    rates = {field: ones for field in PER_DEVICE if field != "memory"}
    server = dict.fromkeys(PER_SERVER, 1.0)
    constants = BoundConstants(smoothness=1.0, initial_gap=1.0, variance_of=ones, moment_of=ones)

    def feasible(memory: float) -> bool:
        fleet = Fleet(**rates, memory=np.array([memory]), **server)
        problem = Problem(
            fleet=fleet, profile=profile, constants=constants, learning_rate=0.1, interval=1, target=1.0
        )
        return evaluate(Plan.uniform(1, batch_size=4, cut=1), problem).feasible

    assert feasible(4 * (10 + 20) + 300 + 600)
    assert not feasible(4 * (10 + 20) + 300 + 600 - 1)
