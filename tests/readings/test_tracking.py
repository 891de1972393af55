"""Numbers with errors: against simulations, and a tracked number against a textbook filter."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hasfl.readings.tracking import CHANGE, LEAST, Measured, Tracked

VALUES, POSITIVE = st.floats(-8, 8), st.floats(-8, 8).map(math.exp)
ERRORS = st.floats(0.01, 5)
READINGS = st.lists(st.builds(Measured, VALUES, ERRORS), min_size=1, max_size=20)
NOTHING = Measured(3.0, math.inf)


@pytest.mark.parametrize("parts", [2, 5, 40])
def test_the_error_of_a_total_is_how_far_totals_scatter(parts: int) -> None:
    """For parts that err alike. Its square is an unbiased estimate of the variance of the total."""
    draw = np.random.default_rng(parts)
    totals = [Measured.total(draw.normal(3.0, 2.0, parts)) for _ in range(4000)]
    values = np.array([total.value for total in totals])
    squares = np.array([total.error**2 for total in totals])
    assert values.mean() == pytest.approx(3.0 * parts, rel=0.05)
    # A relative standard error of √(2/(p − 1)/4000) is 2 % or less.
    assert squares.mean() == pytest.approx(values.var(), rel=0.1)
    assert squares.mean() == pytest.approx(4.0 * parts, rel=0.1)


def test_the_scatter_of_one_part_is_unknown() -> None:
    assert Measured.total(np.array([2.5])) == Measured(2.5, math.inf)


@given(VALUES, ERRORS, VALUES, VALUES)
def test_other_units_and_a_shift(value: float, error: float, factor: float, shift: float) -> None:
    seen = Measured(value, error)
    assert seen.times(factor) == Measured(factor * value, abs(factor) * error)
    assert seen.times(factor).error >= 0
    assert seen.plus(shift) == Measured(value + shift, error)
    assert math.isinf(NOTHING.times(-2.0).error)
    assert math.isinf(NOTHING.plus(1.0).error)


@given(VALUES, ERRORS, VALUES, ERRORS)
def test_errors_of_a_difference_add_in_squares(
    one: float, its_error: float, other: float, other_error: float
) -> None:
    found = Measured(one, its_error).over(Measured(other, other_error))
    assert found.value == one - other
    assert found.error**2 == pytest.approx(its_error**2 + other_error**2)
    assert math.isinf(Measured(one, its_error).over(NOTHING).error)
    assert math.isinf(NOTHING.over(Measured(one, its_error)).error)


@given(POSITIVE, st.floats(0.0, 1.0))
def test_the_logarithm_of_a_value_above_its_error(value: float, share: float) -> None:
    """d ln x = dx/x."""
    assume(value > LEAST)
    found = Measured(value, share * value).logarithm()
    assert found.value == pytest.approx(math.log(value), abs=1e-12)
    assert found.error == pytest.approx(share)


def test_logarithms_scatter_as_their_error_says() -> None:
    draw = np.random.default_rng(1)
    seen = [Measured(float(value), 0.3).logarithm() for value in draw.normal(3.0, 0.3, 4000)]
    scatter = np.std([each.value for each in seen])
    assert np.mean([each.error for each in seen]) == pytest.approx(scatter, rel=0.1)


@given(VALUES, POSITIVE)
def test_the_logarithm_of_a_value_below_its_error_is_that_of_the_error(value: float, error: float) -> None:
    """It is known the worse, the farther the value lies below; never better than to a factor e."""
    assume(value < error and error > LEAST)
    found = Measured(value, error).logarithm()
    assert found.value == pytest.approx(math.log(error), abs=1e-12)
    assert found.error == pytest.approx(1 + (error - value) / error)
    assert Measured(value - 1.0, error).logarithm().error > found.error >= 1


@given(VALUES, VALUES, POSITIVE)
def test_a_larger_value_never_has_a_smaller_logarithm_nor_a_larger_error(
    one: float, other: float, error: float
) -> None:
    small, large = (Measured(value, error).logarithm() for value in sorted((one, other)))
    assert small.value <= large.value
    assert small.error >= large.error - 1e-12


def test_the_logarithm_of_nearly_nothing_is_finite() -> None:
    """Also without an error, where a value below the least one says so surely."""
    assert Measured(0.0, 0.0).logarithm() == Measured(math.log(LEAST), 0.0)
    assert Measured(-1.0, LEAST / 2).logarithm().value == math.log(LEAST)
    assert math.isinf(NOTHING.logarithm().error)
    assert math.isfinite(NOTHING.logarithm().value)


def batch_filter(guess: Tracked, readings: list[Measured], model_error: float) -> tuple[float, float]:
    """A random walk that is seen with errors: its last place, by the normal distribution of all at once."""
    steps = np.arange(1, len(readings) + 1)
    walk = guess.variance + CHANGE**2 * np.minimum.outer(steps, steps)
    seen = walk + np.diag([each.error**2 + model_error**2 for each in readings])
    gain = np.linalg.solve(seen, walk[-1])
    surprise = np.array([each.value for each in readings]) - guess.level
    return guess.level + float(gain @ surprise), float(walk[-1, -1] - gain @ walk[-1])


@given(VALUES, ERRORS, READINGS, st.floats(0, 2))
def test_a_tracked_number_is_the_best_guess_of_a_random_walk(
    level: float, error: float, readings: list[Measured], model_error: float
) -> None:
    tracked = Tracked(level, error**2)
    for seen in readings:
        tracked.read(seen, model_error=model_error)
    level, variance = batch_filter(Tracked(level, error**2), readings, model_error)
    assert tracked.level == pytest.approx(level, rel=1e-7, abs=1e-7)
    assert tracked.variance == pytest.approx(variance, rel=1e-6)
    assert tracked.error == math.sqrt(tracked.variance)


@given(VALUES, ERRORS, READINGS, st.floats(0, 2))
def test_it_stays_between_the_guess_and_the_readings(
    level: float, error: float, readings: list[Measured], model_error: float
) -> None:
    tracked, seen = Tracked(level, error**2), [level]
    for each in readings:
        tracked.read(each, model_error=model_error)
        seen.append(each.value)
        assert min(seen) - 1e-12 <= tracked.level <= max(seen) + 1e-12


@given(VALUES, ERRORS, VALUES, ERRORS, ERRORS, st.floats(0, 2))
def test_the_surer_reading_moves_it_more(
    level: float, error: float, value: float, one: float, other: float, model_error: float
) -> None:
    assume(abs(one - other) > 1e-6 and abs(value - level) > 1e-6)
    sure, unsure = Tracked(level, error**2), Tracked(level, error**2)
    sure.read(Measured(value, min(one, other)), model_error=model_error)
    unsure.read(Measured(value, max(one, other)), model_error=model_error)
    assert abs(sure.level - level) > abs(unsure.level - level) > 0
    assert sure.error < unsure.error


@given(VALUES, ERRORS, st.floats(0, 2))
def test_a_reading_that_saw_nothing_changes_nothing(level: float, error: float, model_error: float) -> None:
    tracked = Tracked(level, error**2)
    tracked.read(NOTHING, model_error=model_error)
    assert tracked == Tracked(level, error**2)


@pytest.mark.parametrize("model_error", [0.0, 0.5])
def test_its_error_shrinks_to_what_change_leaves(model_error: float) -> None:
    """The stationary variance v solves v = (1 − k)(v + q), k = (v + q)/(v + q + r)."""
    tracked, errors = Tracked(0.0, 2.0), []
    for _ in range(60):
        errors.append(tracked.error)
        tracked.read(Measured(1.0, 0.3), model_error=model_error)
    q, r = CHANGE**2, 0.3**2 + model_error**2
    assert errors == sorted(errors, reverse=True)
    assert tracked.variance == pytest.approx((-q + math.sqrt(q * q + 4 * q * r)) / 2, rel=1e-9)
