"""Worlds: how a fleet changes during a run. Compute and links vary, and devices leave and come back.

A simulated world depends only on the seed and the round, so rounds may be queried in any order. A live world
is what devices report, and its rounds are queried in their order. Rounds count from 1. Intervals count from
0: interval k consists of rounds k I + 1 to (k + 1) I.

A device that is away in a round takes no part in the rest of the interval either, because it lacks the
current model. From the next interval on it can take part again, with the aggregated model.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import log
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import FloatN, IntN, count, frozen, quantity, share
from hasfl.errors import InputError
from hasfl.fleet import PER_DEVICE, PER_SERVER, Device, Fleet, FleetRanges
from hasfl.seeds import Seeds

# ── devices that leave and come back ─────────────────────────────────────────────────────────────────────


# Histories of random absences that are cached. Chosen by hand: a run needs one history at a time.
CACHED_HISTORIES = 8


class Absences(Protocol):
    """Says which devices take part in which round."""

    def present(self, t: int, devices: int, seeds: Seeds, interval: int) -> IntN:
        """The sorted indices of the devices that take part in round t.

        `devices` is the size of the fleet, and `interval` is I.
        """


@dataclass(frozen=True, slots=True)
class AlwaysThere:
    """Every device takes part in every round."""

    def present(self, t: int, devices: int, seeds: Seeds, interval: int) -> IntN:
        """The indices of all devices."""
        return np.arange(devices)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Absences known in advance: the index of a device, and its first and last round away."""

    absences: tuple[tuple[int, int, int], ...]

    def __post_init__(self) -> None:
        for device, first, last in self.absences:
            count("first round of an absence", first)
            if count("last round of an absence", last) < first:
                raise InputError(
                    f"device {device} cannot be away from round {first} to round {last}: swap the two rounds"
                )

    def present(self, t: int, devices: int, seeds: Seeds, interval: int) -> IntN:
        """The devices without an absence between the first round of the interval and round t."""
        first_of_interval = t - (t - 1) % interval
        present = np.ones(devices, dtype=bool)
        for device, first, last in self.absences:
            if not 0 <= device < devices:
                raise InputError(
                    f"the schedule names device {device}, but the fleet has {devices} devices, counted from 0"
                )
            if first <= t and last >= first_of_interval:
                present[device] = False
        if not present.any():
            raise InputError(f"the schedule leaves no device in round {t}: let at least one device stay")
        return np.flatnonzero(present)


@dataclass(frozen=True, slots=True)
class RandomDropout:
    """In every round each device leaves, or comes back, with a fixed probability.

    In round 1 all devices take part. If no device would be left, one device of the previous round stays: the
    device with the largest random number.
    """

    leave: float  # probability that a present device leaves
    come_back: float  # probability that an absent device comes back

    def __post_init__(self) -> None:
        for name in ("leave", "come_back"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} must be a probability from 0 to 1, got {getattr(self, name)!r}")

    def present(self, t: int, devices: int, seeds: Seeds, interval: int) -> IntN:
        """The devices that have not dropped out."""
        rounds = 1 << (t - 1).bit_length()  # the next power of two: later rounds rarely need a new history
        return np.flatnonzero(_history(self, seeds, devices, interval, rounds)[t - 1])


@lru_cache(maxsize=CACHED_HISTORIES)
def _history(
    dropout: RandomDropout, seeds: Seeds, devices: int, interval: int, rounds: int
) -> NDArray[np.bool_]:
    """Which devices take part in which round, as an array (rounds, devices).

    A history of more rounds begins with the history of fewer rounds.
    """
    reachable = taking_part = np.ones(devices, dtype=bool)
    history = [taking_part]
    for t in range(2, rounds + 1):
        draws = seeds.stream("dropout", t).random(devices)
        reachable = np.where(reachable, draws >= dropout.leave, draws < dropout.come_back)
        interval_begins = (t - 1) % interval == 0
        previous, taking_part = taking_part, reachable if interval_begins else reachable & taking_part
        if not taking_part.any():
            # -1 is below every draw, so the maximum is taken over the devices of the previous round.
            stays = np.arange(devices) == np.where(previous, draws, -1.0).argmax()
            reachable, taking_part = reachable | stays, stays
        history.append(taking_part)
    return frozen(np.array(history))


