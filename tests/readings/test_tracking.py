"""A tracked constant against a textbook filter."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.readings.tracking import CHANGE, GUESS_ERROR, LEAST, READING_ERROR, Tracked

READINGS = st.lists(st.floats(-8, 8).map(math.exp), min_size=1, max_size=20)


def batch_filter(guess: float, readings: list[float]) -> tuple[float, float]:
    """A random walk that is seen with errors: its last place, by the normal distribution of all at once."""
    count = len(readings)
    walk = GUESS_ERROR**2 + CHANGE**2 * np.minimum.outer(np.arange(1, count + 1), np.arange(1, count + 1))
    seen = walk + READING_ERROR**2 * np.eye(count)
    gain = np.linalg.solve(seen, walk[-1])
    surprise = np.log(np.maximum(readings, LEAST)) - guess
    return guess + float(gain @ surprise), float(walk[-1, -1] - gain @ walk[-1])


@given(st.floats(-4, 4), READINGS)
def test_a_tracked_constant_is_the_best_guess_of_a_random_walk(guess: float, readings: list[float]) -> None:
    tracked = Tracked(guess)
    for value in readings:
        tracked.read(value)
    log, variance = batch_filter(guess, readings)
    assert tracked.log == pytest.approx(log, rel=1e-9, abs=1e-9)
    assert tracked.variance == pytest.approx(variance, rel=1e-9)
    assert tracked.value == pytest.approx(math.exp(log), rel=1e-8)
    assert tracked.error == pytest.approx(math.sqrt(variance), rel=1e-9)


@given(st.floats(-4, 4), READINGS)
def test_it_stays_between_the_guess_and_the_readings(guess: float, readings: list[float]) -> None:
    tracked = Tracked(guess)
    seen = [guess]
    for value in readings:
        weight = tracked.read(value)
        seen.append(math.log(max(value, LEAST)))
        assert 0 < weight < 1
        assert min(seen) - 1e-12 <= tracked.log <= max(seen) + 1e-12


def test_its_error_shrinks_to_what_change_leaves() -> None:
    """The stationary variance v solves v = (1 − k)(v + q), k = (v + q)/(v + q + r)."""
    tracked, errors = Tracked(0.0), []
    for _ in range(60):
        errors.append(tracked.error)
        tracked.read(1.0)
    q, r = CHANGE**2, READING_ERROR**2
    assert errors == sorted(errors, reverse=True)
    assert tracked.variance == pytest.approx((-q + math.sqrt(q * q + 4 * q * r)) / 2, rel=1e-9)
    assert errors[0] == pytest.approx(GUESS_ERROR)


def test_nothing_is_read_as_less_than_the_least() -> None:
    one, other = Tracked(0.0), Tracked(0.0)
    one.read(0.0)
    other.read(LEAST)
    assert one == other
