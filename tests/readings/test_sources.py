"""Where constants come from: when they are read while training, what is recorded, and what is kept."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.constants import BoundConstants
from hasfl.effort import Effort, TimeSpent
from hasfl.engines.local import LocalEngine
from hasfl.engines.simulated import SimulatedEngine
from hasfl.plan import Order, Plan
from hasfl.readings.in_process import InProcessReader
from hasfl.readings.noise_and_drift import OwnModels, Reading
from hasfl.readings.sources import (
    FIRST_SHARE,
    LATER_SHARE,
    STAY_ROUNDS,
    EstimatedConstants,
    FixedConstants,
    TrackedConstants,
    first_estimates,
    settled,
)
from hasfl.readings.tracking import Measured
from hasfl.schedule import RateSchedule
from hasfl.state.optimizers import Sgd
from hasfl.state.updates import Updates
from tests.engines.models import model
from tests.engines.trainings import job, probe_of, reader_of, sgd
from tests.training.fakes import small_profile

INTERVAL = 15
NOTHING = Measured(0.0, math.inf)


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
    assert first_estimates(interval) == expected


@pytest.mark.parametrize("interval", [1, 7, 15, 150, 151])
def test_the_one_reading_of_plans_that_stay_comes_after_so_many_rounds(interval: int) -> None:
    assert (settled(interval) - 1) * interval < STAY_ROUNDS <= settled(interval) * interval


@dataclass
class Read:
    """Readings from a list in place of a reading."""

    readings: Sequence[Reading]
    intervals: list[int] = field(default_factory=list)

    def install(self, patch: pytest.MonkeyPatch) -> "Read":
        left = iter(self.readings)

        def look(reader: InProcessReader, order: Order, interval: int) -> Reading:
            self.intervals.append(interval)
            return next(left)

        patch.setattr(InProcessReader, "look", look)
        patch.setattr(Reading, "of", lambda seen: seen)  # what was looked at is a reading already
        return self


def reading(noise: Measured, drift: Measured | None = None, skew: Measured = NOTHING) -> Reading:
    own = None if drift is None else OwnModels(drift, skew, walked=0.5, loss=2.0, own_loss=1.5)
    return Reading(noise, own, overshoot=0.2, carried=0.1)


SEEN = reading(Measured(1.1, 0.3), Measured(0.4, 0.2), Measured(0.3, 0.1))


def guessed(layers: int = 4, devices: int = 4, interval: int = INTERVAL, **kind: Any) -> TrackedConstants:
    made = replace(TrackedConstants.guessed(small_profile(), devices, interval), **kind)
    made.share_of = np.full(layers, 1 / layers)
    return made


def after(seconds: float, reading_takes: float = 1.0) -> TimeSpent:
    """The time spent, where every reading takes as long."""
    return TimeSpent(seconds, lambda effort: reading_takes)


LONG = after(1e9)  # a training so long that a reading is always due


def levels(made: TrackedConstants) -> list[float]:
    tracked = (made.noise, made.drift, made.skew)
    return [number for each in tracked for number in (each.level, each.variance)]


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_what_is_read_is_tracked(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the belief takes it, with the depth of the split; and it is recorded."""
    made, expected, ready = guessed(), guessed(), engine(depth=depth)
    read = Read([SEEN, SEEN, reading(Measured(-1.0, 2.0))]).install(monkeypatch)
    for each in read.readings:
        learnt = made.learn(reader_of(ready), order(), 1, LONG)
        own = each.own
        expected.take(
            noise=each.noise,
            drift=None if own is None else own.drift,
            skew=None if own is None else own.skew,
            depth=depth,
        )
        assert levels(made) == pytest.approx(levels(expected), rel=1e-12)
        assert learnt is not None
        constants = made.constants()
        assert learnt.entry["noise"] == constants.noise
        assert learnt.entry["drift_of"] == constants.drift_of.tolist()
        assert learnt.entry["skew_error"] == constants.skew_error
        done = reader_of(ready).effort(order())
        assert [each.samples.tolist() for each in learnt.effort.passes] == [
            each.samples.tolist() for each in done.passes
        ]
    assert read.intervals == [INTERVAL] * 3