# ── compute and rates that vary ──────────────────────────────────────────────────────────────────────────


VARYING = tuple(field for field in PER_DEVICE if field != "memory")  # fields of a device that may vary
# Random walks that are cached. Chosen by hand: a world has eight walks, one for each field that varies, and
# each may be needed in two lengths.
CACHED_WALKS = 16


class Rates(Protocol):
    """Says how the compute and the rates of a fleet vary."""

    def fleet_in(self, k: int, fleet: Fleet, seeds: Seeds, interval: int) -> Fleet:
        """The fleet in interval k, counted from 0; `interval` is I, the rounds of an interval."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Compute and rates do not vary."""

    def fleet_in(self, k: int, fleet: Fleet, seeds: Seeds, interval: int) -> Fleet:
        """The same fleet in every interval."""
        return fleet


@dataclass(frozen=True, slots=True)
class Redrawn:
    """From interval 1 on, every interval draws all compute and rates uniformly again; memory is constant."""

    ranges: FleetRanges

    def fleet_in(self, k: int, fleet: Fleet, seeds: Seeds, interval: int) -> Fleet:
        """The fleet that is drawn for interval k; in interval 0, `fleet`."""

        def draw(field: str, size: int) -> FloatN:
            low, high = getattr(self.ranges, field)
            return seeds.stream(f"redrawn.{field}", k).uniform(low, high, size)

        return fleet if k == 0 else _with_rates(fleet, draw)


@dataclass(frozen=True, slots=True)
class RandomWalk:
    """From each interval to the next, all compute and rates are multiplied by exp(step · normal).

    A walk that reaches 1/bound or bound times its first value is reflected there. Memory is constant.
    """

    step: float  # standard deviation of one step of the logarithm
    bound: float  # largest factor between a walk and its first value; above 1

    def __post_init__(self) -> None:
        quantity("step of a random walk", self.step)
        if quantity("bound of a random walk", self.bound) <= 1:
            raise InputError(f"bound of a random walk must be a factor above 1, got {self.bound!r}")

    def fleet_in(self, k: int, fleet: Fleet, seeds: Seeds, interval: int) -> Fleet:
        """The fleet in interval k, after k steps of the walk."""

        def walk(field: str, size: int) -> FloatN:
            intervals = 1 << k.bit_length()  # the next power of two: later intervals rarely need a new walk
            walked = self.step * _walked(seeds, field, size, intervals)[k]
            factor = np.exp(_reflected(walked, log(self.bound)))
            # exp and log round, so a factor may exceed the bound by a rounding error without the clip.
            return np.asarray(getattr(fleet, field) * factor.clip(1 / self.bound, self.bound))

        return _with_rates(fleet, walk)


