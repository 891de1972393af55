"""What a learning curve says of the noise, on curves that were made with a known one."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.forecasting.curve import Evaluated, Standing
from hasfl.forecasting.noise_evidence import Evidence, noise_evidence
from hasfl.forecasting.progress import Slowness, Stretch, progress

ERROR = 0.02  # of z at an evaluation


def made(
    stretches: list[Stretch], factor: float, *, every: int = 10, seed: int | None = None
) -> list[Evaluated]:
    """Evaluations of a training whose noise is `factor` times what the stretches say; z is a line in ln u."""
    rounds = np.arange(every, sum(stretch.rounds for stretch in stretches) + 1, every)
    u = progress(stretches, rounds.astype(float), factor)
    drawn = (
        np.zeros(len(rounds))
        if seed is None
        else ERROR * np.random.default_rng(seed).normal(size=len(rounds))
    )
    z = -2 + 1.0 * np.log(u) + drawn
    return [Evaluated(int(t), Standing(float(each), ERROR)) for t, each in zip(rounds, z, strict=True)]


SMALL_THEN_LARGE = [Stretch(200, Slowness(1.0, 4.0)), Stretch(200, Slowness(1.0, 0.5))]
LARGE_THEN_SMALL = SMALL_THEN_LARGE[::-1]


@pytest.mark.parametrize("stretches", [SMALL_THEN_LARGE, LARGE_THEN_SMALL])
@pytest.mark.parametrize("factor", [0.4, 1.0, 2.5])
def test_a_known_factor_is_found(stretches: list[Stretch], factor: float) -> None:
    found = noise_evidence(stretches, made(stretches, factor), 0.7)
    assert found.says_something
    assert abs(found.log - math.log(factor)) < 2 * found.error
    posterior = found.log / found.error**2 / (1 / found.error**2 + 1 / 0.7**2)
    assert posterior == pytest.approx(math.log(factor), abs=max(0.25, 0.55 * abs(math.log(factor))))


def test_the_stated_error_is_the_real_one() -> None:
    """Over many noisy curves, deviations in stated errors are at most about one, and have no common side."""
    found = [
        noise_evidence(SMALL_THEN_LARGE, made(SMALL_THEN_LARGE, 1.6, seed=seed), 0.7) for seed in range(40)
    ]
    deviations = np.array([(each.log - math.log(1.6)) / each.error for each in found])
    assert np.sqrt((deviations**2).mean()) < 1.3
    assert abs(deviations.mean()) < 0.7


@given(st.integers(1, 6), st.floats(0, 30), st.floats(0.3, 3), st.integers(0, 1000))
def test_a_plan_that_never_changed_says_nothing(
    intervals: int, noisy: float, factor: float, seed: int
) -> None:
    stretches = [Stretch(60, Slowness(1.5, noisy))] * intervals
    assert noise_evidence(stretches, made(stretches, factor, seed=seed), 0.7) == Evidence(0.0, math.inf)


def test_plans_with_the_same_share_of_noise_say_nothing() -> None:
    stretches = [Stretch(100, Slowness(1.0, 2.0)), Stretch(100, Slowness(2.0, 4.0))]
    assert not noise_evidence(stretches, made(stretches, 2.0), 0.7).says_something


def test_a_noise_that_is_known_is_not_corrected() -> None:
    assert not noise_evidence(SMALL_THEN_LARGE, made(SMALL_THEN_LARGE, 2.0), 0.0).says_something


@pytest.mark.parametrize(("after", "says"), [(20, False), (22, False), (23, True)])
def test_few_evaluations_under_a_plan_say_nothing(after: int, says: bool) -> None:
    """The first 20 evaluations are under the first plan."""
    evaluations = made(SMALL_THEN_LARGE, 2.0)[:after]
    assert noise_evidence(SMALL_THEN_LARGE, evaluations, 0.7).says_something == says


def test_more_different_plans_say_more() -> None:
    alike = [Stretch(200, Slowness(1.0, 1.0)), Stretch(200, Slowness(1.0, 0.8))]
    near, far = (noise_evidence(each, made(each, 1.5), 0.7) for each in (alike, SMALL_THEN_LARGE))
    assert far.error < near.error
