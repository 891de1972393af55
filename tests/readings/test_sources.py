"""Where constants come from: when they are read while training, what is recorded, and what that costs."""

import json
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from hasfl.constants import BoundConstants, MeasuredConstants
from hasfl.engines.local import LocalEngine
from hasfl.engines.simulated import SimulatedEngine
from hasfl.errors import Diverged
from hasfl.plan import Order, Plan
from hasfl.profile import PER_LAYER_COSTS, Profile
from hasfl.readings import noise_and_drift as reading_module
from hasfl.readings import sources
from hasfl.readings.belief import GUESSED_NOISE, GUESSED_SKEW
from hasfl.readings.gradients import Samples, gradient
from hasfl.readings.noise_and_drift import Reading, samples_beyond_training
from hasfl.readings.probe import Probe
from hasfl.readings.sources import (
    EstimatedConstants,
    FixedConstants,
    TrackedConstants,
    early,
)
from hasfl.readings.tracking import CHANGE, READING_ERROR, Tracked
from hasfl.schedule import RateSchedule
from hasfl.state.optimizers import Sgd
from hasfl.state.updates import Updates
from tests.engines.models import model
from tests.engines.trainings import job, probe_of, sgd
from tests.training.fakes import small_profile

INTERVAL = 15
LOSS = 2.0  # of the mean model, where readings are made up


def order(devices: int = 4, batch: int = 4, round: int = 5) -> Order:
    plan = Plan.uniform(devices, batch_size=batch, cut=1)
    return Order(round=round, devices=np.arange(devices), plan=plan, drawn=np.zeros(devices, dtype=np.int64))


def engine(name: str = "plain", *, depth: int = 2, shares: tuple[int, ...] = (11, 9, 14, 8)) -> LocalEngine:
    ready = SimulatedEngine(job(model(name), sgd(0.1), shares=shares))
    devices = len(shares)
    ready.split(depth, np.arange(devices))
    if min(shares) > 1:
        ready.split_train(order(devices, batch=2))
    return ready


@pytest.mark.parametrize(
    ("interval", "expected"),
    [(1, (15, 60)), (2, (8, 30)), (7, (3, 9)), (15, (1, 4)), (16, (1, 4)), (100, (1, 4))],
)
def test_the_first_readings_wait_for_intervals_and_rounds(interval: int, expected: tuple[int, int]) -> None:
    assert early(interval) == expected


@dataclass
class Read:
    """Readings from a list in place of a reading."""

    readings: list[Reading]
    intervals: list[int] = field(default_factory=list)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        left = iter(self.readings)

        def take(probe: Probe, order: Order, interval: int) -> Reading:
            self.intervals.append(interval)
            return next(left)

        patch.setattr(sources, "take_reading", take)


def reading(noise: float, drift: float | None, *shares: float) -> Reading:
    return Reading(noise, drift, None if drift is None else 0.5, np.array(shares), LOSS, 0.2, 0.1)


def guessed(layers: int = 4, devices: int = 4, interval: int = INTERVAL, **kind: Any) -> TrackedConstants:
    made = replace(TrackedConstants.guessed(small_profile(), devices, interval), **kind)
    made.share_of = np.full(layers, 1 / layers)
    return made


def test_the_guess_before_the_first_reading() -> None:
    made = TrackedConstants.guessed(small_profile(), 4, INTERVAL)
    constants = made.constants()
    assert isinstance(constants, MeasuredConstants)
    assert constants.rounds == 1.0
    assert constants.noise == pytest.approx(GUESSED_NOISE)
    assert constants.noise_error == constants.drift_error == pytest.approx(math.log(4))
    drift = 0.015 * 4 * INTERVAL
    np.testing.assert_allclose(
        constants.drift_of, drift * np.array([1000, 2000, 4000]) / 7000
    )  # as weights are
    free = Profile(**{name: np.zeros(3) for name in PER_LAYER_COSTS})
    weightless = TrackedConstants.guessed(free, 4, INTERVAL)
    assert weightless.share_of.tolist() == [1 / 3] * 3


