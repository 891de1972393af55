"""What rounds are worth: by the formula of the law, by hand, and summed round by round."""

from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.constants import BoundConstants, Constants, MeasuredConstants
from hasfl.goal import Goal
from hasfl.plan import Plan
from hasfl.training.forecaster import Forecaster
from tests.learning.simulations import simulation, unequal_fleet
from tests.report.runs import record

PLANS = [Plan([1, 1], [1, 1]), Plan([4, 2], [1, 2]), Plan([32, 32], [2, 2])]
SLOWNESS = {PLANS[0]: 7.0, PLANS[1]: 3.1, PLANS[2]: 1.25}
MEASURED = MeasuredConstants(
    rounds=50, noise=6, drift_of=[0.5, 1, 2, 4], skew_of=[0.1, 0.2, 0.3, 0.4], single_noise=1.5
)


@given(
    st.lists(st.sampled_from(PLANS), min_size=1, max_size=40), st.integers(1, 5), st.sampled_from([0, 3, 17])
)
def test_progress_is_a_sum_over_rounds(plans: list[Plan], interval: int, read: int) -> None:
    """Also where new constants change what all rounds were worth: here they halve B after a reading."""
    factor = [1.0]
    forecaster = Forecaster(
        goal=Goal(accuracy=0.8),
        evaluate_every=4,
        interval=interval,
        held_out=100,
        slowness=lambda round, plan: factor[0] * SLOWNESS[plan],
    )
    for t, plan in enumerate(plans, start=1):
        if t == read:
            factor[0] = 0.5
        constants = {"noise": 1.0} if t == read else None
        scores = {"held_out_accuracy": 0.01 * t, "held_out_loss": 1 / t}
        forecaster.watch(record(t, plan=plan, constants=constants, **scores))
        us = list(accumulate(1 / (factor[0] * SLOWNESS[each]) for each in plans[:t]))
        assert forecaster.progress == pytest.approx(us[-1], rel=1e-12)
        if t % 4 == 0:
            trend = forecaster.curves["accuracy"].trend
            assert trend is not None
            assert float(trend.x) == pytest.approx(np.log(us[-1]), rel=1e-12, abs=1e-12)


def forecaster_of(strategy: str, known: Constants | None, **settings: Any) -> Forecaster:
    made = simulation(strategy, unequal_fleet(), known_constants=known, **settings).training.forecaster
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("strategy", "plan", "expected"),
    [
        # 1 + skew_J + noise · mean n(b) · (1 + drift_J); all private layers of this model have batch norm.
        ("sfl", Plan([8, 8, 8, 8], [1, 1, 1, 1]), 1 + 0.1 + 6 / 8 * 1.5),
        ("hasfl", Plan([1, 2, 4, 4], [1, 3, 1, 2]), 1 + 0.6 + 6 * (1.5 + 0.5 + 0.25 + 0.25) / 4 * 4.5),
        ("fl", Plan([8, 8, 8, 8], [4, 4, 4, 4]), 1 + 1.0 + 6 / 8 * 8.5),
        ("fl", Plan([8, 8, 8, 1], [1, 1, 1, 1]), 1 + 1.0 + 6 * (3 / 8 + 1.5) / 4 * 8.5),
        ("sl", Plan([8], [2]), 1 + 0.3 + 6 / 8 * 2.5),
        ("cl", Plan([8, 8, 8, 8], [4, 4, 4, 4]), 1 + 6 / 8),
        ("cl", Plan([1, 2, 4, 4], [4, 4, 4, 4]), 1 + 6 * (1 + 0.5 + 0.25 + 0.25) / 4),
    ],
)
def test_a_round_counts_with_the_private_layers_of_its_paradigm(
    strategy: str, plan: Plan, expected: float
) -> None:
    assert forecaster_of(strategy, MEASURED).slowness(1, plan) == pytest.approx(expected, rel=1e-12)


def test_with_the_papers_constants_all_rounds_are_worth_the_same() -> None:
    bound = BoundConstants(smoothness=1, initial_gap=1, variance_of=np.ones(4), moment_of=np.ones(4))
    slowness = forecaster_of("sfl", bound).slowness
    assert [slowness(1, Plan.uniform(4, batch_size=b, cut=b)) for b in (1, 4)] == [1.0, 1.0]


def test_only_given_constants_know_the_rounds() -> None:
    """Constants that are read, and those that a run has read, do not know R∞."""
    assert forecaster_of("hasfl", MEASURED).endless == 50
    assert forecaster_of("hasfl", replace(MEASURED, rounds=1.0)).endless == 1
    assert forecaster_of("hasfl", MEASURED, rounds_known=False).endless is None
    assert forecaster_of("hasfl", None).endless is None
    assert forecaster_of("sfl", None).endless is None