class Change(NamedTuple):
    """From a round on, a field of a device has a new value, in base units."""

    round: int
    device: int  # index in the fleet
    field: str
    value: float


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded changes. A change within an interval takes effect at the beginning of the next interval."""

    rows: tuple[Change, ...]

    def __post_init__(self) -> None:
        for first_round, _, resource, value in self.rows:
            count("round of a trace", first_round)
            if resource not in VARYING:
                raise InputError(f"a trace can change {', '.join(VARYING)}, got {resource!r}")
            quantity(f"{resource} of a trace", value, positive=True)

    def fleet_in(self, k: int, fleet: Fleet, seeds: Seeds, interval: int) -> Fleet:
        """The fleet with all changes up to the first round of interval k."""
        columns: dict[str, Any] = {resource: np.array(getattr(fleet, resource)) for resource in VARYING}
        for first_round, device, resource, value in sorted(self.rows, key=itemgetter(0)):
            if not 0 <= device < len(fleet):
                raise InputError(
                    f"a trace changes device {device}, but the fleet has {len(fleet)} devices, counted from 0"
                )
            if first_round <= k * interval + 1:
                columns[resource][device] = value
        return replace(fleet, **columns)


def _with_rates(fleet: Fleet, draw: Callable[[str, int], FloatN]) -> Fleet:
    """The fleet with new compute and rates: `draw(field, size)` gives the values of a field."""
    columns: dict[str, Any] = {field: draw(field, len(fleet)) for field in VARYING}
    server: dict[str, Any] = {field: float(draw(field, 1)[0]) for field in PER_SERVER}
    return replace(fleet, **columns, **server)


@lru_cache(maxsize=CACHED_WALKS)
def _walked(seeds: Seeds, field: str, size: int, intervals: int) -> NDArray[np.float64]:
    """Sums of standard normal numbers, as an array (intervals, size); the sums of interval 0 are 0.

    A walk of more intervals begins with the walk of fewer intervals.
    """
    steps = [seeds.stream(f"walk.{field}", k).standard_normal(size) for k in range(1, intervals)]
    return frozen(np.cumsum([np.zeros(size), *steps], axis=0))


def _reflected(walked: FloatN, bound: float) -> FloatN:
    """Fold a free walk into the range from -bound to bound.

    The fold has period 4 · bound. It rises from -bound to bound on [-bound, bound], where it is the identity,
    and falls back to -bound on [bound, 3 · bound]. The normal distribution is symmetric, so a folded walk and
    a walk that is reflected at ±bound have the same distribution.
    """
    return bound - np.abs((walked + bound) % (4 * bound) - 2 * bound)


# ── the fleet in each round ──────────────────────────────────────────────────────────────────────────────


# Fleets of intervals that are cached. Chosen by hand: training asks for the current interval only.
CACHED_FLEETS = 64


class ObservedWorld(Protocol):
    """A world that training can query: a simulated world, or the world that devices report."""

    @property
    def fleet(self) -> Fleet:
        """The whole fleet, with the values that were known first."""

    @property
    def interval(self) -> int:
        """I, the rounds between two aggregations."""

    @property
    def usual_participants(self) -> int:
        """The number of devices that take part in an interval if no device is absent."""

    def fleet_at(self, round: int) -> Fleet:
        """The whole fleet in a round. All rounds of an interval get the same object."""

    def present(self, round: int) -> IntN:
        """The sorted indices of the devices that take part in a round; never empty."""

    def present_so_far(self, round: int) -> IntN:
        """The sorted indices of the devices that have taken part in any round up to this one."""


def share_of(participation: float, devices: int) -> int:
    """The number of devices that take part if `devices` are present: their share, rounded, at least 1."""
    return max(int(participation * devices + 0.5), 1)


def ranks_in(k: int, devices: int, seeds: Seeds) -> IntN:
    """The random order in which devices are chosen to take part in interval k: their rank, from 0."""
    return seeds.stream("participation", k).permutation(devices)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class World:
    """A fleet, how its compute and rates vary, and which devices take part in which round."""

    fleet: Fleet  # the fleet in the first interval
    seeds: Seeds
    interval: int  # I, rounds between two aggregations
    rates: Rates = field(default_factory=Fixed)
    absences: Absences = field(default_factory=AlwaysThere)
    participation: float = 1.0  # share of the devices present when an interval begins that takes part in it

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
        """The number of devices that take part in an interval if no device is absent."""
        return share_of(self.participation, len(self.fleet))

    def _there(self, t: int) -> IntN:
        """The devices that are not absent, whether or not they are sampled."""
        return self.absences.present(t, len(self.fleet), self.seeds, self.interval)

    def _sampled(self, k: int) -> IntN:
        """The devices that may take part in interval k: a random share of those present when it begins.

        At least one of these devices stays until the interval ends, so that every round has a device.
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


# ── a world that devices report ──────────────────────────────────────────────────────────────────────────