def test_what_is_read_is_tracked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise as it is, drift of the private layers over their share of the noise, shares by noise's weight.

    Where devices' own loss is half of the mean model's, so is their noise, and the drift that counts.
    """
    made, ready = guessed(), engine(depth=2)
    noise, drift, shares = Tracked(made.noise.log), Tracked(made.drift.log), made.share_of
    seen = [
        reading(3.0, 0.5, 0.4, 0.3, 0.2, 0.1),
        reading(0.1, None, 0.1, 0.1, 0.7, 0.1),
        reading(9.0, 0.0, 1.0, 0.0, 0.0, 0.0),
    ]
    read = Read(seen)
    read.install(monkeypatch)
    for each, own in zip(seen, (1.0, 1.0, 4.0), strict=True):
        found = made.learn(probe_of(ready), order(), 1, own) or {}
        shares = shares + noise.read(each.noise) * (each.share_of - shares)
        if each.drift is not None:
            drift.read(min(own / LOSS, 1.0) * each.drift / (shares[0] + shares[1]))
        assert (made.noise, made.drift) == (noise, drift)
        np.testing.assert_allclose(made.share_of, shares, rtol=1e-12)
        assert made.share_of.sum() == pytest.approx(1.0)
        constants = made.constants()
        np.testing.assert_allclose(constants.drift_of, drift.value * shares)
        assert found["noise"] == constants.noise
        assert found["drift_of"] == constants.drift_of.tolist()
        assert (found["read_noise"], found["drift"], found["walked"]) == (each.noise, each.drift, each.walked)
        assert (found["overshoot"], found["carried"]) == (0.2, 0.1)
        json.dumps(found)
    assert read.intervals == [INTERVAL] * 3


@pytest.mark.parametrize(("devices", "round"), [(4, 9), (2, 9), (4, 2), (3, 4), (1, 2)])
def test_what_is_read_is_kept_for_the_full_rate_and_all_devices(
    devices: int, round: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read at a third of the rate with half the devices, noise is kept as 3/2 of the reading, drift as 9."""
    warming = Updates(Sgd(), RateSchedule(0.1, warm_up=6))
    probe = replace(probe_of(engine(depth=2)), updates=warming)
    seen = reading(3.0, None if devices == 1 else 0.5, 0.4, 0.3, 0.2, 0.1)
    Read([seen]).install(monkeypatch)
    made, expected = guessed(), guessed()
    found = made.learn(probe, order(devices, round=round), 1, LOSS) or {}
    rate = min(round / 6, 1.0)
    weight = expected.noise.read(3.0 / rate * devices / 4)
    expected.share_of = expected.share_of + weight * (seen.share_of - expected.share_of)
    if devices > 1:
        expected.drift.read(0.5 / rate * 3 / (devices - 1) / expected.share_of[:2].sum())
    assert made.noise.log == pytest.approx(expected.noise.log)
    assert made.drift.log == pytest.approx(expected.drift.log)
    assert (found["read_noise"], found["drift"]) == (seen.noise, seen.drift)  # as it was read


def test_it_learns_only_when_it_is_due_and_able(monkeypatch: pytest.MonkeyPatch) -> None:
    """Early, then within 0.2 % of the samples that training has used; of readings before, too."""
    Read([reading(1.0, 0.1, 0.25, 0.25, 0.25, 0.25)] * 99).install(monkeypatch)
    ready, each = engine(), order(batch=16)
    made, staying = guessed(), guessed(stay=True)
    assert [k for k in range(40) if staying.learn(probe_of(ready), each, k, 1.0) is not None] == [1, 4]
    cost, spent, read = 4 * 16 + 2 * 2 * 4, 0, []
    for k in range(1, 2500):
        now = replace(each, drawn=np.full(4, (INTERVAL * k - 1) * 16))
        due = k in (1, 4) or spent + cost <= 0.002 * (INTERVAL * k * 4 * 16)
        assert (made.learn(probe_of(ready), now, k, 1.0) is not None) == due
        if due:
            read.append(k)
            spent += cost
        assert made.spent == spent
    assert len(read) > 10
    alone = engine(shares=(1, 1, 1, 1))
    made = guessed()
    before = dict(made.saved())
    assert made.learn(probe_of(alone), order(batch=1), 1, 1.0) is None
    assert made.saved() == before


def test_one_device_of_many_is_enough() -> None:
    made = guessed()
    found = made.learn(probe_of(engine(depth=0, shares=(1, 1, 20, 1))), order(batch=1), 1, 1.0)
    assert found is not None
    assert found["drift"] is None


@pytest.mark.parametrize("kind", [{"interval": 1}, {"devices": 1}], ids=str)
def test_an_interval_of_one_round_and_a_device_alone_have_no_drift(kind: dict[str, int]) -> None:
    made = guessed(**kind)
    assert not made.constants().drift_of.any()
    assert not made.constants().skew_upto.any()
    made.learn(probe_of(engine()), order(), early(made.interval)[0], 1.0)
    assert not made.constants().drift_of.any()
    assert not made.constants().skew_upto.any()
    assert made.constants().noise != pytest.approx(GUESSED_NOISE)


@pytest.mark.parametrize("times", [0, 1, 3])
def test_measured_constants_go_on_after_a_pause(times: int) -> None:
    ready, whole, resumed = engine(), guessed(), guessed()
    for t in range(times):
        whole.learn(probe_of(ready), order(round=t), 1, 1.0)
    resumed.restore(json.loads(json.dumps(whole.saved())))
    assert resumed.saved() == whole.saved()
    for each in (whole, resumed):
        each.learn(probe_of(ready), order(round=9), 4, 1.0)
    assert resumed.saved() == whole.saved()
    assert resumed.constants().noise == whole.constants().noise


CONSTANTS = [
    BoundConstants(smoothness=s, initial_gap=g, variance_of=[v, 1.0], moment_of=[1.0, v])
    for s, g, v in ((1.0, 2.0, 3.0), (3.0, 1.0, 5.0), (2.0, 8.0, 1.0))
]