@pytest.mark.parametrize(("devices", "round"), [(4, 9), (2, 9), (4, 2), (3, 4)])
def test_what_is_read_is_kept_for_the_full_rate_and_all_devices(
    devices: int, round: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read at a third of the rate with half the devices, noise is kept as 3/2 of the reading, drift as 9."""
    warming = Updates(Sgd(), RateSchedule(0.1, warm_up=6))
    reader = InProcessReader(replace(probe_of(engine(depth=2)), updates=warming))
    Read([SEEN]).install(monkeypatch)
    made, expected = guessed(), guessed()
    learnt = made.learn(reader, order(devices, round=round), 1, LONG)
    rate = min(round / 6, 1.0)
    assert SEEN.own is not None
    expected.take(
        noise=Measured(1.1 + math.log(1 / rate * devices / 4), 0.3),
        drift=Measured(0.4 + math.log(1 / rate * 3 / (devices - 1)), 0.2),
        skew=SEEN.own.skew,
        depth=2,
    )
    assert levels(made) == pytest.approx(levels(expected), rel=1e-12)
    assert learnt is not None
    assert learnt.entry["read_noise"] == pytest.approx(math.exp(1.1))  # as it was read


def test_a_reading_comes_when_it_takes_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one may take a larger share of the time so far than all together later on."""
    Read([SEEN] * 99).install(monkeypatch)
    ready, made, seconds, read = engine(), guessed(), 2.5, list[int]()
    for k in range(1, 400):
        due = seconds * (1 + len(read)) <= (LATER_SHARE if read else FIRST_SHARE) * 10.0 * k
        learnt = made.learn(reader_of(ready), order(), k, after(10.0 * k, seconds))
        assert (learnt is not None) == due
        if due:
            read.append(k)
        assert (made.readings, made.spent) == pytest.approx((len(read), seconds * len(read)))
    assert read[0] == math.ceil(2.5 / FIRST_SHARE / 10)
    assert len(read) == math.floor(LATER_SHARE * 3990 / 2.5) > 3


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.01, 50)), min_size=1, max_size=40))
def test_readings_never_take_more_than_their_share(intervals: list[tuple[float, float]]) -> None:
    """Whatever intervals and readings take."""
    made, clock, total, count = guessed(), 0.0, 0.0, 0
    for nth, (interval_takes, reading_takes) in enumerate(intervals, start=1):
        clock += interval_takes
        if made._due(nth, reading_takes, clock):
            made.spent, made.readings = made.spent + reading_takes, made.readings + 1
            total, count = total + reading_takes, count + 1
            assert total <= (FIRST_SHARE if count == 1 else LATER_SHARE) * clock + 1e-9


def test_the_effort_of_a_reading_is_what_its_time_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    Read([SEEN]).install(monkeypatch)
    asked = list[Effort]()

    def seconds_of(effort: Effort) -> float:
        asked.append(effort)
        return 1.0

    learnt = guessed().learn(reader_of(engine()), order(), 1, TimeSpent(1e9, seconds_of))
    assert learnt is not None
    assert asked == [learnt.effort]


def test_a_reading_that_is_not_allowed_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for once, with its own effort, and only where it is due."""
    read, asked, made = Read([SEEN]).install(monkeypatch), list[Effort](), guessed()

    def refuses(effort: Effort) -> bool:
        asked.append(effort)
        return False

    before = dict(made.saved())
    assert made.learn(reader_of(engine()), order(), 1, TimeSpent(1.0, lambda effort: 99.0, refuses)) is None
    assert asked == []
    assert made.learn(reader_of(engine()), order(), 1, TimeSpent(1e9, lambda effort: 1.0, refuses)) is None
    assert [each.samples for each in asked] == [reader_of(engine()).effort(order()).samples]
    assert made.saved() == before
    assert read.intervals == []


def test_an_estimate_that_is_not_allowed_changes_nothing() -> None:
    made, later = EstimatedConstants(INTERVAL), first_estimates(INTERVAL)[0]
    assert made.learn(reader_of(engine()), order(), 0, LONG) is not None
    before = dict(made.saved())
    refuses = TimeSpent(1e9, lambda effort: 1.0, lambda effort: False)
    assert made.learn(reader_of(engine()), order(), later, refuses) is None
    assert made.saved() == before
    assert made.learn(reader_of(engine()), order(), later, LONG) is not None


def test_where_plans_stay_there_is_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as it is cheap, but within 150 rounds."""
    Read([SEEN] * 9).install(monkeypatch)
    ready = reader_of(engine())
    for cheap, expected in ((1, [1]), (4, [4]), (10, [10]), (11, [])):
        made = guessed(stay=True)
        costs = [after(1.0, 99.0 if k < cheap else 0.01) for k in range(40)]
        assert [k for k in range(40) if made.learn(ready, order(), k, costs[k]) is not None] == expected


def test_before_the_first_round_and_without_two_samples_nothing_is_read() -> None:
    made = guessed()
    before = dict(made.saved())
    assert made.learn(reader_of(engine()), order(), 0, LONG) is None
    assert made.learn(reader_of(engine(shares=(1, 1, 1, 1))), order(batch=1), 1, LONG) is None
    assert made.saved() == before


