"""Progress, against a sum over rounds one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.constants import MeasuredConstants
from hasfl.forecasting.progress import Slowness, Stretch, progress
from hasfl.plan import Plan
from hasfl.theory.measured_rounds import MeasuredRounds
from tests.training.fakes import small_profile

STRETCHES = st.lists(
    st.builds(Stretch, st.integers(1, 9), st.builds(Slowness, st.floats(1, 5), st.floats(0, 50))),
    min_size=1,
    max_size=5,
)


@given(STRETCHES, st.lists(st.floats(0.1, 10), min_size=1, max_size=3))
def test_progress_is_a_sum_over_rounds(stretches: list[Stretch], factors: list[float]) -> None:
    each = [stretch.slowness for stretch in stretches for _ in range(stretch.rounds)]
    found = progress(stretches, np.arange(1.0, len(each) + 1), np.array(factors))
    for k, factor in enumerate(factors):
        slow = np.cumsum([1 / (one.fixed + factor * one.noisy) for one in each])
        assert found[:, k] == pytest.approx(slow)


@given(
    st.lists(st.integers(1, 64), min_size=3, max_size=3), st.lists(st.integers(1, 3), min_size=3, max_size=3)
)
def test_slowness_is_the_law(batch_sizes: list[int], cuts: list[int]) -> None:
    plan = Plan(batch_sizes, cuts)
    for noise in (1.0, 7.0):
        constants = MeasuredConstants(rounds=50, noise=noise, drift_of=[0.5, 1, 2], skew_of=[0.1, 0.2, 0.3])
        law = MeasuredRounds.with_constants(constants, small_profile(), devices=3, interval=5)
        slowness = Slowness.of(plan, law)
        assert slowness.whole == pytest.approx(float(law.rounds(plan.batch_sizes, plan.deepest_cut)) / 50)
        assert slowness.fixed == pytest.approx(1 + [0.1, 0.3, 0.6][plan.deepest_cut - 1])
        if noise == 1.0:
            one = slowness
    assert slowness.noisy == pytest.approx(7 * one.noisy)


def test_without_a_law_all_rounds_are_worth_the_same() -> None:
    assert Slowness.of(Plan([1, 64], [1, 2]), None) == Slowness(1.0, 0.0)