def test_the_papers_constants_are_smoothed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimated at once, then half of the newest each time, when that is due; and restored."""
    newest = iter(CONSTANTS)
    monkeypatch.setattr(sources, "estimate_bound_constants", lambda probe, order: next(newest))
    made, ready = EstimatedConstants(15), engine()
    assert made.saved() == {}
    asked = [made.learn(probe_of(ready), order(), k, 1.0) for k in (0, 0, 1, 2, 3, 4)]
    assert [found is not None for found in asked] == [True, False, True, False, False, True]
    expected = [
        0.25 * one + 0.25 * two + 0.5 * three for one, two, three in ((1, 3, 2), (2, 1, 8), (3, 5, 1))
    ]
    constants = made.constants()
    assert isinstance(constants, BoundConstants)
    assert [constants.smoothness, constants.initial_gap, constants.variance_of[0]] == pytest.approx(expected)
    assert constants.moment_of[1] == pytest.approx(expected[2])
    again = EstimatedConstants(15)
    again.restore(json.loads(json.dumps(made.saved())))
    assert again.saved() == made.saved() == asked[-1]
    again.restore({})
    assert again.known is None


def test_given_constants_stay() -> None:
    made = FixedConstants(CONSTANTS[0])
    assert made.learn(probe_of(engine()), order(), 1, 1.0) is None
    assert made.constants() is CONSTANTS[0]
    other = FixedConstants(CONSTANTS[1])
    other.restore(json.loads(json.dumps(made.saved())))
    assert other.saved() == made.saved() != FixedConstants(CONSTANTS[1]).saved()


def samples_read(batch: int, devices: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How many gradients one reading takes, and of how many samples in all."""
    taken: list[int] = []
    original = gradient

    def counted(probe: Probe, states: Any, samples: Samples, round: int, **which: Any) -> Any:
        taken.append(len(samples.y))
        return original(probe, states, samples, round, **which)

    ready = engine(shares=(100,) * devices)
    with monkeypatch.context() as patch:
        patch.setattr(reading_module, "gradient", counted)
        assert (
            guessed(devices=devices).learn(probe_of(ready), order(devices, batch=batch), 1, 1.0) is not None
        )
    return len(taken), sum(taken)


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 16, 64])
def test_what_a_reading_costs(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two halves at the mean are the next round's batch, where that can be halved: training's own."""
    devices = 20
    passes, samples = samples_read(batch, devices, monkeypatch)
    assert passes == 8  # A and C at two places, and two devices' samples at two
    half = max(batch // 2, 1)
    assert samples == 4 * devices * half + 4 * 4
    assert samples_beyond_training(order(devices, batch=batch)) == samples - devices * min(batch, 2 * half)


def test_skew_is_the_loss_that_an_aggregation_brings_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its logarithm, over the share of the private layers, which is never taken for nearly nothing.

    Where devices' own loss is the higher one, that counts against earlier readings, but is no skew.
    """
    for own, shares, private in (
        (0.5, (0.1, 0.2, 0.3, 0.4), 0.3),
        (3.0, (0.1, 0.2, 0.3, 0.4), 0.3),
        (0.5, (0.005, 0.005, 0.5, 0.49), 0.05),
    ):
        Read([reading(1.0, 0.1, *shares)]).install(monkeypatch)
        made = guessed()
        made.share_of = np.array(shares)
        weight = made.noise.variance + CHANGE**2
        weight /= weight + READING_ERROR**2
        found = made.learn(probe_of(engine()), order(), 1, own)
        assert found is not None
        assert found["undone"] == pytest.approx(math.log(LOSS / own))
        skew = GUESSED_SKEW + weight * (math.log(LOSS / own) / private - GUESSED_SKEW)
        assert made.skew == pytest.approx(skew)
        constants = made.constants()
        assert isinstance(constants, MeasuredConstants)
        assert constants.skew_upto == pytest.approx(max(skew, 0.0) * made.share_of.cumsum())


def test_layers_that_nobody_holds_alone_tell_nothing_of_skew(monkeypatch: pytest.MonkeyPatch) -> None:
    Read([reading(1.0, None, 0.1, 0.2, 0.3, 0.4)]).install(monkeypatch)
    made = guessed()
    made.learn(probe_of(engine(depth=0)), order(), 1, 0.5)
    assert made.skew == GUESSED_SKEW


@pytest.mark.parametrize(
    ("own", "mean", "undone"), [(0.0, 2.0, math.log(1000)), (1.0, 0.0, 0.0), (0.0, 0.0, 0.0)]
)
def test_losses_of_nothing(own: float, mean: float, undone: float) -> None:
    """A thousandth of the mean model's is as good as none; where that has none, there is nothing to undo."""
    assert replace(reading(1.0, 0.1, 1.0), loss=mean).undone(own) == pytest.approx(undone)


@pytest.mark.parametrize(("own", "mean"), [(math.inf, 1.0), (math.nan, 1.0), (1.0, math.nan)])
def test_losses_without_end_are_a_divergence(
    own: float, mean: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    Read([replace(reading(1.0, 0.1, 0.1, 0.2, 0.3, 0.4), loss=mean)]).install(monkeypatch)
    with pytest.raises(Diverged, match="round 5"):
        guessed().learn(probe_of(engine()), order(), 1, own)
