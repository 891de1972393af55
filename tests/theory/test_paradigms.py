"""What a round costs under each way of training, against sums by hand."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given

from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.theory.latency import SplitTrainingLatency, split_training_latency
from hasfl.theory.paradigms import CENTRALISED, FEDERATED, SEQUENTIAL, SPLIT
from tests.generators import settings

TWO_DEVICES = Fleet(
    flops=np.array([10.0, 20.0]),
    up_rate=np.array([4.0, 8.0]),
    down_rate=np.array([2.0, 5.0]),
    fed_up_rate=np.ones(2),
    fed_down_rate=np.ones(2),
    memory=np.full(2, 1e9),
    server_flops=50.0,
    server_fed_up_rate=1.0,
    server_fed_down_rate=1.0,
)
THREE_LAYERS = Profile(
    forward_flops_upto=np.array([10.0, 30.0, 60.0]),
    backward_flops_upto=np.array([20.0, 60.0, 120.0]),
    activation_bits_at=np.array([8.0, 4.0, 2.0]),
    gradient_bits_at=np.array([8.0, 4.0, 2.0]),
    param_bits_upto=np.array([1.0, 2.0, 3.0]),
    optimizer_bits_upto=np.zeros(3),
)
PLAN = Plan(np.array([3, 2]), np.array([1, 2]))


def test_split_is_equation_38() -> None:
    parts = SPLIT.split_latency(PLAN, TWO_DEVICES, THREE_LAYERS)
    assert parts.up.tolist() == [3 * 10 / 10 + 3 * 8 / 4, 2 * 30 / 20 + 2 * 4 / 8]
    assert parts.server_forward == (3 * (60 - 10) + 2 * (60 - 30)) / 50
    assert parts.server_backward == (3 * (120 - 20) + 2 * (120 - 60)) / 50
    assert parts.down.tolist() == [3 * 8 / 2 + 3 * 20 / 10, 2 * 4 / 5 + 2 * 60 / 20]
    assert SPLIT.private_depth(PLAN, 3) == 2


def test_federated_devices_do_everything_and_nothing_travels() -> None:
    parts = FEDERATED.split_latency(PLAN, TWO_DEVICES, THREE_LAYERS)
    assert parts.device_forward.tolist() == [3 * 60 / 10, 2 * 60 / 20]
    assert parts.device_backward.tolist() == [3 * 120 / 10, 2 * 120 / 20]
    assert parts.total == 18 + 36
    assert not parts.activation_upload.any()
    assert not parts.gradient_download.any()
    assert parts.server_forward == parts.server_backward == 0
    assert FEDERATED.private_depth(PLAN, 3) == 3


def test_the_centralised_server_does_everything() -> None:
    parts = CENTRALISED.split_latency(PLAN, TWO_DEVICES, THREE_LAYERS)
    assert parts.server_forward == (3 + 2) * 60 / 50
    assert parts.server_backward == (3 + 2) * 120 / 50
    assert parts.total == pytest.approx(5 * 180 / 50)
    assert not parts.up.any()
    assert not parts.down.any()
    assert CENTRALISED.private_depth(PLAN, 3) == 0


def test_sequential_is_split_in_turns() -> None:
    assert SEQUENTIAL.in_turns
    assert not any(paradigm.in_turns for paradigm in (SPLIT, FEDERATED, CENTRALISED))
    assert same(
        SEQUENTIAL.split_latency(PLAN, TWO_DEVICES, THREE_LAYERS),
        split_training_latency(PLAN, TWO_DEVICES, THREE_LAYERS),
    )
    assert SEQUENTIAL.private_depth(PLAN, 3) == 2


@given(settings())
def test_federated_is_split_at_the_last_layer_without_traffic(setting: tuple[Problem, Plan]) -> None:
    problem, plan = setting
    at_the_end = Plan(plan.batch_sizes, np.full(len(plan), len(problem.profile)))
    split = SPLIT.split_latency(at_the_end, problem.fleet, problem.profile)
    federated = FEDERATED.split_latency(plan, problem.fleet, problem.profile)
    assert np.array_equal(federated.device_forward, split.device_forward)
    assert np.array_equal(federated.device_backward, split.device_backward)
    assert federated.total <= split.total


@given(settings())
def test_every_paradigm_tells_every_step_of_every_device(setting: tuple[Problem, Plan]) -> None:
    problem, plan = setting
    for paradigm in (SPLIT, FEDERATED, CENTRALISED, SEQUENTIAL):
        parts = paradigm.split_latency(plan, problem.fleet, problem.profile)
        assert parts.up.shape == parts.down.shape == (len(plan),)
        assert np.isfinite(parts.total)
        assert 0 <= paradigm.private_depth(plan, len(problem.profile)) <= len(problem.profile)


def same(one: SplitTrainingLatency, other: SplitTrainingLatency) -> bool:
    return all(np.array_equal(getattr(one, part.name), getattr(other, part.name)) for part in fields(one))