def test_a_reading_needs_two_devices() -> None:
    """One device has no scatter, so its reading would cost time and tell nothing."""
    made = guessed()
    one, two = ((1, 1, 20, 1), (1, 9, 20, 1))
    assert made.learn(reader_of(engine(depth=0, shares=one)), order(batch=1), 1, LONG) is None
    assert made.learn(reader_of(engine(depth=0, shares=two)), order(batch=1), 1, LONG) is not None


@pytest.mark.parametrize("seen", [SEEN, reading(NOTHING, NOTHING, NOTHING), reading(NOTHING)], ids=str)
def test_an_entry_is_json(seen: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which has neither infinities nor NaN: what was not seen is null."""
    Read([seen]).install(monkeypatch)
    learnt = guessed().learn(reader_of(engine()), order(), 1, LONG)
    assert learnt is not None
    entry = json.loads(json.dumps(learnt.entry, allow_nan=False))
    told = seen is SEEN
    assert entry["read_noise"] == (pytest.approx(math.exp(1.1)) if told else None)
    assert entry["read_noise_error"] == (0.3 if told else None)
    assert (entry["overshoot"], entry["carried"]) == (0.2, 0.1)
    if seen.own is not None:
        assert entry["read_drift"] == (pytest.approx(math.exp(0.4)) if told else None)
        assert (entry["read_skew"], entry["read_skew_error"]) == ((0.3, 0.1) if told else (None, None))
        assert (entry["walked"], entry["loss"], entry["own_loss"]) == (0.5, 2.0, 1.5)
    assert ("read_drift" in entry) == (seen.own is not None)


@pytest.mark.parametrize("seen", [reading(NOTHING, NOTHING, NOTHING), reading(NOTHING)], ids=str)
def test_readings_that_saw_nothing_leave_the_belief(seen: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    Read([seen]).install(monkeypatch)
    made = guessed()
    before = levels(made)
    assert made.learn(reader_of(engine()), order(), 1, LONG) is not None
    assert levels(made) == before
    assert (made.spent, made.readings) == (1.0, 1)  # but they took their time


@pytest.mark.parametrize("kind", [{"interval": 1}, {"devices": 1}], ids=str)
def test_an_interval_of_one_round_and_a_device_alone_have_no_drift(kind: dict[str, int]) -> None:
    made, before = guessed(**kind), guessed(**kind).constants().noise
    assert made.learn(reader_of(engine(shares=(40, 30, 35, 40))), order(), 1, LONG) is not None
    assert not made.constants().drift_of.any()
    assert not made.constants().skew_upto.any()
    assert made.constants().noise != pytest.approx(before)


@pytest.mark.parametrize("times", [0, 1, 3])
def test_tracked_constants_go_on_after_a_pause(times: int) -> None:
    ready, whole, resumed = engine(), guessed(), guessed()
    for t in range(times):
        whole.learn(reader_of(ready), order(round=t), 1, LONG)
    resumed.restore(json.loads(json.dumps(whole.saved(), allow_nan=False)))
    assert resumed.saved() == whole.saved()
    for each in (whole, resumed):
        each.learn(reader_of(ready), order(round=9), 4, LONG)
    assert resumed.saved() == whole.saved()
    assert whole.readings == times + 1
    assert resumed.constants().noise == whole.constants().noise
    np.testing.assert_array_equal(resumed.constants().drift_of, whole.constants().drift_of)


CONSTANTS = [
    BoundConstants(smoothness=s, initial_gap=g, variance_of=[v, 1.0], moment_of=[1.0, v])
    for s, g, v in ((1.0, 2.0, 3.0), (3.0, 1.0, 5.0), (2.0, 8.0, 1.0))
]


def test_the_papers_constants_are_smoothed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimated at once, then half of the newest each time, when that is due; and restored."""
    newest = iter(CONSTANTS)
    monkeypatch.setattr(InProcessReader, "estimate", lambda reader, order: next(newest))
    made, ready = EstimatedConstants(15), engine()
    assert made.saved() == {}
    asked = [made.learn(reader_of(ready), order(), k, LONG) for k in (0, 0, 1, 2, 3, 4)]
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
    last = asked[-1]
    assert last is not None
    assert again.saved() == made.saved() == last.entry
    again.restore({})
    assert again.known is None


def test_given_constants_stay() -> None:
    made = FixedConstants(CONSTANTS[0])
    assert made.learn(reader_of(engine()), order(), 1, LONG) is None
    assert made.constants() is CONSTANTS[0]
    other = FixedConstants(CONSTANTS[1])
    other.restore(json.loads(json.dumps(made.saved())))
    assert other.saved() == made.saved() != FixedConstants(CONSTANTS[1]).saved()
