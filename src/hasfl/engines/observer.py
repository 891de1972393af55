"""What is known in a round: who is there, how fast they are, and what the gradients' constants are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hasfl.arrays import IntN
from hasfl.engines.api import Order
from hasfl.engines.local import LocalEngine
from hasfl.engines.statistics import estimate_statistics
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.profile import GradientStats, Profile
from hasfl.theory.bound import default_target
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
    target: float | None  # ε
    stats: GradientStats
    estimates: bool  # whether the constants are estimated while training
    in_turns: bool  # whether devices take part one after the other
    _problems: dict[tuple[int, bytes], Problem] = field(default_factory=dict)

    def participants(self, round: int) -> IntN:
        """Those who are there; where they work in turns, one who is there for the whole interval."""
        if not self.in_turns:
            return self.world.present(round)
        interval = self._interval(round)
        present = self.world.present((interval + 1) * self.world.interval)
        return present[[interval % len(present)]]

    def problem(self, round: int, devices: IntN) -> Problem:
        """The problem as it stands: the same object until something changes."""
        key = (self._interval(round), devices.tobytes())
        if key not in self._problems:
            self._problems = {key: self._problem(round, devices)}
        return self._problems[key]

    def learn(self, order: Order) -> None:
        """Renew the constants, if they are not given."""
        if self.estimates and (self.samples[order.devices] >= 2).any():
            self.stats = estimate_statistics(self.engine, order)
            self._problems = {}

    def saved(self) -> Mapping[str, Any]:
        """The constants as plain numbers."""
        stats = self.stats
        return {
            "smoothness": stats.smoothness,
            "initial_gap": stats.initial_gap,
            "variance_of": stats.variance_of.tolist(),
            "moment_of": stats.moment_of.tolist(),
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take back constants that were estimated before."""
        self.stats = GradientStats(**values)

    def _interval(self, round: int) -> int:
        return (round - 1) // self.world.interval

    def _problem(self, round: int, devices: IntN) -> Problem:
        return Problem(
            fleet=self.world.fleet_at(round).only(devices),
            profile=self.profile,
            stats=self.stats,
            learning_rate=self.learning_rate,
            interval=self.world.interval,
            target=self._default_target(devices) if self.target is None else self.target,
            max_batch=self.max_batch,
            samples=self.samples[devices],
        )

    def _default_target(self, devices: IntN) -> float:
        """What every plan can reach: single samples, and the whole model on every device, have most noise."""
        worst = Plan.uniform(len(devices), batch_size=1, cut=len(self.profile))
        return default_target(
            worst, self.stats, learning_rate=self.learning_rate, interval=self.world.interval
        )
