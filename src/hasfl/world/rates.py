"""Compute and rates that vary from interval to interval: drawn again, by a random walk, or from a trace."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import FloatN, count, frozen, quantity
from hasfl.errors import InputError
from hasfl.fleet import PER_DEVICE, PER_SERVER, Fleet, FleetRanges
from hasfl.seeds import Seeds

VARYING = tuple(field for field in PER_DEVICE if field != "memory")  # fields of a device that may vary
# Random walks that are cached. Chosen by hand: a world has eight walks, one for each field that varies, and
# each may be needed in two lengths.
CACHED_WALKS = 16


class Rates(Protocol):
    """Says how the compute and the rates of a fleet vary."""

    def fleet_in(self, k: int, fleet: Fleet, seeds: Seeds, interval: int) -> Fleet:
        """The fleet in interval k, counted from 0; `interval` is I, the rounds of an interval."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Compute and rates do not vary."""

    def fleet_in(self, k: int, fleet: Fleet, seeds: Seeds, interval: int) -> Fleet:
        """The same fleet in every interval."""
        return fleet


@dataclass(frozen=True, slots=True)
class Redrawn:
    """From interval 1 on, every interval draws all compute and rates uniformly again; memory is constant."""

    ranges: FleetRanges

    def fleet_in(self, k: int, fleet: Fleet, seeds: Seeds, interval: int) -> Fleet:
        """The fleet that is drawn for interval k; in interval 0, `fleet`."""

        def draw(field: str, size: int) -> FloatN:
            low, high = getattr(self.ranges, field)
            return seeds.stream(f"redrawn.{field}", k).uniform(low, high, size)

        return fleet if k == 0 else _with_rates(fleet, draw)


@dataclass(frozen=True, slots=True)
class RandomWalk:
    """From each interval to the next, all compute and rates are multiplied by exp(step · normal).

    A walk that reaches 1/bound or bound times its first value is reflected there. Memory is constant.
    """

    step: float  # standard deviation of one step of the logarithm
    bound: float  # largest factor to the first value, above 1

    def __post_init__(self) -> None:
        quantity("step of a random walk", self.step)
        if quantity("bound of a random walk", self.bound) <= 1:
            raise InputError(f"bound of a random walk must be a factor above 1, got {self.bound!r}")

    def fleet_in(self, k: int, fleet: Fleet, seeds: Seeds, interval: int) -> Fleet:
        """The fleet after k steps."""

        def walk(field: str, size: int) -> FloatN:
            intervals = 1 << k.bit_length()  # the next power of two: later intervals rarely need a new walk
            walked = self.step * _walked(seeds, field, size, intervals)[k]
            factor = np.exp(_reflected(walked, log(self.bound)))
            # exp and log round, so a factor may exceed the bound by a rounding error without the clip.
            return np.asarray(getattr(fleet, field) * factor.clip(1 / self.bound, self.bound))

        return _with_rates(fleet, walk)


class Change(NamedTuple):
    """From a round on, a field of a device has a new value, in base units."""

    round: int
    device: int  # index in the fleet
    field: str
    value: float


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded changes. A change within an interval takes effect at the beginning of the next interval."""

    rows: tuple[Change, ...]

    def __post_init__(self) -> None:
        for first_round, _, field, value in self.rows:
            count("round of a trace", first_round)
            if field not in VARYING:
                raise InputError(f"a trace can change {', '.join(VARYING)}, got {field!r}")
            quantity(f"{field} of a trace", value, positive=True)

    def fleet_in(self, k: int, fleet: Fleet, seeds: Seeds, interval: int) -> Fleet:
        """The fleet with all changes up to the first round of interval k."""
        columns: dict[str, Any] = {field: np.array(getattr(fleet, field)) for field in VARYING}
        for first_round, device, field, value in sorted(self.rows, key=itemgetter(0)):
            if not 0 <= device < len(fleet):
                raise InputError(
                    f"a trace changes device {device}, but the fleet has {len(fleet)} devices, counted from 0"
                )
            if first_round <= k * interval + 1:
                columns[field][device] = value
        return replace(fleet, **columns)


def _with_rates(fleet: Fleet, draw: Callable[[str, int], FloatN]) -> Fleet:
    """The fleet with new compute and rates: `draw(field, size)` gives the values of a field."""
    columns: dict[str, Any] = {field: draw(field, len(fleet)) for field in VARYING}
    server: dict[str, Any] = {field: float(draw(field, 1)[0]) for field in PER_SERVER}
    return replace(fleet, **columns, **server)


@lru_cache(maxsize=CACHED_WALKS)
def _walked(seeds: Seeds, field: str, size: int, intervals: int) -> NDArray[np.float64]:
    """Sums of standard normal numbers, as an array (intervals, size); the sums of interval 0 are 0.

    A walk of more intervals begins with the walk of fewer intervals.
    """
    steps = [seeds.stream(f"walk.{field}", k).standard_normal(size) for k in range(1, intervals)]
    return frozen(np.cumsum([np.zeros(size), *steps], axis=0))


def _reflected(walked: FloatN, bound: float) -> FloatN:
    """Fold a free walk into the range from -bound to bound.

    The fold has period 4 · bound. It rises from -bound to bound on [-bound, bound], where it is the identity,
    and falls back to -bound on [bound, 3 · bound]. The normal distribution is symmetric, so a folded walk and
    a walk that is reflected at ±bound have the same distribution.
    """
    return bound - np.abs((walked + bound) % (4 * bound) - 2 * bound)
