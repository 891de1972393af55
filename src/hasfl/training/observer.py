"""The world as it is in a round: who is present, how fast they are, and the constants that plans rest on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, SupportsFloat

import numpy as np

from hasfl.arrays import IntN
from hasfl.constants import Conditions, Constants
from hasfl.fleet import Fleet
from hasfl.plan import Order
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.readings.probe import Probe
from hasfl.readings.sources import ConstantsSource
from hasfl.schedule import RateSchedule
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
    rates: RateSchedule  # γ_t
    max_batch: int
    target: float | None  # ε, where the constants are the paper's
    source: ConstantsSource
    _last: tuple[Fleet, float, IntN, Problem] | None = None  # the last problem, and what it was made from

    def participants(self, round: int) -> IntN:
        """The devices that are present, or the share of them that is sampled for the interval.

        In turns: one of these devices that is there for the whole interval. Where the server has collected
        the data, all devices that have taken part so far, because the server has their samples.
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
        """The planning problem of these devices: the same object until something changes.

        All rounds of an interval have the learning rate of its first round.
        """
        fleet = self.world.fleet_at(round)
        rate = self.rates.for_plans(round - (round - 1) % self.world.interval)
        last = self._last
        if last is None or last[0] is not fleet or last[1] != rate or not np.array_equal(last[2], devices):
            self._last = last = fleet, rate, devices, self._problem(fleet, rate, devices)
        return last[3]

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

    def _problem(self, fleet: Fleet, rate: float, devices: IntN) -> Problem:
        known = Conditions(self.rates.learning_rate, usual_participants(self.world, self.paradigm))
        constants = self.source.constants().under(Conditions(rate, len(devices)), known)
        return Problem(
            fleet=fleet.only(devices),
            profile=self.profile,
            constants=constants,
            learning_rate=rate,
            interval=self.world.interval,
            target=self._target(constants, rate, devices),
            max_batch=self.max_batch,
            samples=self.samples[devices],
        )

    def _target(self, constants: Constants, rate: float, devices: IntN) -> float | None:
        """ε, where the law of rounds needs one; if none was given, a target that every plan reaches."""
        if self.target is not None:
            return self.target
        return target_for_all(
            constants,
            self.profile,
            devices=len(devices),
            learning_rate=rate,
            interval=self.world.interval,
        )


def usual_participants(world: World, paradigm: Paradigm) -> int:
    """The number of devices that a training's constants are kept for: those of a round with nobody absent."""
    if paradigm.in_turns:
        return 1
    return len(world.fleet) if paradigm.collects_data else world.usual_participants
