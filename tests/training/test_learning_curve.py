"""Learning curves: the filter against the Gaussian process that it filters, and when a goal is reached."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.training.learning_curve import (
    PULL,
    SLOPE_ERROR,
    SPREAD,
    USUAL_SLOPE,
    WANDER,
    Course,
    Curve,
    Standing,
    Trend,
    of_accuracy,
    of_loss,
    passage,
)

STEPS = 4000  # of the slow way


def slow_moments(
    way: float, level: float, slope: float, variances: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of (z, slope) after a way, in very many small steps of the two equations."""
    dx = way / STEPS
    move = np.array([[1.0, dx], [0.0, 1 - PULL * dx]])
    mean, covariance = np.array([level, slope]), variances
    for _ in range(STEPS):
        mean = move @ mean + [0.0, PULL * USUAL_SLOPE * dx]
        covariance = move @ covariance @ move.T + np.diag([0.0, WANDER**2 * dx])
    return mean, covariance


@given(st.floats(0.01, 5.0), st.floats(-3, 3), st.floats(-1, 4))
def test_a_trend_moves_as_its_equations_say(way: float, level: float, slope: float) -> None:
    trend = Trend(*(np.asarray(v) for v in (0.7, level, slope, 0.09, 0.02, 0.16)))
    mean, covariance = slow_moments(way, level, slope, np.array([[0.09, 0.02], [0.02, 0.16]]))
    moved = trend.at(0.7 + way)
    assert [moved.level, moved.slope] == pytest.approx(mean, abs=5e-3)
    ours = [moved.level_variance, moved.covariance, moved.slope_variance]
    assert ours == pytest.approx(covariance[[0, 0, 1], [0, 1, 1]], rel=5e-3)


@given(st.lists(st.floats(0.01, 2.0), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_the_filter_is_the_conditional_gaussian(ways: list[float], seed: int) -> None:
    """All evaluations at once, by the covariance matrix of z at all x, and by the filter one by one."""
    rng = np.random.default_rng(seed)
    xs = np.cumsum([0.0, *ways])
    read = [
        Standing(z, e)
        for z, e in zip(rng.normal(0, 1, len(xs)), rng.uniform(0.05, 0.5, len(xs)), strict=True)
    ]
    first = read[0]
    starts = [Trend.begun(0.0, first).at(x) for x in xs]
    means = np.array([float(start.level) for start in starts])
    # From x_a on, z is carried on by z and slope at x_a; what comes on top does not depend on them.
    covariance = np.zeros((len(xs), len(xs)))
    for a, start in enumerate(starts):
        for b in range(a, len(xs)):
            carried = -math.expm1(-PULL * (xs[b] - xs[a])) / PULL
            covariance[a, b] = covariance[b, a] = start.level_variance + carried * start.covariance
    gain = covariance[:, 1:] @ np.linalg.inv(
        covariance[1:, 1:] + np.diag([each.error**2 for each in read[1:]])
    )
    surprise = np.array([each.z for each in read[1:]]) - means[1:]
    trend = Trend.begun(0.0, first)
    for x, each in zip(xs[1:], read[1:], strict=True):
        trend = trend.at(x).reading(each)
    assert float(trend.level) == pytest.approx((means + gain @ surprise)[-1], abs=1e-8)
    assert float(trend.level_variance) == pytest.approx(
        (covariance - gain @ covariance[1:])[-1, -1], abs=1e-8
    )


def test_many_trends_at_once_are_each_of_them() -> None:
    xs = np.array([0.3, 1.1, 2.0])
    together = Trend.begun(0.0, Standing(0.1, 0.2)).at(xs).reading(Standing(1.0, 0.3))
    for k, x in enumerate(xs):
        alone = Trend.begun(0.0, Standing(0.1, 0.2)).at(x).reading(Standing(1.0, 0.3))
        assert float(alone.level) == together.level[k]
        assert float(alone.slope_variance) == together.slope_variance[k]


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 10_000))
def test_a_better_accuracy_stands_higher(one: float, other: float, samples: int) -> None:
    lower, higher = sorted((one, other))
    assert of_accuracy(lower, samples).z <= of_accuracy(higher, samples).z
    assert of_accuracy(one, samples).z == pytest.approx(-of_accuracy(1 - one, samples).z, abs=1e-6)


@given(st.floats(1e-6, 50))
def test_a_loss_stands_where_its_probability_stands(loss: float) -> None:
    q = math.exp(-loss)
    expected = math.log(q) - math.log1p(-q)
    assert of_loss(loss, 100).z == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_more_samples_tell_more() -> None:
    for standing in (of_accuracy, of_loss):
        errors = [standing(0.4, samples).error for samples in (10, 100, 10_000)]
        assert errors == sorted(errors, reverse=True)
        assert errors[0] > 2 * errors[2]


@pytest.mark.parametrize("value", [0.0, 1.0, -0.5, 1.5])
def test_scores_at_the_edge_stay_finite(value: float) -> None:
    assert all(map(math.isfinite, of_accuracy(value, 20)))
    assert all(map(math.isfinite, of_loss(value, 20)))