# Intervals whose fleets are kept. Chosen by hand: training asks for the current interval and its neighbours.
KEPT = 4


class LiveWorld:
    """A world as devices and the edge server report it. An absent device keeps its last values.

    Rounds are queried in their order. A query for an old round gets the fleet of the oldest interval that is
    kept. A report during an interval takes effect in the next interval, so all rounds of an interval have the
    same fleet. A device that connects during an interval takes part from the next interval on.
    """

    def __init__(
        self,
        fleet: Fleet,
        connected: Callable[[], Collection[int]],
        *,
        seeds: Seeds,
        interval: int,
        participation: float = 1.0,
    ) -> None:
        """Begin with the fleet as devices reported it first; `connected` returns the connected devices."""
        self.fleet, self.seeds = fleet, seeds
        self.interval = count("interval", interval)
        self.participation = share("participation", participation)
        self._connected = connected
        self._devices: list[Device] = list(fleet)
        self._server = {field: getattr(fleet, field) for field in PER_SERVER}
        self._fleets: dict[int, Fleet] = {}  # the fleet in each interval
        self._members: dict[int, IntN] = {}  # for each interval, the devices that still take part in it
        self._so_far = np.zeros(len(fleet), dtype=bool)

    def device_reports(self, i: int, device: Device) -> None:
        """Store the newest values of device i."""
        if not 0 <= i < len(self.fleet) or device.name != self.fleet.names[i]:
            raise InputError(f"device {i} must be one of the fleet, but {device.name!r} has reported for it")
        self._devices[i] = device

    def server_reports(
        self, *, server_flops: float, server_fed_up_rate: float, server_fed_down_rate: float
    ) -> None:
        """Store the newest values of the edge server."""
        self._server = {
            "server_flops": server_flops,
            "server_fed_up_rate": server_fed_up_rate,
            "server_fed_down_rate": server_fed_down_rate,
        }

    def fleet_at(self, round: int) -> Fleet:
        """The whole fleet, as it was known at the first query for a round of its interval."""
        k = max(self._interval_of(round), min(self._fleets, default=0))
        if k not in self._fleets:
            self._fleets[k] = Fleet.of(self._devices, **self._server)
            _forget_old(self._fleets)
        return self._fleets[k]

    def present(self, round: int) -> IntN:
        """The devices that have been connected since the first query for a round of the interval.

        If all of them have left, the devices that left last. The engine then finds that they do not answer.
        """
        k = max(self._interval_of(round), min(self._members, default=0))
        connected = np.array(sorted(i for i in self._connected() if 0 <= i < len(self.fleet)), dtype=np.int64)
        if k not in self._members:
            self._members[k] = self._sampled(k, connected)
            _forget_old(self._members)
        left = np.intersect1d(self._members[k], connected)
        if left.size:
            self._members[k] = left
        self._so_far[self._members[k]] = True
        return self._members[k]

    def present_so_far(self, round: int) -> IntN:
        """The sorted indices of the devices that have taken part in any round up to this one."""
        self.present(round)
        return np.flatnonzero(self._so_far)

    @property
    def usual_participants(self) -> int:
        """The number of devices that take part in an interval if no device is absent."""
        return share_of(self.participation, len(self.fleet))

    def _interval_of(self, round: int) -> int:
        return (count("round", round) - 1) // self.interval

    def _sampled(self, k: int, connected: IntN) -> IntN:
        """The connected devices that are sampled for interval k. Raise InputError if none is connected."""
        if not connected.size:
            raise InputError(
                "an interval needs at least one connected device, but none is: start a device, then resume"
            )
        if self.participation == 1:
            return connected
        ranks = ranks_in(k, len(self.fleet), self.seeds)
        chosen = connected[ranks[connected].argsort()][: share_of(self.participation, len(connected))]
        return np.sort(chosen)


def _forget_old(by_interval: dict[int, Any]) -> None:
    for k in sorted(by_interval)[:-KEPT]:
        del by_interval[k]
