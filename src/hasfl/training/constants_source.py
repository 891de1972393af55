"""Where the constants of plans come from: known before training, or estimated in it by the paper's way."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np

from hasfl.constants import BoundConstants, Constants, Guess, Guesses, MeasuredConstants
from hasfl.effort import Effort, Learnt
from hasfl.errors import InputError
from hasfl.plan import Order
from hasfl.training.paper_estimates import Probe, effort_of_estimate, estimate_bound_constants

# Pairs (intervals, rounds): the paper's constants are estimated after that many intervals, but not before so
# many rounds.
ESTIMATES_AFTER = ((1, 15), (4, 60))
SPACING = 24  # intervals between two later estimates
NEWEST = 0.5  # weight of the newest estimate in the running mean


def first_estimates(interval: int) -> tuple[int, ...]:
    """After how many intervals of `interval` rounds the paper's constants are estimated first."""
    return tuple(max(least, math.ceil(rounds / interval)) for least, rounds in ESTIMATES_AFTER)


class ConstantsSource(Protocol):
    """Where a problem's constants come from."""

    @property
    def last_change(self) -> int:
        """The last interval after which constants may be others, where plans stay; 0: they never change."""

    def constants(self) -> Constants:
        """The constants as they are known now."""

    def learn(self, order: Order, nth: int, allows: Callable[[Effort], bool]) -> Learnt | None:
        """Renew the constants after the n-th interval, if it is time and allowed; returns what was learnt."""

    def saved(self) -> Mapping[str, Any]:
        """The constants as they are known now, as plain values."""

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take back what `saved` returned."""


@dataclass(slots=True)
class FixedConstants:
    """Constants that are known before training and do not change; they may be guesses."""

    known: Constants

    @property
    def last_change(self) -> int:
        """0, because the constants never change."""
        return 0

    def constants(self) -> Constants:
        """The known constants."""
        return self.known

    def learn(self, order: Order, nth: int, allows: Callable[[Effort], bool]) -> Learnt | None:
        """Learn nothing."""
        return None

    def saved(self) -> Mapping[str, Any]:
        """The constants, because a training that goes on may find others: another `hasfl` guesses others."""
        return _plain(self.known)

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take back what `saved` returned."""
        if "each" in values:
            self.known = _guesses(values)
        elif "readings" in values:
            raise InputError("an older hasfl wrote it, which measured the constants in training")
        else:
            kind = BoundConstants if "smoothness" in values else MeasuredConstants
            self.known = kind(**values)


@dataclass(slots=True)
class EstimatedConstants:
    """β, σ², G² and ϑ as the paper estimates them, averaged over estimates."""

    probe: Probe
    interval: int  # I
    stay: bool = False  # whether plans stay after the first estimates; then no later one is made
    known: BoundConstants | None = None

    @property
    def last_change(self) -> int:
        """The interval after which the last of the first estimates is made."""
        return first_estimates(self.interval)[-1]

    def constants(self) -> Constants:
        """The running mean of the estimates."""
        assert self.known is not None, "constants are estimated before the first plan"
        return self.known

    def learn(self, order: Order, nth: int, allows: Callable[[Effort], bool]) -> Learnt | None:
        """Estimate the constants anew, if it is time. This needs a device with two samples."""
        able = (self.probe.data.sizes[order.devices] >= 2).any()
        if not able or not (self.known is None or self._due(nth)):
            return None
        effort = effort_of_estimate(self.probe, order)
        if not allows(effort):
            return None
        newest = estimate_bound_constants(self.probe, order)
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


def _between(old: BoundConstants, new: BoundConstants) -> BoundConstants:
    """A step of the running mean of the paper's constants."""
    names = ("smoothness", "initial_gap", "variance_of", "moment_of")
    return replace(
        old, **{name: (1 - NEWEST) * getattr(old, name) + NEWEST * getattr(new, name) for name in names}
    )


def _plain(constants: Constants) -> dict[str, Any]:
    """Constants as plain numbers and lists. Without curvature there is no entry for it, as in older runs."""
    if isinstance(constants, Guesses):
        return {"each": [_values(guess) | {"constants": _plain(guess.constants)} for guess in constants.each]}
    values = _values(constants)
    if not values.get("curvature"):
        values.pop("curvature", None)
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()
    }


def _values(known: BoundConstants | MeasuredConstants | Guess) -> dict[str, Any]:
    return {field.name: getattr(known, field.name) for field in fields(known)}


def _guesses(values: Mapping[str, Any]) -> Guesses:
    """Take back the guesses that `_plain` made plain."""
    return Guesses(
        tuple(
            Guess(**{**each, "constants": MeasuredConstants(**each["constants"])}) for each in values["each"]
        )
    )
