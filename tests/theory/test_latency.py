"""Latency against a naive double loop, and the laws that any latency must obey."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.fleet import PER_DEVICE, PER_SERVER
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.theory.latency import (
    aggregation_latency,
    mean_round_latency,
    split_training_latency,
    training_latency,
)
from tests.generators import settings


def naive_split_seconds(problem: Problem, plan: Plan) -> float:
    """T_S by the letter of Eqs. (28)-(33) and (38), with μ as a matrix of zeros and ones."""
    fleet, profile = problem.fleet, problem.profile
    layers = range(len(profile))
    rho, varpi = profile.forward_flops_upto, profile.backward_flops_upto
    up, down, server_forward, server_backward = [], [], 0.0, 0.0
    for i in range(len(fleet)):
        mu = [1 if j + 1 == plan.cuts[i] else 0 for j in layers]
        b = plan.batch_sizes[i]
        forward = b * sum(mu[j] * rho[j] for j in layers) / fleet.flops[i]
        backward = b * sum(mu[j] * varpi[j] for j in layers) / fleet.flops[i]
        upload = b * sum(mu[j] * profile.activation_bits_at[j] for j in layers) / fleet.up_rate[i]
        download = b * sum(mu[j] * profile.gradient_bits_at[j] for j in layers) / fleet.down_rate[i]
        server_forward += sum(b * mu[j] * (rho[-1] - rho[j]) for j in layers)
        server_backward += sum(b * mu[j] * (varpi[-1] - varpi[j]) for j in layers)
        up.append(forward + upload)
        down.append(download + backward)
    return float(max(up) + (server_forward + server_backward) / fleet.server_flops + max(down))


def naive_aggregation_seconds(problem: Problem, plan: Plan) -> float:
    """T_A by the letter of Eqs. (34)-(37) and (39)."""
    fleet, devices = problem.fleet, range(len(problem.fleet))
    weights, states = problem.profile.param_bits_upto, problem.profile.optimizer_bits_upto
    delta = [weights[plan.cuts[i] - 1] + states[plan.cuts[i] - 1] for i in devices]
    middle = len(delta) * max(delta) - sum(delta)
    up = max(*(delta[i] / fleet.fed_up_rate[i] for i in devices), middle / fleet.server_fed_up_rate)
    down = max(*(delta[i] / fleet.fed_down_rate[i] for i in devices), middle / fleet.server_fed_down_rate)
    return float(up + down)


def split_seconds(problem: Problem, plan: Plan) -> float:
    return split_training_latency(plan, problem.fleet, problem.profile).total


def aggregation_seconds(problem: Problem, plan: Plan) -> float:
    return aggregation_latency(plan, problem.fleet, problem.profile).total


@given(settings())
def test_equals_the_naive_double_loop(setting: tuple[Problem, Plan]) -> None:
    assert split_seconds(*setting) == pytest.approx(naive_split_seconds(*setting), rel=1e-9)
    # a difference of sums of large numbers: what is left of it is as exact as those numbers are
    largest = len(setting[1]) * setting[0].profile.submodel_bits_upto[-1]
    slack = 1e-12 * largest / min(setting[0].fleet.server_fed_up_rate, setting[0].fleet.server_fed_down_rate)
    assert aggregation_seconds(*setting) == pytest.approx(
        naive_aggregation_seconds(*setting), rel=1e-9, abs=slack
    )


@given(settings(), st.integers(2, 9))
def test_is_linear_in_the_batch_sizes(setting: tuple[Problem, Plan], factor: int) -> None:
    problem, plan = setting
    larger = Plan(plan.batch_sizes * factor, plan.cuts)
    assert split_seconds(problem, larger) == pytest.approx(factor * split_seconds(problem, plan), rel=1e-9)
    assert aggregation_seconds(problem, larger) == aggregation_seconds(problem, plan)


@given(settings(), st.sampled_from([*PER_DEVICE, *PER_SERVER]), st.floats(1, 100), st.data())
def test_a_faster_device_or_link_never_lengthens_a_round(
    setting: tuple[Problem, Plan], field: str, factor: float, data: st.DataObject
) -> None:
    problem, plan = setting
    before = getattr(problem.fleet, field)
    if field in PER_DEVICE:
        upgraded = np.array(before)
        upgraded[data.draw(st.integers(0, len(upgraded) - 1))] *= factor
    else:
        upgraded = before * factor
    faster = replace(problem, fleet=replace(problem.fleet, **{field: upgraded}))
    assert split_seconds(faster, plan) <= split_seconds(problem, plan)
    assert aggregation_seconds(faster, plan) <= aggregation_seconds(problem, plan)


@given(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3), st.integers(1, 10_000), st.integers(1, 50))
def test_the_floor_counts_whole_aggregations(
    split: float, aggregation: float, rounds: int, interval: int
) -> None:
    counted = rounds * split + (rounds // interval) * aggregation
    with_floor = training_latency(split, aggregation, rounds=rounds, interval=interval)
    without = rounds * mean_round_latency(split, aggregation, interval=interval)
    assert with_floor == pytest.approx(counted)
    assert with_floor <= without * (1 + 1e-12)
    assert without - with_floor <= aggregation * (1 + 1e-9) + 1e-9 * without
    if rounds % interval == 0:
        assert math.isclose(with_floor, without, rel_tol=1e-12, abs_tol=1e-12)


@given(settings())
def test_parts_add_up(setting: tuple[Problem, Plan]) -> None:
    problem, plan = setting
    split = split_training_latency(plan, problem.fleet, problem.profile)
    assert all((np.asarray(getattr(split, part.name)) >= 0).all() for part in fields(split))
    slowest = max(split.device_forward + split.activation_upload)
    assert split.total >= slowest
    assert (split.up + split.down <= split.total * (1 + 1e-12)).all()
