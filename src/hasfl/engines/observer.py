"""What is known in a round: who is there, how fast they are, and what the gradients' constants are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, SupportsFloat

import numpy as np

from hasfl.arrays import IntN
from hasfl.engines.api import Order
from hasfl.engines.constants import GUESS_ERROR, Constants
from hasfl.engines.local import LocalEngine
from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.profile import GradientStats, MeasuredStats, Profile
from hasfl.theory.bound import default_target
from hasfl.world import World

SINGLE_NOISE, SINGLE_NOISE_UNREAD = 1.5, 100.0  # of a batch norm over one sample, by what training showed


@dataclass(slots=True, kw_only=True)
class WorldObserver:
    """Watches a simulated world."""

    engine: LocalEngine
    world: World
    profile: Profile
    samples: IntN  # |D_i|
    learning_rate: float
    max_batch: int
    min_batch: int  # 2 where a batch norm would see single samples, which are then only used if it pays
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
            target=self._target(stats, devices) if isinstance(stats, GradientStats) else None,
            max_batch=self.max_batch,
            min_batch=self.min_batch,
            single_noise=self._single_noise(stats),
            samples=self.samples[devices],
        )

    def _single_noise(self, stats: GradientStats | MeasuredStats) -> float:
        """What noise of single samples counts; much, until a reading says how much noise there is."""
        if self.min_batch == 1 or isinstance(stats, GradientStats):
            return 1.0
        return SINGLE_NOISE if stats.noise_error < GUESS_ERROR else SINGLE_NOISE_UNREAD

    def _target(self, stats: GradientStats, devices: IntN) -> float:
        """ε; if not given, what every plan reaches: nothing has more noise than single samples at cut L."""
        if self.target is not None:
            return self.target
        worst = Plan.uniform(len(devices), batch_size=1, cut=len(self.profile))
        return default_target(worst, stats, learning_rate=self.learning_rate, interval=self.world.interval)
