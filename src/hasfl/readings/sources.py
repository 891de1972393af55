"""Where the constants of plans come from: known beforehand, estimated by the paper's way, or read."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np

from hasfl.constants import BoundConstants, Conditions, Constants
from hasfl.effort import Learnt, TimeSpent
from hasfl.plan import Order
from hasfl.readings.belief import Belief
from hasfl.readings.noise_and_drift import Reading
from hasfl.readings.reader import Reader
from hasfl.readings.tracking import Tracked

# Pairs (intervals, rounds): the paper's constants are estimated after that many intervals, but not before so
# many rounds.
ESTIMATES_AFTER = ((1, 15), (4, 60))
SPACING = 24  # intervals between two later estimates of the paper's constants
# Shares of training's virtual time: that of the first reading, and later on that of all readings together.
FIRST_SHARE, LATER_SHARE = 0.05, 0.015
STAY_ROUNDS = 150  # where plans stay, the one reading comes within so many rounds
NEWEST = 0.5  # weight of the newest estimate in the running mean of the paper's constants


def first_estimates(interval: int) -> tuple[int, ...]:
    """After how many intervals of `interval` rounds the paper's constants are estimated first."""
    return tuple(max(least, math.ceil(rounds / interval)) for least, rounds in ESTIMATES_AFTER)


def settled(interval: int) -> int:
    """After how many intervals no reading comes any more, where plans stay."""
    return math.ceil(STAY_ROUNDS / interval)


class ConstantsSource(Protocol):
    """Where a problem's constants come from."""

    def constants(self) -> Constants:
        """The constants as they are known now."""

    def learn(self, reader: Reader, order: Order, nth: int, spent: TimeSpent) -> Learnt | None:
        """Renew the constants after the n-th interval, if it is time and allowed; returns what was learnt."""

    def saved(self) -> Mapping[str, Any]:
        """Everything that was learnt, as plain values."""

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take back what `saved` returned."""


@dataclass(slots=True)
class FixedConstants:
    """Constants that are known beforehand and do not change."""

    known: Constants

    def constants(self) -> Constants:
        """The known constants."""
        return self.known

    def learn(self, reader: Reader, order: Order, nth: int, spent: TimeSpent) -> Learnt | None:
        """Learn nothing."""
        return None

    def saved(self) -> Mapping[str, Any]:
        """The constants, because the run that they are from may have read others when training goes on."""
        return _plain(self.known)

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take back what `saved` returned."""
        self.known = type(self.known)(**values)


