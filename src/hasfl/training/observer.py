"""The world as it is in a round: who is present, how fast they are, and the constants that plans rest on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import harmonic_mean
from typing import Any

import numpy as np

from hasfl.arrays import IntN
from hasfl.constants import Conditions, Constants, possible
from hasfl.effort import Effort, Learnt
from hasfl.fleet import Fleet
from hasfl.plan import Order, Plan
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.schedule import RateSchedule
from hasfl.theory.objective import target_for_all
from hasfl.theory.paradigms import Paradigm, usual_participants
from hasfl.theory.rounds import MeasuredRounds
from hasfl.training.constants_source import ConstantsSource
from hasfl.world import ObservedWorld


@dataclass(slots=True, kw_only=True)
class WorldObserver:
    """Watches a world: a simulated one, or the one that devices report."""

    world: ObservedWorld
    paradigm: Paradigm
    profile: Profile
    samples: IntN  # |D_i|
    rates: RateSchedule  # γ_t
    max_batch: int
    target: float | None  # ε, where the constants are the paper's
    source: ConstantsSource
    _last: tuple[Fleet, float, IntN, Problem] | None = None  # the last problem, and what it was made from
    _laws: dict[tuple[float, int], list[tuple[float, MeasuredRounds]]] = field(
        default_factory=dict
    )  # with their weights

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
        rate = self._rate(round)
        last = self._last
        if last is None or last[0] is not fleet or last[1] != rate or not np.array_equal(last[2], devices):
            self._last = last = fleet, rate, devices, self._problem(fleet, rate, devices)
        return last[3]

    def learn(self, order: Order, allows: Callable[[Effort], bool]) -> Learnt | None:
        """Renew the constants, if it is time and allowed; returns what was learnt and what it took."""
        learnt = self.source.learn(order, order.round // self.world.interval, allows)
        if learnt is not None:
            self._forget()
        return learnt

    def slowness(self, round: int, plan: Plan) -> float:
        """B of a round under a plan, with the layers that the paradigm makes private.

        With several guesses, 1/B is the mean over them. B is 1 where the constants are the paper's: then all
        rounds count the same.
        """
        laws = self._weighted_laws(self._rate(round), len(plan))
        depth = self.paradigm.private_depth(plan, len(self.profile))
        if not laws:
            return 1.0
        slowness = [law.slowness(plan.batch_sizes, depth) for _, law in laws]
        return harmonic_mean(slowness, [weight for weight, _ in laws])

    def saved(self) -> Mapping[str, Any]:
        """Everything that was learnt of the constants."""
        return self.source.saved()

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take back what `saved` returned."""
        self.source.restore(values)
        self._forget()

    def _forget(self) -> None:
        """Forget what was made from constants that are old now."""
        self._last = None
        self._laws.clear()

    def _rate(self, round: int) -> float:
        """The learning rate that plans take for a round: that of the first round of its interval."""
        return self.rates.for_plans(round - (round - 1) % self.world.interval)

    def _weighted_laws(self, rate: float, devices: int) -> list[tuple[float, MeasuredRounds]]:
        """The law of rounds for so many devices by each guess; none where the constants are the paper's."""
        key = rate, devices
        if key not in self._laws:
            self._laws[key] = [
                (weight, MeasuredRounds.with_constants(each, self.profile, devices, self.world.interval))
                for weight, each in possible(self._constants(rate, devices))
            ]
        return self._laws[key]

    def _constants(self, rate: float, devices: int) -> Constants:
        """The constants as they are known now, for a learning rate and a number of devices."""
        usual, interval = usual_participants(self.world, self.paradigm), self.world.interval
        known = Conditions(self.rates.learning_rate, usual, interval)
        return self.source.constants().under(Conditions(rate, devices, interval), known)

    def _problem(self, fleet: Fleet, rate: float, devices: IntN) -> Problem:
        constants = self._constants(rate, len(devices))
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
