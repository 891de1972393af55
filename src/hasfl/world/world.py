"""The world: the state of the fleet in each round, and the devices that take part."""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from hasfl.arrays import IntN, count
from hasfl.fleet import Fleet
from hasfl.seeds import Seeds
from hasfl.world.absences import Absences, AlwaysThere
from hasfl.world.rates import Fixed, Rates

# Fleets of intervals that are cached. Chosen by hand: training asks for the current interval only.
CACHED_FLEETS = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class World:
    """A fleet, how its compute and rates vary, and which devices take part in which round."""

    fleet: Fleet  # in the first interval
    seeds: Seeds
    interval: int  # I, rounds between two aggregations
    rates: Rates = field(default_factory=Fixed)
    absences: Absences = field(default_factory=AlwaysThere)

    def __post_init__(self) -> None:
        count("interval", self.interval)

    def fleet_at(self, round: int) -> Fleet:
        """The whole fleet in a round. All rounds of an interval get the same object."""
        return _fleet_in(self, (count("round", round) - 1) // self.interval)

    def present(self, round: int) -> IntN:
        """The sorted indices of the devices that take part in a round; never empty."""
        t = count("round", round)
        return self.absences.present(t, len(self.fleet), self.seeds, self.interval)

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
