"""Compute and links that vary from interval to interval: redrawn, walking at random, or as recorded."""

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

VARYING = tuple(field for field in PER_DEVICE if field != "memory")


class Rates(Protocol):
    """How a fleet varies."""

    def fleet_in(self, k: int, fleet: Fleet, seeds: Seeds, interval: int) -> Fleet:
        """The fleet in interval k, from 0; `interval` is I, how many rounds each has."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Nothing varies."""

    def fleet_in(self, k: int, fleet: Fleet, seeds: Seeds, interval: int) -> Fleet:
        """The fleet itself."""
        return fleet


@dataclass(frozen=True, slots=True)
class Redrawn:
    """Every interval but the first draws all compute and rates anew, uniformly; memory stays."""

    ranges: FleetRanges

    def fleet_in(self, k: int, fleet: Fleet, seeds: Seeds, interval: int) -> Fleet:
        """The fleet as drawn for interval k."""

        def draw(field: str, size: int) -> FloatN:
            low, high = getattr(self.ranges, field)
            return seeds.stream(f"redrawn.{field}", k).uniform(low, high, size)

        return fleet if k == 0 else _with_rates(fleet, draw)


@dataclass(frozen=True, slots=True)
class RandomWalk:
    """All compute and rates are multiplied by exp(step · normal) from each interval to the next.

    They are reflected so as to stay within 1/bound and bound times their first values; memory stays.
    """

    step: float
    bound: float

    def __post_init__(self) -> None:
        quantity("step of a random walk", self.step)
        if quantity("bound of a random walk", self.bound) <= 1:
            raise InputError(f"bound of a random walk must be a factor above 1, got {self.bound!r}")

    def fleet_in(self, k: int, fleet: Fleet, seeds: Seeds, interval: int) -> Fleet:
        """The fleet after k steps."""

        def walk(field: str, size: int) -> FloatN:
            walked = self.step * _walked(seeds, field, size, 1 << k.bit_length())[k]
            factor = np.exp(_reflected(walked, log(self.bound)))
            return np.asarray(getattr(fleet, field) * factor.clip(1 / self.bound, self.bound))

        return _with_rates(fleet, walk)


class Change(NamedTuple):
    """From a round on, a field of a device has this value, in SI units."""

    round: int
    device: int  # its index in the fleet
    field: str
    value: float


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded changes. One that falls within an interval takes effect when the next interval begins."""

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
                    f"a trace changes device {device}, but the fleet has {len(fleet)}, from 0 on"
                )
            if first_round <= k * interval + 1:
                columns[field][device] = value
        return replace(fleet, **columns)


def _with_rates(fleet: Fleet, draw: Callable[[str, int], FloatN]) -> Fleet:
    columns: dict[str, Any] = {field: draw(field, len(fleet)) for field in VARYING}
    server: dict[str, Any] = {field: float(draw(field, 1)[0]) for field in PER_SERVER}
    return replace(fleet, **columns, **server)


@lru_cache(maxsize=16)
def _walked(seeds: Seeds, field: str, size: int, intervals: int) -> NDArray[np.float64]:
    """Sums of normals (intervals, size), 0 at first; more intervals begin with the same sums."""
    steps = [seeds.stream(f"walk.{field}", k).standard_normal(size) for k in range(1, intervals)]
    return frozen(np.cumsum([np.zeros(size), *steps], axis=0))


def _reflected(walked: FloatN, most: float) -> FloatN:
    """A free walk folded at ±most; the steps of a walk that turns back there have the same law."""
    return most - np.abs((walked + most) % (4 * most) - 2 * most)
