"""The world: the state of the fleet in each round, and the devices that take part."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np

from hasfl.arrays import IntN, count, share
from hasfl.fleet import Fleet
from hasfl.seeds import Seeds
from hasfl.world.absences import Absences, AlwaysThere
from hasfl.world.rates import Fixed, Rates

# Fleets of intervals that are cached. Chosen by hand: training asks for the current interval only.
CACHED_FLEETS = 64


class ObservedWorld(Protocol):
    """A world as training sees it: simulated, or measured."""

    @property
    def fleet(self) -> Fleet:
        """The whole fleet, as it was known first."""

    @property
    def seeds(self) -> Seeds:
        """The seeds of what is random."""

    @property
    def interval(self) -> int:
        """I, the rounds between two aggregations."""

    @property
    def participation(self) -> float:
        """The share of the devices there at an interval's beginning that takes part in it."""

    @property
    def usual_participants(self) -> int:
        """How many devices take part in an interval while every device is there."""

    def fleet_at(self, round: int) -> Fleet:
        """The whole fleet in a round. All rounds of an interval get the same object."""

    def present(self, round: int) -> IntN:
        """The sorted indices of the devices that take part in a round; never empty."""

    def present_so_far(self, round: int) -> IntN:
        """The sorted indices of the devices that have taken part in any round up to this one."""


def share_of(participation: float, devices: int) -> int:
    """The number of devices that take part when so many are there: their share, rounded, at least 1."""
    return max(int(participation * devices + 0.5), 1)


def ranks_in(k: int, devices: int, seeds: Seeds) -> IntN:
    """The random order in which devices are chosen to take part in interval k: their rank, from 0."""
    return seeds.stream("participation", k).permutation(devices)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class World:
    """A fleet, how its compute and rates vary, and which devices take part in which round."""

    fleet: Fleet  # in the first interval
    seeds: Seeds
    interval: int  # I, rounds between two aggregations
    rates: Rates = field(default_factory=Fixed)
    absences: Absences = field(default_factory=AlwaysThere)
    participation: float = 1.0  # share of the devices there at an interval's beginning that takes part in it

    def __post_init__(self) -> None:
        count("interval", self.interval)
        share("participation", self.participation)

    def fleet_at(self, round: int) -> Fleet:
        """The whole fleet in a round. All rounds of an interval get the same object."""
        return _fleet_in(self, (count("round", round) - 1) // self.interval)

    def present(self, round: int) -> IntN:
        """The sorted indices of the devices that take part in a round; never empty."""
        there = self._there(count("round", round))
        if self.participation == 1:
            return there
        return np.intersect1d(there, self._sampled((round - 1) // self.interval))

    @property
    def usual_participants(self) -> int:
        """How many devices take part in an interval while every device is there."""
        return share_of(self.participation, len(self.fleet))

    def _there(self, t: int) -> IntN:
        """The devices that are not absent, whether or not they are sampled."""
        return self.absences.present(t, len(self.fleet), self.seeds, self.interval)

    def _sampled(self, k: int) -> IntN:
        """The devices that may take part in interval k: a random share of those there when it begins.

        At least one of them stays until the interval ends, so that a round always has a device.
        """
        ranks = ranks_in(k, len(self.fleet), self.seeds)
        there, at_the_end = self._there(k * self.interval + 1), self._there((k + 1) * self.interval)
        sampled: IntN = there[ranks[there].argsort()][: share_of(self.participation, len(there))]
        if not np.isin(sampled, at_the_end).any():
            sampled[-1] = at_the_end[ranks[at_the_end].argmin()]
        return sampled

    def present_so_far(self, round: int) -> IntN:
        """The sorted indices of the devices that have taken part in any round up to this one."""
        joined = np.zeros(len(self.fleet), dtype=bool)
        for t in range(1, count("round", round) + 1, self.interval):  # devices join when an interval begins
            joined[self.present(t)] = True
            if joined.all():
                break
        return np.flatnonzero(joined)


@lru_cache(maxsize=CACHED_FLEETS)
def _fleet_in(world: World, k: int) -> Fleet:
    return world.rates.fleet_in(k, world.fleet, world.seeds, world.interval)
