"""What is known of the gradients: given, estimated as the paper does, or measured; renewed while training."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, SupportsFloat

import numpy as np

from hasfl.arrays import FloatL
from hasfl.engines.api import Order
from hasfl.engines.local import LocalEngine
from hasfl.engines.measuring import NOT_FINITE, Reading, samples_beyond_training, take_reading
from hasfl.engines.statistics import estimate_statistics
from hasfl.errors import Diverged
from hasfl.profile import SINGLE_NOISE, GradientStats, MeasuredStats, Profile, Stats

EARLY = ((1, 15), (4, 60))  # intervals and rounds that must both be over before the first readings
SPACING = 24  # intervals between two estimates of the paper's constants, later
BUDGET = 0.002  # of the samples that training uses: what later readings keep to, the first ones counted in
NEWEST = 0.5  # what the newest estimate weighs where the paper's constants are smoothed

READING_ERROR = math.log(2)  # of one reading, as a standard deviation in logarithms
CHANGE = math.log(1.4)  # of a constant from one reading to the next, likewise
GUESS_ERROR = math.log(4)  # of what is taken for granted before the first
GUESSED_NOISE = (
    0.5  # samples; rather too little: rounds are short then, and little is lost until the first reading
)
SINGLE_NOISE_UNREAD = (
    100.0  # until a reading says how much noise there is: no single samples under batch norm
)
GUESSED_DRIFT = 0.015  # of every device and round of an interval
GUESSED_SKEW = 0.5  # data may differ
LEAST = 0.2  # of either constant: what is smaller weighs nothing
LEAST_PRIVATE = 0.05  # of the noise: fewer layers tell nothing of the skew of others


def early(interval: int) -> tuple[int, ...]:
    """After how many intervals of so many rounds constants are read first."""
    return tuple(max(least, math.ceil(rounds / interval)) for least, rounds in EARLY)


class Constants(Protocol):
    """Where a problem's constants come from."""

    def stats(self) -> Stats:
        """As they stand."""

    def learn(
        self, engine: LocalEngine, order: Order, nth: int, loss: SupportsFloat
    ) -> Mapping[str, Any] | None:
        """Renew them after the n-th interval, if it is time; what was found, for the records.

        `loss` is that of its last round, of every device with its own layers.
        """

    def saved(self) -> Mapping[str, Any]:
        """What has been learnt, as plain values."""

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take back what `saved` gave."""


@dataclass(slots=True)
class GivenConstants:
    """Constants that are given and stay, or that nobody asks for."""

    given: Stats

    def stats(self) -> Stats:
        """As they were given."""
        return self.given

    def learn(
        self, engine: LocalEngine, order: Order, nth: int, loss: SupportsFloat
    ) -> Mapping[str, Any] | None:
        """There is nothing to learn."""
        return None

    def saved(self) -> Mapping[str, Any]:
        """Nothing."""
        return {}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Nothing."""


