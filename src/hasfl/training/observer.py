"""What plans rest on in each round: the devices that take part, their speeds, and the constants."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from statistics import harmonic_mean
from typing import Any, TypeAlias

import numpy as np

from hasfl.arrays import IntN
from hasfl.constants import (
    BoundConstants,
    Conditions,
    Constants,
    Guess,
    Guesses,
    MeasuredConstants,
    possible,
)
from hasfl.errors import InputError
from hasfl.fleet import Fleet
from hasfl.plan import Order, Plan
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.schedule import RateSchedule
from hasfl.theory.objective import target_for_all
from hasfl.theory.paradigms import Paradigm, usual_participants
from hasfl.theory.rounds import MeasuredRounds
from hasfl.training.clock import Effort
from hasfl.training.paper_estimates import Probe, effort_of_estimate, estimate_bound_constants
from hasfl.world import ObservedWorld

# ── where constants come from: known before training, or estimated in training as in the paper ───────────


# The first estimates of the paper's constants as pairs (intervals, rounds): an estimate is made after so many
# intervals, or after the first interval by which so many rounds have passed, whichever is later. These three
# constants are chosen by hand; estimates are rare because they take virtual time (docs/clock.md).
ESTIMATES_AFTER = ((1, 15), (4, 60))
SPACING = 24  # number of intervals between two later estimates
NEWEST = 0.5  # weight of the newest estimate in the running mean


def first_estimates(interval: int) -> tuple[int, ...]:
    """The intervals, of `interval` rounds each, after which the first estimates of constants are made."""
    return tuple(max(least, math.ceil(rounds / interval)) for least, rounds in ESTIMATES_AFTER)


@dataclass(slots=True)
class FixedConstants:
    """Constants that are known before training and do not change; they may be guesses."""

    known: Constants

    @property
    def last_change(self) -> int:
        """0, because the constants never change."""
        return 0

    def learn(self, order: Order, nth: int, allows: Callable[[Effort], bool]) -> Effort | None:
        """Learn nothing, and return None: no effort was made."""
        return None

    def saved(self) -> Mapping[str, Any]:
        """The constants as plain values. A resumed training needs them: another `hasfl` may guess others."""
        return _plain(self.known)

    def restore(self, values: Mapping[str, Any]) -> None:
        """Restore the constants that `saved` returned."""
        if "each" in values:
            self.known = _guesses(values)
        elif "readings" in values:
            raise InputError("an older hasfl wrote it, which measured the constants in training")
        else:
            kind = BoundConstants if "smoothness" in values else MeasuredConstants
            self.known = kind(**values)


@dataclass(slots=True)
class EstimatedConstants:
    """The constants β, σ², G² and ϑ of the paper's bound, as a running mean over estimates in training."""

    probe: Probe
    interval: int  # I, rounds between two aggregations
    stay: bool = False  # whether plans stay after the first estimates; then no later estimate is made
    known: BoundConstants | None = None  # the running mean of the estimates

    @property
    def last_change(self) -> int:
        """The interval after which the last of the first estimates is made, those of `ESTIMATES_AFTER`."""
        return first_estimates(self.interval)[-1]

    def learn(self, order: Order, nth: int, allows: Callable[[Effort], bool]) -> Effort | None:
        """Estimate the constants after the n-th interval, if an estimate is due and `allows` says yes.

        Returns the effort of the estimate, or None without an estimate. An estimate needs a device with two
        samples.
        """
        able = (self.probe.data.sizes[order.devices] >= 2).any()
        due = nth in first_estimates(self.interval) or (not self.stay and nth > 0 and nth % SPACING == 0)
        if not able or not (self.known is None or due):
            return None
        effort = effort_of_estimate(self.probe, order)
        if not allows(effort):
            return None
        newest = estimate_bound_constants(self.probe, order)
        self.known = newest if self.known is None else _between(self.known, newest)
        return effort

    def saved(self) -> Mapping[str, Any]:
        """The constants as plain values; empty before the first estimate."""
        return {} if self.known is None else _plain(self.known)

    def restore(self, values: Mapping[str, Any]) -> None:
        """Restore the constants that `saved` returned."""
        self.known = BoundConstants(**values) if values else None


def _between(old: BoundConstants, new: BoundConstants) -> BoundConstants:
    """The running mean of the paper's constants after a new estimate."""
    mean = {name: (1 - NEWEST) * getattr(old, name) + NEWEST * getattr(new, name) for name in old.symbols}
    return replace(old, **mean)


def _plain(constants: Constants) -> dict[str, Any]:
    """Constants as plain numbers and lists. A curvature of 0 is left out, as in records of older versions."""
    if isinstance(constants, Guesses):
        return {"each": [_values(guess) | {"constants": _plain(guess.constants)} for guess in constants.each]}
    values = _values(constants)
    if not values.get("curvature"):
        values.pop("curvature", None)
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()
    }


def _values(known: BoundConstants | MeasuredConstants | Guess) -> dict[str, Any]:
    return {field.name: getattr(known, field.name) for field in fields(known)}


def _guesses(values: Mapping[str, Any]) -> Guesses:
    """The guesses that `_plain` wrote as plain numbers and lists."""
    return Guesses(
        tuple(
            Guess(**{**each, "constants": MeasuredConstants(**each["constants"])}) for each in values["each"]
        )
    )


