"""What is believed of noise, drift and skew: the guess, what a reading changes, the constants of plans."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.constants import Conditions
from hasfl.profile import PER_LAYER_COSTS, Profile
from hasfl.profiling.shipped import shipped_layers
from hasfl.readings import belief
from hasfl.readings.belief import (
    DRIFT_FACTOR,
    DRIFT_MODEL_ERROR,
    GUESSED_DRIFT,
    GUESSED_NOISE,
    GUESSED_SKEW,
    LEAST_PRIVATE,
    NOISE_FACTOR,
    NOISE_MODEL_ERROR,
    NOISE_POWER,
    SKEW_ERROR,
    SKEW_MODEL_ERROR,
    Belief,
)
from hasfl.readings.tracking import Measured, Tracked
from tests.training.fakes import small_profile

DEVICES, INTERVAL = 20, 15
NOTHING = Measured(0.0, math.inf)
SHARES = np.array([1.0, 2.0, 4.0]) ** 0.4  # as the 0.4th powers of the layers' weights
SHARES = SHARES / SHARES.sum()


def guess(devices: int = DEVICES, interval: int = INTERVAL) -> Belief:
    return Belief.guessed(small_profile(), devices, interval)


WEIGHTS = 7000 / 32  # of the small profile, which has 7000 bits
NOISE = GUESSED_NOISE * WEIGHTS**NOISE_POWER


def test_the_means_of_the_guess() -> None:
    """Noise and drift are log-normal: the means are as guessed, e^(−σ²/2) times that are the medians."""
    constants = guess().constants()
    assert (constants.rounds, constants.noise) == pytest.approx((1.0, NOISE))
    np.testing.assert_allclose(constants.skew_of, GUESSED_SKEW * SHARES)
    whole = GUESSED_DRIFT * (DEVICES - 1) * INTERVAL**0.4 * math.exp(-GUESSED_SKEW)
    assert constants.drift_upto[-1] == pytest.approx(whole)
    errors = constants.noise_error, constants.drift_error, constants.skew_error
    assert errors == pytest.approx((math.log(NOISE_FACTOR), math.log(DRIFT_FACTOR), SKEW_ERROR))
    draw = np.random.default_rng(0)
    drawn = np.exp(draw.normal(guess().noise.level, guess().noise.error, 1_000_000))
    assert drawn.mean() == pytest.approx(NOISE, rel=0.03)
    assert np.median(drawn) < NOISE / 2


@pytest.mark.parametrize(
    ("model", "least", "most"), [("small-cnn", 0.5, 0.8), ("resnet18", 5.4, 5.4), ("vgg16", 13.0, 13.0)]
)
def test_guessed_noise_is_within_its_factor_of_the_grids(model: str, least: float, most: float) -> None:
    layers = shipped_layers(model, classes=None, norm=None)
    assert layers is not None
    noise = Belief.guessed(Profile.of(layers), DEVICES, INTERVAL).constants().noise
    assert most / NOISE_FACTOR < noise < least * NOISE_FACTOR


@given(st.integers(2, 500), st.integers(2, 500), st.integers(2, 200), st.integers(2, 200))
def test_guessed_drift_goes_with_the_devices_and_a_power_of_the_interval(
    one: int, other: int, short: int, long: int
) -> None:
    """So does `Conditions`: a guess for some conditions, converted to others, is the guess for these."""
    before, after = guess(one, short).constants(), guess(other, long).constants()
    there, here = Conditions(0.1, other, long), Conditions(0.1, one, short)
    converted = before.under(there, here)
    np.testing.assert_allclose(after.drift_of, converted.drift_of, rtol=1e-9)
    assert after.noise == pytest.approx(converted.noise)
    assert after.skew_upto[-1] == before.skew_upto[-1]


def test_layers_share_alike_where_none_has_weights() -> None:
    free = Profile(**{name: np.zeros(3) for name in PER_LAYER_COSTS})
    assert Belief.guessed(free, DEVICES, INTERVAL).share_of.tolist() == [1 / 3] * 3


def test_a_layer_without_weights_has_no_share() -> None:
    weights = np.array([1000.0, 1000.0, 5000.0])  # the second layer has none
    found = Belief.guessed(replace(small_profile(), param_bits_upto=weights), DEVICES, INTERVAL)
    np.testing.assert_allclose(found.share_of * (1 + 4**0.4), [1.0, 0.0, 4**0.4])


@pytest.mark.parametrize(("devices", "interval"), [(1, INTERVAL), (DEVICES, 1), (1, 1)])
def test_without_replicas_that_part_there_is_neither_drift_nor_skew(devices: int, interval: int) -> None:
    constants = guess(devices, interval).constants()
    assert not constants.drift_of.any()
    assert not constants.skew_upto.any()
    assert constants.noise == pytest.approx(NOISE * DEVICES / devices)


@given(
    st.integers(-30, 50).map(lambda k: k / 10),
    st.floats(-8, 5),
    st.lists(st.floats(0.01, 5), min_size=1, max_size=8),
)
def test_drift_falls_with_skew_and_never_with_depth(skew: float, drift: float, sizes: list[float]) -> None:
    """drift_J is the most of share_K · e^−skew_K · drift over K ≤ J; a skew below 0 counts as none."""
    shares = np.array(sizes) / sum(sizes)
    known = Belief(Tracked(0.0, 0.1), Tracked(drift, 0.2), Tracked(skew, 0.3), shares, INTERVAL, DEVICES)
    constants = known.constants()
    skews, expected = np.zeros(len(shares)), np.zeros(len(shares))
    for J in range(len(shares)):
        skews[J] = max(skew, 0.0) * sum(shares[: J + 1])
        here = math.exp(drift + 0.1) * sum(shares[: J + 1]) * math.exp(-skews[J])
        expected[J] = max(here, expected[J - 1] if J else 0.0)
    np.testing.assert_allclose(constants.skew_upto, skews, atol=1e-12)
    np.testing.assert_allclose(constants.drift_upto, expected, rtol=1e-9)
    assert (constants.drift_of >= 0).all()
    assert constants.noise == pytest.approx(math.exp(0.05))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_reading_of_the_first_layers_says_something_of_all(depth: int) -> None:
    """What these layers hold of drift and skew, over their share; each constant with its own error."""
    known, private = guess(), SHARES[:depth].sum()
    noise, drift, skew = Measured(1.0, 0.3), Measured(0.5, 0.4), Measured(0.2, 0.1)
    known.take(noise=noise, drift=drift, skew=skew, depth=depth)
    expected = guess()
    expected.noise.read(noise, model_error=NOISE_MODEL_ERROR)
    expected.drift.read(drift.plus(-math.log(private)), model_error=DRIFT_MODEL_ERROR)
    expected.skew.read(skew.times(1 / private), model_error=SKEW_MODEL_ERROR)
    for found, each in ((known.noise, expected.noise), (known.drift, expected.drift)):
        assert (found.level, found.variance) == pytest.approx((each.level, each.variance))
    assert (known.skew.level, known.skew.variance) == pytest.approx(
        (expected.skew.level, expected.skew.variance)
    )


@pytest.mark.parametrize("depth", [1, 3])
def test_what_a_sure_reading_saw_is_believed(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without errors, the law of rounds gets noise, skew and drift of these layers as they were read."""
    for name in ("NOISE_MODEL_ERROR", "DRIFT_MODEL_ERROR", "SKEW_MODEL_ERROR"):
        monkeypatch.setattr(belief, name, 0.0)
    known = guess()
    seen = {"noise": Measured(1.2, 1e-6), "drift": Measured(0.7, 1e-6), "skew": Measured(0.0, 1e-6)}
    known.take(**seen, depth=depth)
    constants = known.constants()
    assert math.log(constants.noise) == pytest.approx(1.2, abs=1e-4)
    assert math.log(constants.drift_upto[depth - 1]) == pytest.approx(0.7, abs=1e-4)
    assert constants.skew_upto[depth - 1] == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize(("drift", "skew"), [(None, None), (NOTHING, NOTHING)])
def test_readings_that_saw_nothing_leave_the_belief(drift: Measured | None, skew: Measured | None) -> None:
    known = guess()
    known.take(noise=NOTHING, drift=drift, skew=skew, depth=2)
    assert vars(known).keys() == vars(guess()).keys()
    assert (known.noise, known.drift, known.skew) == (guess().noise, guess().drift, guess().skew)


def test_layers_that_hold_next_to_nothing_say_nothing_of_the_others() -> None:
    known = guess()
    known.share_of = np.array([LEAST_PRIVATE / 2, LEAST_PRIVATE, 1 - 1.5 * LEAST_PRIVATE])
    seen = Measured(0.5, 0.1)
    known.take(noise=seen, drift=seen, skew=seen, depth=1)
    assert (known.drift, known.skew) == (guess().drift, guess().skew)
    assert known.noise != guess().noise
    known.take(noise=seen, drift=seen, skew=seen, depth=2)
    assert known.drift != guess().drift
    assert known.skew != guess().skew
