"""The fleet as it is in a round, and who of it is there."""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from hasfl.arrays import IntN, count
from hasfl.fleet import Fleet
from hasfl.seeds import Seeds
from hasfl.world.absences import Absences, AlwaysThere
from hasfl.world.rates import Fixed, Rates


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class World:
    """A fleet, how it varies, and who is away when."""

    fleet: Fleet  # as it is in the first interval
    seeds: Seeds
    interval: int  # I
    rates: Rates = field(default_factory=Fixed)
    absences: Absences = field(default_factory=AlwaysThere)

    def __post_init__(self) -> None:
        count("interval", self.interval)

    def fleet_at(self, round: int) -> Fleet:
        """The whole fleet during a round: the same object throughout an interval."""
        return _fleet_in(self, (count("round", round) - 1) // self.interval)

    def present(self, round: int) -> IntN:
        """The sorted indices of the devices that take part in a round; never empty."""
        t = count("round", round)
        return self.absences.present(t, len(self.fleet), self.seeds, self.interval)

    def present_so_far(self, round: int) -> IntN:
        """The sorted indices of the devices that have taken part in any round up to this one."""
        first_rounds = range(1, count("round", round) + 1, self.interval)  # devices join with an interval
        return np.unique(np.concatenate([self.present(t) for t in first_rounds]))


@lru_cache(maxsize=64)
def _fleet_in(world: World, k: int) -> Fleet:
    return world.rates.fleet_in(k, world.fleet, world.seeds, world.interval)
