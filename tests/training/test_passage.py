"""When a goal is reached, against curves that are drawn at random from the model."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.training.learning_curve import PULL, SPREAD, USUAL_SLOPE, WANDER, Course, Standing, Trend, passage

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
