"""The world as it is in a round: who is present, how fast they are, and the constants that plans rest on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, SupportsFloat

import numpy as np

from hasfl.arrays import IntN
from hasfl.constants import Constants
from hasfl.fleet import Fleet
from hasfl.plan import Order
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.readings.probe import Probe
from hasfl.readings.sources import ConstantsSource
from hasfl.theory.laws import target_for_all
from hasfl.theory.paradigms import Paradigm
from hasfl.world import World


@dataclass(slots=True, kw_only=True)
class WorldObserver:
    """Watches a simulated world."""

    probe: Probe
    world: World
    paradigm: Paradigm
    profile: Profile
    samples: IntN  # |D_i|
    learning_rate: float
    max_batch: int
    target: float | None  # ε, where the constants are the paper's
    source: ConstantsSource
    _last: tuple[Fleet, IntN, Problem] | None = None  # the last problem, and what it was made from

    def participants(self, round: int) -> IntN:
        """The devices that are present.

        In turns: one device that is present for the whole interval. Where the server has collected the data,
        all devices whose samples it has, present or not.
        """
        if self.paradigm.collects_data:
            return self.world.present_so_far(round)
        if not self.paradigm.in_turns:
            return self.world.present(round)
        interval = (round - 1) // self.world.interval
        present = self.world.present((interval + 1) * self.world.interval)
        return present[[interval % len(present)]]

    def fleet(self, round: int, devices: IntN) -> Fleet:
        """The compute and the link rates of these devices, and of the servers."""
        return self.world.fleet_at(round).only(devices)

    def problem(self, round: int, devices: IntN) -> Problem:
        """The planning problem of these devices: the same object until something changes."""
        fleet = self.world.fleet_at(round)
        last = self._last
        if last is None or last[0] is not fleet or not np.array_equal(last[1], devices):
            self._last = last = fleet, devices, self._problem(fleet, devices)
        return last[2]

    def learn(self, order: Order, loss: SupportsFloat) -> Mapping[str, Any] | None:
        """Renew the constants, if it is time; returns an entry for the records."""
        entry = self.source.learn(self.probe, order, order.round // self.world.interval, loss)
        if entry is not None:
            self._last = None
        return entry

    def saved(self) -> Mapping[str, Any]:
        """Everything that was learnt of the constants."""
        return self.source.saved()

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take back what `saved` returned."""
        self.source.restore(values)

    def _problem(self, fleet: Fleet, devices: IntN) -> Problem:
        constants = self.source.constants()
        return Problem(
            fleet=fleet.only(devices),
            profile=self.profile,
            constants=constants,
            learning_rate=self.learning_rate,
            interval=self.world.interval,
            target=self._target(constants, devices),
            max_batch=self.max_batch,
            samples=self.samples[devices],
        )

    def _target(self, constants: Constants, devices: IntN) -> float | None:
        """ε, where the law of rounds needs one; if none was given, a target that every plan reaches."""
        if self.target is not None:
            return self.target
        return target_for_all(
            constants,
            self.profile,
            devices=len(devices),
            learning_rate=self.learning_rate,
            interval=self.world.interval,
        )
