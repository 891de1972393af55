"""Profiles, constants, plans and problems: what they derive and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from hasfl.constants import MeasuredConstants
from hasfl.errors import InputError
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.profile import Layer, Profile
from tests.generators import settings

LAYERS = [
    Layer(
        name=f"layer{j}",
        output_shape=(j,),
        forward_flops=10.0 * j,
        backward_flops=20.0 * j,
        activation_bits=3.0 * j,
        gradient_bits=5.0 * j,
        parameters=j,
        param_bits=7.0 * j,
        buffer_bits=1.0,
    )
    for j in (1, 2, 3)
]


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
def test_a_profile_sums_its_layers(optimizer: str, copies: int) -> None:
    profile = Profile.of(LAYERS, optimizer=optimizer)
    assert profile.forward_flops_upto.tolist() == [10, 30, 60]
    assert profile.backward_flops_upto.tolist() == [20, 60, 120]
    assert profile.activation_bits_at.tolist() == [3, 6, 9]
    assert profile.activation_bits_upto.tolist() == [3, 9, 18]
    assert profile.gradient_bits_upto.tolist() == [5, 15, 30]
    assert profile.param_bits_upto.tolist() == [8, 23, 45]
    assert profile.optimizer_bits_upto.tolist() == [7 * copies, 21 * copies, 42 * copies]
    assert profile.names == ("layer1", "layer2", "layer3")


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(InputError, match=r"optimizer must be one of sgd, .*adamw, got 'lion'"):
        Profile.of(LAYERS, optimizer="lion")


def test_a_cumulated_cost_that_falls_is_refused() -> None:
    profile = Profile.of(LAYERS)
    with pytest.raises(
        InputError, match=r"profile\.param_bits_upto\[2\] = 1 is below .*\[1\] = 5: it must be the sum"
    ):
        replace(profile, param_bits_upto=np.array([1.0, 5.0, 1.0]))


@given(settings())
def test_plans_are_equal_when_their_numbers_are(setting: tuple[Problem, Plan]) -> None:
    _, plan = setting
    twin = Plan(plan.batch_sizes.copy(), plan.cuts.copy())
    assert plan == twin
    assert hash(plan) == hash(twin)
    assert plan != Plan(plan.batch_sizes + 1, plan.cuts)
    assert plan != "plan"


@pytest.mark.parametrize(
    ("batch_sizes", "cuts", "message"),
    [
        ([1, 0], [1, 1], r"batch_sizes\[1\] must be at least 1, got 0"),
        ([1, 1], [1, -2], r"cuts\[1\] must be at least 1, got -2"),
        ([1, 1], [1], "cuts has 1 entries but batch_sizes has 2: give one per device"),
        ([1.5], [1], r"batch_sizes must be a list of whole numbers"),
        ([], [], r"batch_sizes must be a list of whole numbers"),
    ],
)
def test_plans_that_make_no_sense_are_refused(batch_sizes: list[int], cuts: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Plan(np.array(batch_sizes), np.array(cuts))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("learning_rate", 0.0, r"learning_rate must be a finite number above 0 .*, got 0.0"),
        ("target", np.nan, r"target must be a finite number above 0 .*, got nan"),
        ("interval", 0, "interval must be a whole number from 1 to 1,000,000,000, got 0"),
        ("interval", 1.5, "interval must be a whole number from 1 to 1,000,000,000, got 1.5"),
        ("max_batch", True, "max_batch must be a whole number from 1 to 1,000,000,000, got True"),
    ],
)
@given(setting=settings())
def test_problems_that_make_no_sense_are_refused(
    setting: tuple[Problem, Plan], field: str, value: object, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        replace(setting[0], **{field: value})


@given(settings())
def test_constants_must_be_for_the_same_model(setting: tuple[Problem, Plan]) -> None:
    problem, _ = setting
    longer = replace(
        problem.constants,
        variance_of=np.ones(len(problem.profile) + 1),
        moment_of=np.ones(len(problem.profile) + 1),
    )
    with pytest.raises(InputError, match=r"constants\.variance_of has .* entries but the profile has"):
        replace(problem, constants=longer)


MEASURED = {"rounds": 500.0, "noise": 20.0, "drift_of": [0.1, 0.0, 0.3]}


def test_measured_constants_sum_their_drift() -> None:
    constants = MeasuredConstants(**MEASURED)
    assert constants.drift_upto.tolist() == pytest.approx([0.1, 0.1, 0.4])
    assert (len(constants), constants.noise_error, constants.drift_error) == (3, 0.0, 0.0)
    unknown = MeasuredConstants.unknown(3)
    assert (unknown.rounds, unknown.noise, unknown.drift_of.tolist()) == (1.0, 0.0, [0.0] * 3)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rounds", 0.0, r"constants\.rounds must be a finite number above 0"),
        ("noise", -1.0, r"constants\.noise must be a finite number at least 0"),
        ("drift_of", [0.1, -0.1, 0.0], r"constants\.drift_of\[1\] must be a finite number at least 0"),
        ("drift_of", [], r"constants\.drift_of must be a list of at least one number"),
        ("noise_error", np.nan, r"constants\.noise_error must be a finite number at least 0"),
        ("drift_error", -0.1, r"constants\.drift_error must be a finite number at least 0"),
        ("skew_error", np.inf, r"constants\.skew_error must be a finite number at least 0"),
    ],
)
def test_measured_constants_that_make_no_sense_are_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        MeasuredConstants(**{**MEASURED, field: value})


@given(settings())
def test_a_target_belongs_to_the_papers_constants_alone(setting: tuple[Problem, Plan]) -> None:
    problem, _ = setting
    constants = MeasuredConstants.unknown(len(problem.profile))
    with pytest.raises(InputError, match="target is missing: the paper's constants need ε"):
        replace(problem, target=None)
    with pytest.raises(InputError, match="target must be left out where the constants are measured"):
        replace(problem, constants=constants)
    assert replace(problem, constants=constants, target=None).target is None
    longer = MeasuredConstants.unknown(len(problem.profile) + 1)
    with pytest.raises(InputError, match=r"constants\.drift_of has .* entries but the profile has"):
        replace(problem, constants=longer, target=None)
