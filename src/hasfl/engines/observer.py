"""What is known in a round: who is there, how fast they are, and what the gradients' constants are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, SupportsFloat

import numpy as np

from hasfl.arrays import IntN
from hasfl.engines.api import Order
from hasfl.engines.constants import Constants
from hasfl.engines.local import LocalEngine
from hasfl.fleet import Fleet
from hasfl.problem import Problem
from hasfl.profile import Profile, Stats
from hasfl.theory.laws import target_for_all
from hasfl.world import World


@dataclass(slots=True, kw_only=True)
class WorldObserver:
    """Watches a simulated world."""

    engine: LocalEngine
    world: World
    profile: Profile
    samples: IntN  # |D_i|
    learning_rate: float
    max_batch: int
    target: float | None  # ε, where the constants are the paper's
    constants: Constants
    in_turns: bool  # whether devices take part one after the other
    _known: tuple[Fleet, IntN, Problem] | None = None

    def participants(self, round: int) -> IntN:
        """Those who are there; where they work in turns, one who is there for the whole interval."""
        if not self.in_turns:
            return self.world.present(round)
        interval = self._interval(round)
        present = self.world.present((interval + 1) * self.world.interval)
        return present[[interval % len(present)]]

    def problem(self, round: int, devices: IntN) -> Problem:
        """The problem as it stands: the same object until something changes."""
        fleet = self.world.fleet_at(round)
        known = self._known
        if known is None or known[0] is not fleet or not np.array_equal(known[1], devices):
            self._known = known = fleet, devices, self._problem(fleet, devices)
        return known[2]

    def learn(self, order: Order, loss: SupportsFloat) -> Mapping[str, Any] | None:
        """Renew the constants, if it is time; what was found."""
        found = self.constants.learn(self.engine, order, order.round // self.world.interval, loss)
        if found is not None:
            self._known = None
        return found

    def saved(self) -> Mapping[str, Any]:
        """What the constants are known from."""
        return self.constants.saved()

    def restore(self, values: Mapping[str, Any]) -> None:
        """Go on with constants that were learnt before."""
        self.constants.restore(values)

    def _interval(self, round: int) -> int:
        return (round - 1) // self.world.interval

    def _problem(self, fleet: Fleet, devices: IntN) -> Problem:
        stats = self.constants.stats()
        return Problem(
            fleet=fleet.only(devices),
            profile=self.profile,
            stats=stats,
            learning_rate=self.learning_rate,
            interval=self.world.interval,
            target=self._target(stats, devices),
            max_batch=self.max_batch,
            samples=self.samples[devices],
        )

    def _target(self, stats: Stats, devices: IntN) -> float | None:
        """ε, where the law of rounds needs one; if not given, one that every plan reaches."""
        if self.target is not None:
            return self.target
        return target_for_all(
            stats,
            self.profile,
            devices=len(devices),
            learning_rate=self.learning_rate,
            interval=self.world.interval,
        )