@dataclass(slots=True)
class EstimatedConstants:
    """β, σ², G² and ϑ as the paper estimates them, averaged over estimates."""

    interval: int  # I
    stay: bool = False  # whether plans stay after the first estimates; then no later one is made
    known: BoundConstants | None = None

    def constants(self) -> Constants:
        """The running mean of the estimates."""
        assert self.known is not None, "constants are estimated before the first plan"
        return self.known

    def learn(self, reader: Reader, order: Order, nth: int, spent: TimeSpent) -> Learnt | None:
        """Estimate the constants anew, if it is time."""
        if not reader.able(order) or not (self.known is None or self._due(nth)):
            return None
        effort = reader.effort_of_estimate(order)
        if not spent.allows(effort):
            return None
        newest = reader.estimate(order)
        self.known = newest if self.known is None else _between(self.known, newest)
        return Learnt(self.saved(), effort)

    def saved(self) -> Mapping[str, Any]:
        """The constants as plain numbers."""
        return {} if self.known is None else _plain(self.known)

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take back what `saved` returned."""
        self.known = BoundConstants(**values) if values else None

    def _due(self, nth: int) -> bool:
        return nth in first_estimates(self.interval) or (not self.stay and nth > 0 and nth % SPACING == 0)


@dataclass
class TrackedConstants(Belief):
    """Noise, drift and skew as readings have shown them; a guess before the first reading.

    Readings are rare, because they cost time and bytes.
    """

    stay: bool = False  # whether plans stay after the first reading; then no later reading is taken
    spent: float = 0.0  # virtual seconds that readings have taken
    readings: int = 0  # that were taken

    def learn(self, reader: Reader, order: Order, nth: int, spent: TimeSpent) -> Learnt | None:
        """Take a reading, if it is time. Its errors come from the scatter over devices, so it needs two."""
        if nth == 0 or reader.able(order) < 2:
            return None
        effort = reader.effort(order)
        seconds = spent.seconds_of(effort)
        if not self._due(nth, seconds, spent.so_far) or not spent.allows(effort):
            return None
        self.spent += seconds
        seen = reader.look(order, self.interval)
        if seen is None:
            return None
        self.readings += 1
        reading = Reading.of(seen)
        self._track(reading, self._conditions(reader, order), reader.depth)
        return Learnt(_entry(reading) | _plain(self.constants()), effort)

    def _due(self, nth: int, seconds: float, so_far: float) -> bool:
        """Whether a reading that takes so many seconds is to be taken after the n-th interval."""
        if self.stay and (self.readings or nth > settled(self.interval)):
            return False
        share = LATER_SHARE if self.readings else FIRST_SHARE
        return self.spent + seconds <= share * so_far

    def _conditions(self, reader: Reader, order: Order) -> tuple[Conditions, Conditions]:
        """The conditions of a reading, and those that the constants are kept for."""
        rates = reader.rates
        now = Conditions(rates.at(order.round), len(order.devices), self.interval)
        return now, Conditions(rates.learning_rate, self.devices, self.interval)

    def _track(self, reading: Reading, conditions: tuple[Conditions, Conditions], depth: int) -> None:
        """Take a reading in, as it would be under the conditions that the constants are kept for."""
        now, known = conditions
        own = reading.own
        self.take(
            noise=reading.noise.plus(-math.log(now.noise_over(known))),
            drift=None if own is None else own.drift.plus(-math.log(now.drift_over(known))),
            skew=None if own is None else own.skew,
            depth=depth,
        )

    def saved(self) -> Mapping[str, Any]:
        """Everything that was learnt, as plain values."""
        tracked = {name: getattr(self, name) for name in ("noise", "drift", "skew")}
        counts = {name: getattr(self, name) for name in ("spent", "readings")}
        levels = {name: [each.level, each.variance] for name, each in tracked.items()}
        return levels | counts

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take back what `saved` returned."""
        self.noise, self.drift, self.skew = (Tracked(*values[name]) for name in ("noise", "drift", "skew"))
        self.spent, self.readings = values["spent"], values["readings"]


def _entry(reading: Reading) -> dict[str, Any]:
    """A reading for the records. An error that is not finite is None, because JSON has no such numbers."""
    own = reading.own
    seen = {"read_noise": reading.noise}
    entry: dict[str, Any] = {"overshoot": reading.overshoot, "carried": reading.carried}
    if own is not None:
        seen |= {"read_drift": own.drift, "read_skew": own.skew}
        entry |= {"walked": own.walked, "loss": own.loss, "own_loss": own.own_loss}
    for name, each in seen.items():
        told = math.isfinite(each.error)
        entry[name] = None if not told else each.value if name == "read_skew" else math.exp(each.value)
        entry[f"{name}_error"] = each.error if told else None
    return entry


def _between(old: BoundConstants, new: BoundConstants) -> BoundConstants:
    """A step of the running mean of the paper's constants."""
    names = ("smoothness", "initial_gap", "variance_of", "moment_of")
    return replace(
        old, **{name: (1 - NEWEST) * getattr(old, name) + NEWEST * getattr(new, name) for name in names}
    )


def _plain(constants: Constants) -> dict[str, Any]:
    """Constants as plain numbers and lists. Without curvature there is no entry for it, as in older runs."""
    values = {field.name: getattr(constants, field.name) for field in fields(constants)}
    if not values.get("curvature"):
        values.pop("curvature", None)
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()
    }