def test_a_curve_learns_its_slope() -> None:
    """Exact evaluations on a line: the slope is found, and it is known far better than before."""
    curve = Curve(Standing(3.0, 0.1))
    for t in range(1, 40):
        curve.read(t, Standing(0.5 * math.log(t), 1e-3), float(t))
    assert curve.trend is not None
    assert float(curve.trend.slope) == pytest.approx(0.5, abs=0.05)
    assert float(curve.trend.slope_variance) < SLOPE_ERROR**2 / 4
    assert curve.rounds == list(range(1, 40))


# When a goal is reached, against curves that are drawn at random from the model.

CERTAIN = 1e-6


def line(slope: float, at: float) -> Trend:
    """A trend that is known well: z = 0 now."""
    return Trend(*(np.asarray(v) for v in (math.log(at), 0.0, slope, 1e-12, 0.0, 1e-12)))


@given(st.floats(1, 10), st.integers(1, 20), st.floats(0.2, 2.0))
def test_a_sure_curve_passes_at_the_first_evaluation_beyond(slowness: float, every: int, goal: float) -> None:
    """With the usual slope nothing bends the curve: it passes where z = USUAL_SLOPE ln(u/u_now)."""
    course = Course(40, 40 / slowness, slowness, 40, every)
    found = passage(line(USUAL_SLOPE, course.progress), Standing(goal, CERTAIN), course).rounds
    exact = 40 * math.exp(goal / USUAL_SLOPE)
    assert (found - 40) % every == 0
    assert exact - 1e-3 <= found < exact + every + 1e-3


def test_the_plan_to_come_sets_the_pace() -> None:
    """Rounds that are worth half as much take twice as many."""
    trend, goal = line(USUAL_SLOPE, 40.0), Standing(1.0, CERTAIN)
    fast, slow = (passage(trend, goal, Course(40, 40.0, B, 40, 1)).rounds for B in (1.0, 2.0))
    assert slow - 40 == pytest.approx(2 * (fast - 40), abs=2)


def test_evaluations_keep_their_beat() -> None:
    """The next evaluation comes so many rounds after the last one, whichever round it is now."""
    found = passage(line(USUAL_SLOPE, 47.0), Standing(0.0, CERTAIN), Course(47, 47.0, 1.0, 40, 10))
    assert found.rounds == 50


def test_a_curve_that_falls_is_out_of_sight() -> None:
    trend = Trend(*(np.asarray(v) for v in (math.log(10), -30.0, 0.0, 1e-12, 0.0, 1e-12)))
    assert passage(trend, Standing(3.0, 0.1), Course(10, 10.0, 1.0, 10, 5)).rounds == math.inf


@given(st.floats(-1, 2), st.floats(0.05, 0.4), st.floats(0.1, 3.0))
def test_the_range_holds_the_forecast(z: float, error: float, away: float) -> None:
    trend = Trend.begun(math.log(30.0), Standing(z, error))
    found = passage(trend, Standing(z + away, error), Course(30, 30.0, 1.0, 30, 15))
    assert 45 <= found.fewest <= found.rounds <= found.most


def test_against_drawn_curves() -> None:
    """Half of the drawn curves pass before the forecast, and as many within the range as its width says."""
    rng, curves, every, evaluations = np.random.default_rng(5), 4000, 10, 400
    trend = Trend(*(np.asarray(v) for v in (math.log(100), 0.0, 0.9, 0.0, 0.0, 0.02)))
    goal, course = Standing(1.2, 0.1), Course(100, 100.0, 1.0, 100, every)
    rounds = course.rounds + every * np.arange(1, evaluations + 1)
    z, slope, before = np.zeros(curves), rng.normal(0.9, math.sqrt(0.02), curves), course.rounds
    passed = np.full(curves, np.inf)
    for t in rounds:
        for part in range(4):  # small steps of the two equations
            dx = math.log(before + (t - before) * (part + 1) / 4) - math.log(before + (t - before) * part / 4)
            z = z + slope * dx
            slope = (
                slope + PULL * (USUAL_SLOPE - slope) * dx + WANDER * math.sqrt(dx) * rng.normal(size=curves)
            )
        reached = z + goal.error * rng.normal(size=curves) >= goal.z
        passed = np.where(reached & np.isinf(passed), t, passed)
        before = int(t)
    found = passage(trend, goal, course)
    assert np.mean(passed <= found.rounds) == pytest.approx(0.5, abs=0.12)
    inside = np.mean((passed >= found.fewest) & (passed <= found.most))
    assert inside == pytest.approx(math.erf(SPREAD / math.sqrt(2)), abs=0.03)


def test_a_far_goal_is_found_among_very_many_evaluations() -> None:
    """Far ahead not every evaluation is looked at, and the forecast is right to a per cent."""
    course = Course(50_000, 50_000.0, 1.0, 50_000, 1)
    found = passage(line(USUAL_SLOPE, 50_000.0), Standing(3.0, CERTAIN), course).rounds
    assert found == pytest.approx(50_000 * math.exp(3.0 / USUAL_SLOPE), rel=0.01)
