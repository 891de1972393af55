"""Where constants come from: when they are estimated in training, what is recorded, and what is kept."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.constants import BoundConstants, Constants, Guess, Guesses, MeasuredConstants
from hasfl.errors import InputError
from hasfl.guesses import guesses
from hasfl.learning.engine import LocalEngine
from hasfl.learning.simulated_engine import SimulatedEngine
from hasfl.plan import Order, Plan
from hasfl.training.clock import Effort
from hasfl.training.observer import EstimatedConstants, FixedConstants, first_estimates
from hasfl.training.paper_estimates import effort_of_estimate
from tests.learning.models import model
from tests.learning.trainings import job, probe_of, sgd
from tests.training.fakes import small_profile

INTERVAL = 15


def order(devices: int = 4, batch: int = 4) -> Order:
    plan = Plan.uniform(devices, batch_size=batch, cut=1)
    return Order(round=5, devices=np.arange(devices), plan=plan, drawn=np.zeros(devices, dtype=np.int64))


def engine(shares: tuple[int, ...] = (11, 9, 14, 8)) -> LocalEngine:
    ready = SimulatedEngine(job(model("plain"), sgd(0.1), shares=shares))
    ready.split(2, np.arange(len(shares)))
    return ready


def allowed(effort: Effort) -> bool:
    return True


# Estimates of the paper's constants.


@pytest.mark.parametrize(
    ("interval", "expected"),
    [(1, (15, 60)), (2, (8, 30)), (7, (3, 9)), (15, (1, 4)), (16, (1, 4)), (100, (1, 4))],
)
def test_the_first_estimates_wait_for_intervals_and_rounds(interval: int, expected: tuple[int, int]) -> None:
    assert first_estimates(interval) == expected
    assert EstimatedConstants(probe_of(engine()), interval).last_change == expected[-1]


def test_an_estimate_that_is_not_allowed_changes_nothing() -> None:
    """It is asked for once, with its own effort, and only where it is due."""
    probe, asked = probe_of(engine()), list[Effort]()
    made, later = EstimatedConstants(probe, INTERVAL), first_estimates(INTERVAL)[0]
    assert made.learn(order(), 0, allowed) is not None

    def refuses(effort: Effort) -> bool:
        asked.append(effort)
        return False

    before = dict(made.saved())
    assert made.learn(order(), 0, refuses) is None
    assert asked == []
    assert made.learn(order(), later, refuses) is None
    assert [each.samples for each in asked] == [effort_of_estimate(probe, order()).samples]
    assert made.saved() == before
    assert made.learn(order(), later, allowed) is not None


def test_without_a_device_that_has_two_samples_nothing_is_estimated() -> None:
    for shares, able in (((1, 1, 1, 1), False), ((1, 1, 9, 1), True)):
        made = EstimatedConstants(probe_of(engine(shares)), INTERVAL)
        assert (made.learn(order(batch=1), 0, allowed) is not None) == able
        assert (made.known is not None) == able


BOUNDS = [
    BoundConstants(smoothness=s, initial_gap=g, variance_of=[v, 1.0], moment_of=[1.0, v])
    for s, g, v in ((1.0, 2.0, 3.0), (3.0, 1.0, 5.0), (2.0, 8.0, 1.0))
]


def test_the_papers_constants_are_smoothed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimated at once, then half of the newest each time, when that is due; and restored."""
    newest = iter(BOUNDS)
    monkeypatch.setattr("hasfl.training.observer.estimate_bound_constants", lambda probe, order: next(newest))
    probe = probe_of(engine())
    made = EstimatedConstants(probe, 15)
    assert made.saved() == {}
    asked = [made.learn(order(), k, allowed) for k in (0, 0, 1, 2, 3, 4)]
    assert [found is not None for found in asked] == [True, False, True, False, False, True]
    expected = [
        0.25 * one + 0.25 * two + 0.5 * three for one, two, three in ((1, 3, 2), (2, 1, 8), (3, 5, 1))
    ]
    constants = made.known
    assert isinstance(constants, BoundConstants)
    assert [constants.smoothness, constants.initial_gap, constants.variance_of[0]] == pytest.approx(expected)
    assert constants.moment_of[1] == pytest.approx(expected[2])
    again = EstimatedConstants(probe, 15)
    again.restore(json.loads(json.dumps(made.saved())))
    assert again.saved() == made.saved()
    again.restore({})
    assert again.known is None