ConstantsSource: TypeAlias = FixedConstants | EstimatedConstants


# ── the world ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True, kw_only=True)
class Observer:
    """Makes the planning problem of each round, from a simulated world or the world that devices report."""

    world: ObservedWorld
    paradigm: Paradigm
    profile: Profile
    samples: IntN  # |D_i|, the samples that each device trains on
    rates: RateSchedule  # γ_t, the learning rate of each round
    max_batch: int  # the largest batch size that a plan may have
    target: float | None  # ε; None with measured constants, or if `target_for_all` shall choose it
    source: ConstantsSource
    _last: tuple[Fleet, float, IntN, Problem] | None = None  # the last problem, and what it was made from
    # Laws of rounds with their weights, by learning rate and number of devices.
    _laws: dict[tuple[float, int], list[tuple[float, MeasuredRounds]]] = field(default_factory=dict)

    def participants(self, round: int) -> IntN:
        """The indices of the devices that take part in a round.

        In split and federated training, these are the devices that the world has present. In sequential
        training, it is one device that is present for the whole interval. In centralised training, these are
        all devices that have taken part so far, because the edge server has their samples.
        """
        if self.paradigm.collects_data:
            return self.world.present_so_far(round)
        if not self.paradigm.in_turns:
            return self.world.present(round)
        interval = (round - 1) // self.world.interval
        present = self.world.present((interval + 1) * self.world.interval)
        return present[[interval % len(present)]]

    def fleet(self, round: int, devices: IntN) -> Fleet:
        """The fleet of these devices in a round, with its compute and link rates."""
        return self.world.fleet_at(round).only(devices)

    def problem(self, round: int, devices: IntN) -> Problem:
        """The planning problem of these devices; the same object until the fleet, the rate or they change.

        All rounds of an interval have the learning rate of the first round of the interval.
        """
        fleet = self.world.fleet_at(round)
        rate = self._rate(round)
        last = self._last
        if last is None or last[0] is not fleet or last[1] != rate or not np.array_equal(last[2], devices):
            self._last = last = fleet, rate, devices, self._problem(fleet, rate, devices)
        return last[3]

    def learn(self, order: Order, allows: Callable[[Effort], bool]) -> Effort | None:
        """Estimate the constants again just before an aggregation, if an estimate is due.

        Returns the effort of the estimate, or None without an estimate. `allows` is called only if an
        estimate is due. If it returns False, nothing changes.
        """
        effort = self.source.learn(order, order.round // self.world.interval, allows)
        if effort is not None:
            self._forget()
        return effort

    def slowness(self, round: int, plan: Plan) -> float:
        """B, the slowness of a plan: B rounds under the plan are worth one with infinitely large batches.

        With several guesses, 1/B is the weighted mean of 1/B over the guesses. With the paper's constants, B
        is always 1, so that all rounds count the same.
        """
        rate, devices = self._rate(round), len(plan)
        if (rate, devices) not in self._laws:
            self._laws[rate, devices] = [
                (weight, MeasuredRounds.with_constants(each, self.profile, devices, self.world.interval))
                for weight, each in possible(self._constants(rate, devices))
            ]
        laws = self._laws[rate, devices]
        if not laws:  # the paper's constants
            return 1.0
        depth = self.paradigm.private_depth(plan, len(self.profile))
        slowness = [law.slowness(plan.batch_sizes, depth) for _, law in laws]
        return harmonic_mean(slowness, [weight for weight, _ in laws])

    def saved(self) -> Mapping[str, Any]:
        """The present constants, as plain values."""
        return self.source.saved()

    def restore(self, values: Mapping[str, Any]) -> None:
        """Restore the constants that `saved` returned."""
        self.source.restore(values)
        self._forget()

    def _forget(self) -> None:
        """Drop the cached problem and the cached laws, after the constants have changed."""
        self._last = None
        self._laws.clear()

    def _rate(self, round: int) -> float:
        """The learning rate that plans use for a round: the rate of the first round of its interval."""
        return self.rates.for_plans(round - (round - 1) % self.world.interval)

    def _constants(self, rate: float, devices: int) -> Constants:
        """The present constants, converted to a learning rate and a number of devices."""
        usual, interval = usual_participants(self.world, self.paradigm), self.world.interval
        known = Conditions(self.rates.learning_rate, usual, interval)
        assert self.source.known is not None, "constants are estimated before the first plan"
        return self.source.known.under(Conditions(rate, devices, interval), known)

    def _problem(self, fleet: Fleet, rate: float, devices: IntN) -> Problem:
        constants, target = self._constants(rate, len(devices)), self.target
        if target is None:  # one that every plan reaches; None if the law of rounds needs no target
            target = target_for_all(
                constants,
                self.profile,
                devices=len(devices),
                learning_rate=rate,
                interval=self.world.interval,
            )
        return Problem(
            fleet=fleet.only(devices),
            profile=self.profile,
            constants=constants,
            learning_rate=rate,
            interval=self.world.interval,
            target=target,
            max_batch=self.max_batch,
            samples=self.samples[devices],
        )
