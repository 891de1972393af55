"""Where the constants of plans come from: known beforehand, estimated by the paper's way, or read."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, SupportsFloat

import numpy as np

from hasfl.constants import BoundConstants, Conditions, Constants
from hasfl.plan import Order
from hasfl.readings.belief import Belief
from hasfl.readings.gradients import require_finite
from hasfl.readings.noise_and_drift import Reading, samples_beyond_training, take_reading
from hasfl.readings.paper_estimates import estimate_bound_constants
from hasfl.readings.probe import Probe
from hasfl.readings.tracking import Tracked

# Pairs (intervals, rounds): a reading comes after that many intervals, but not before that many rounds.
EARLY = ((1, 15), (4, 60))
SPACING = 24  # intervals between two later estimates of the paper's constants
BUDGET = 0.002  # share of training's samples that all readings together may use, once the early ones are done
NEWEST = 0.5  # weight of the newest estimate in the running mean of the paper's constants

LEAST_PRIVATE = 0.05  # share of the noise: less than this in private layers says nothing of the other layers


def early(interval: int) -> tuple[int, ...]:
    """After how many intervals of `interval` rounds the first readings come."""
    return tuple(max(least, math.ceil(rounds / interval)) for least, rounds in EARLY)


class ConstantsSource(Protocol):
    """Where a problem's constants come from."""

    def constants(self) -> Constants:
        """The constants as they are known now."""

    def learn(self, probe: Probe, order: Order, nth: int, loss: SupportsFloat) -> Mapping[str, Any] | None:
        """Renew the constants after the n-th interval, if it is time; returns an entry for the records.

        `loss` is the loss of the interval's last round, of every device with its own layers.
        """

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

    def learn(self, probe: Probe, order: Order, nth: int, loss: SupportsFloat) -> Mapping[str, Any] | None:
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
    stay: bool = False  # whether plans stay after the early readings; then no later estimate is made
    known: BoundConstants | None = None

    def constants(self) -> Constants:
        """The running mean of the estimates."""
        assert self.known is not None, "constants are estimated before the first plan"
        return self.known

    def learn(self, probe: Probe, order: Order, nth: int, loss: SupportsFloat) -> Mapping[str, Any] | None:
        """Estimate the constants anew, if it is time."""
        able = probe.data.sizes[order.devices] >= 2
        if not able.any() or not (self.known is None or self._due(nth)):
            return None
        newest = estimate_bound_constants(probe, order)
        self.known = newest if self.known is None else _between(self.known, newest)
        return self.saved()

    def saved(self) -> Mapping[str, Any]:
        """The constants as plain numbers."""
        return {} if self.known is None else _plain(self.known)

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take back what `saved` returned."""
        self.known = BoundConstants(**values) if values else None

    def _due(self, nth: int) -> bool:
        return nth in early(self.interval) or (not self.stay and nth > 0 and nth % SPACING == 0)


@dataclass
class TrackedConstants(Belief):
    """Noise, drift and skew as readings have shown them; a guess before the first reading.

    Readings are rare, because they cost time and bytes.
    """

    stay: bool = False  # whether plans stay after the early readings; then no later reading is taken
    spent: int = 0  # samples that readings have used

    def learn(self, probe: Probe, order: Order, nth: int, loss: SupportsFloat) -> Mapping[str, Any] | None:
        """Take a reading, if it is time."""
        able = probe.data.sizes[order.devices] >= 2
        cost, used = samples_beyond_training(order), int((order.drawn + order.batch_sizes).sum())
        affordable = not self.stay and self.spent + cost <= BUDGET * used
        if not able.any() or not (nth in early(self.interval) or affordable):
            return None
        self.spent += cost
        reading, own_loss = take_reading(probe, order, self.interval), float(loss)
        require_finite(order.round, own_loss, reading.loss)
        undone = reading.undone(own_loss)
        rates = probe.updates.rates
        now = Conditions(rates.at(order.round), len(order.devices))
        known = Conditions(rates.learning_rate, self.devices)
        self._track(_under(known, now, reading), undone, probe.state.depth)
        entry = {name: getattr(reading, name) for name in ("overshoot", "carried", "drift", "walked")}
        return entry | {"read_noise": reading.noise, "undone": undone} | _plain(self.constants())

    def _track(self, reading: Reading, undone: float, depth: int) -> None:
        """Take a reading in. Skew and drift are those of the private layers, and grow with their noise."""
        weight = self.noise.read(reading.noise)
        self.share_of = self.share_of + weight * (reading.share_of - self.share_of)
        private = float(self.share_of[:depth].sum())
        if reading.drift is None or private <= 0:
            return
        self.skew += weight * (undone / max(private, LEAST_PRIVATE) - self.skew)
        self.drift.read(min(math.exp(-undone), 1.0) * reading.drift / private)

    def saved(self) -> Mapping[str, Any]:
        """Everything that was learnt, as plain values."""
        return {
            "noise": [self.noise.log, self.noise.variance],
            "drift": [self.drift.log, self.drift.variance],
            "share_of": self.share_of.tolist(),
            "skew": self.skew,
            "spent": self.spent,
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take back what `saved` returned."""
        self.noise, self.drift = Tracked(*values["noise"]), Tracked(*values["drift"])
        self.share_of = np.array(values["share_of"])
        self.skew, self.spent = values["skew"], values["spent"]


def _under(known: Conditions, now: Conditions, reading: Reading) -> Reading:
    """What the reading would have been under the conditions that the constants are kept for."""
    drift = None if reading.drift is None else reading.drift / now.drift_over(known)
    return replace(reading, noise=reading.noise / now.noise_over(known), drift=drift)


def _between(old: BoundConstants, new: BoundConstants) -> BoundConstants:
    """A step of the running mean of the paper's constants."""
    names = ("smoothness", "initial_gap", "variance_of", "moment_of")
    return replace(
        old, **{name: (1 - NEWEST) * getattr(old, name) + NEWEST * getattr(new, name) for name in names}
    )


def _plain(constants: Constants) -> dict[str, Any]:
    """Constants as plain numbers and lists."""
    values = {field.name: getattr(constants, field.name) for field in fields(constants)}
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()
    }