# Constants that are known before training.

MEASURED = MeasuredConstants(
    rounds=7.0, noise=0.1, drift_of=[0.2, 1 / 3], skew_of=[0.0, 0.5], noise_error=0.3
)


def guessed(unlikeness: float = 0.3, devices: int = 4) -> Guesses:
    return guesses(
        small_profile(), devices=devices, interval=INTERVAL, unlikeness=unlikeness, learning_rate=0.03
    )


def as_if_saved(source: FixedConstants) -> Any:
    return json.loads(json.dumps(source.saved(), allow_nan=False))


@pytest.mark.parametrize(
    ("known", "other"),
    [(BOUNDS[0], BOUNDS[1]), (MEASURED, replace(MEASURED, curvature=0.2)), (guessed(0.3), guessed(0.0, 7))],
    ids=lambda known: type(known).__name__,
)
def test_known_constants_stay(known: Constants, other: Constants) -> None:
    """Also where a training goes on with a `hasfl` that knows others, such as another number of guesses."""
    made, later = FixedConstants(known), FixedConstants(other)
    assert made.learn(order(), 1, allowed) is None
    assert made.known is known
    assert made.last_change == 0
    before = later.saved()
    later.restore(as_if_saved(made))
    assert later.saved() == made.saved() != before
    assert type(later.known) is type(known)


WEIGHTS, NUMBERS = st.floats(1e-6, 1e6), st.just(0.0) | st.floats(1e-6, 1e3)


def values_of(known: Guesses) -> list[list[Any]]:
    """All numbers and texts of guesses."""
    guess, constants = Guess.__dataclass_fields__, MeasuredConstants.__dataclass_fields__
    return [
        [getattr(each, name) for name in guess if name != "constants"]
        + [np.asarray(getattr(each.constants, name)).tolist() for name in constants]
        for each in known.each
    ]


@given(
    st.lists(st.tuples(WEIGHTS, NUMBERS, NUMBERS), min_size=1, max_size=9),
    st.floats(1e-3, 1e9),
)
def test_guesses_come_back_to_the_last_bit(made: list[tuple[float, float, float]], seconds: float) -> None:
    """Whatever they weigh: weights that sum to 1, but for rounding, are not divided by their sum again."""
    known = Guesses(
        tuple(
            Guess(
                says=f"guess {k}",
                weight=weight,
                constants=replace(MEASURED, noise=noise, curvature=curvature),
                best_seconds=seconds,
                least_seconds=0.9 * seconds,
            )
            for k, (weight, noise, curvature) in enumerate(made)
        )
    )
    later = FixedConstants(guessed())
    later.restore(as_if_saved(FixedConstants(known)))
    assert isinstance(later.known, Guesses)
    assert values_of(later.known) == values_of(known)


def test_the_old_kinds_are_saved_as_before() -> None:
    """Byte for byte, so that runs of older versions go on."""
    assert json.dumps(FixedConstants(MEASURED).saved()) == (
        '{"rounds": 7.0, "noise": 0.1, "drift_of": [0.2, 0.3333333333333333], "skew_of": [0.0, 0.5], '
        '"noise_error": 0.3, "drift_error": 0.0, "skew_error": 0.0, "single_noise": 1.5}'
    )
    assert json.dumps(FixedConstants(BOUNDS[0]).saved()) == (
        '{"smoothness": 1.0, "initial_gap": 2.0, "variance_of": [3.0, 1.0], "moment_of": [1.0, 3.0], '
        '"single_noise": 1.0}'
    )


def test_a_run_that_measured_its_constants_in_training_is_refused() -> None:
    old = {"noise": [0.5, 1.9], "drift": [0.1, 0.2], "skew": [1.0, 1.0], "spent": 12.5, "readings": 3}
    with pytest.raises(InputError, match="an older hasfl wrote it, which measured the constants in training"):
        FixedConstants(guessed()).restore(old)