@dataclass(slots=True)
class PaperConstants:
    """β, σ², G² and ϑ, after Wang et al. 2019; smoothed. Where plans stay, early estimates are the last."""

    interval: int  # I
    stay: bool = False  # whether plans shall stay once they are made
    known: GradientStats | None = None

    def stats(self) -> Stats:
        """As they were last estimated."""
        assert self.known is not None, "constants are estimated before the first plan"
        return self.known

    def learn(
        self, engine: LocalEngine, order: Order, nth: int, loss: SupportsFloat
    ) -> Mapping[str, Any] | None:
        """Estimate them anew."""
        able = engine.job.data.sizes[order.devices] >= 2
        if not able.any() or not (self.known is None or self._due(nth)):
            return None
        newest = estimate_statistics(engine, order)
        self.known = newest if self.known is None else _between(self.known, newest)
        return self.saved()

    def saved(self) -> Mapping[str, Any]:
        """The constants as plain numbers."""
        return {} if self.known is None else _plain(self.known)

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take back constants that were estimated before."""
        self.known = GradientStats(**values) if values else None

    def _due(self, nth: int) -> bool:
        return nth in early(self.interval) or (not self.stay and nth > 0 and nth % SPACING == 0)


@dataclass(slots=True)
class Tracked:
    """A constant that is read now and then, and changes slowly: a random walk in logarithms, filtered."""

    log: float
    variance: float = GUESS_ERROR**2

    @property
    def value(self) -> float:
        """The best guess."""
        return math.exp(self.log)

    @property
    def error(self) -> float:
        """Its standard error, in logarithms."""
        return math.sqrt(self.variance)

    def read(self, value: float) -> float:
        """Take a reading in; returns its weight (Kalman 1960, for one number)."""
        before = self.variance + CHANGE**2
        weight = before / (before + READING_ERROR**2)
        self.log += weight * (math.log(max(value, LEAST)) - self.log)
        self.variance = (1 - weight) * before
        return weight


@dataclass(slots=True)
class MeasuredConstants:
    """What noise, drift and skew cost, as far as training has shown it; a guess before it has.

    Readings are rare, because they cost time and bytes. Where plans stay, the first ones are the last.
    """

    noise: Tracked
    drift: Tracked  # of a model that devices hold whole
    share_of: FloatL  # of each layer in the noise, and so in the drift
    interval: int  # I
    devices: int  # N
    stay: bool = False  # whether plans shall stay once they are made
    skew: float = GUESSED_SKEW  # of a model that devices hold whole; below 0 by chance, which must cancel
    spent: int = 0  # samples of readings

    @classmethod
    def guessed(
        cls, profile: Profile, devices: int, interval: int, *, stay: bool = False
    ) -> "MeasuredConstants":
        """Before the first reading: noise is as in many trainings, and spread as the weights are."""
        bits = np.diff(profile.param_bits_upto, prepend=0.0)
        total = float(bits.sum())
        shares = bits / total if total > 0 else np.full(len(bits), 1 / len(bits))
        drift = max(GUESSED_DRIFT * devices * interval, LEAST)
        noise = Tracked(math.log(GUESSED_NOISE))
        return cls(noise, Tracked(math.log(drift)), shares, interval, devices, stay)

    def stats(self) -> Stats:
        """Rounds are counted in those that endless batches need, which nobody knows.

        Private layers make no difference where there is one device, or an aggregation after every round.
        """
        drifts = self.interval > 1 and self.devices > 1
        private_share_of = self.share_of if drifts else np.zeros_like(self.share_of)
        return MeasuredStats(
            rounds=1.0,
            noise=self.noise.value,
            drift_of=self.drift.value * private_share_of,
            skew_of=max(self.skew, 0.0) * private_share_of,
            noise_error=self.noise.error,
            drift_error=self.drift.error,
            single_noise=SINGLE_NOISE if self.noise.error < GUESS_ERROR else SINGLE_NOISE_UNREAD,
        )

    def learn(
        self, engine: LocalEngine, order: Order, nth: int, loss: SupportsFloat
    ) -> Mapping[str, Any] | None:
        """Take a reading, if it is time."""
        able = engine.job.data.sizes[order.devices] >= 2
        cost, used = samples_beyond_training(order), int((order.drawn + order.batch_sizes).sum())
        later = not self.stay and self.spent + cost <= BUDGET * used
        if not able.any() or not (nth in early(self.interval) or later):
            return None
        self.spent += cost
        reading, own = take_reading(engine, order, self.interval), float(loss)
        if not (math.isfinite(own) and math.isfinite(reading.loss)):
            raise Diverged(NOT_FINITE.format(round=order.round))
        undone = reading.undone(own)
        self._track(reading, undone, engine.state.depth)
        found = {name: getattr(reading, name) for name in ("overshoot", "carried", "drift", "walked")}
        return found | {"read_noise": reading.noise, "undone": undone} | _plain(self.stats())

    def _track(self, reading: Reading, undone: float, depth: int) -> None:
        """Take a reading in: skew, which is k, and drift grow with the private layers as their noise does."""
        weight = self.noise.read(reading.noise)
        self.share_of = self.share_of + weight * (reading.share_of - self.share_of)
        private = float(self.share_of[:depth].sum())
        if reading.drift is None or private <= 0:
            return
        self.skew += weight * (undone / max(private, LEAST_PRIVATE) - self.skew)
        self.drift.read(min(math.exp(-undone), 1.0) * reading.drift / private)

    def saved(self) -> Mapping[str, Any]:
        """Everything that was learnt."""
        return {
            "noise": [self.noise.log, self.noise.variance],
            "drift": [self.drift.log, self.drift.variance],
            "share_of": self.share_of.tolist(),
            "skew": self.skew,
            "spent": self.spent,
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.noise, self.drift = Tracked(*values["noise"]), Tracked(*values["drift"])
        self.share_of = np.array(values["share_of"])
        self.skew, self.spent = values["skew"], values["spent"]


def _between(old: GradientStats, new: GradientStats) -> GradientStats:
    """A running mean of the paper's constants."""
    names = ("smoothness", "initial_gap", "variance_of", "moment_of")
    return replace(
        old, **{name: (1 - NEWEST) * getattr(old, name) + NEWEST * getattr(new, name) for name in names}
    )


def _plain(stats: Stats) -> dict[str, Any]:
    """Constants as plain numbers and lists."""
    values = {field.name: getattr(stats, field.name) for field in fields(stats)}
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()
    }
