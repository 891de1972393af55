"""Compute, links and memory of devices and the edge server: measured before training, then in every round.

A device measures its compute on the model's own layers before training begins. During training, every pass
and every transfer updates the measured values. Plans use the newest values, and deadlines use plans.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from resource import getpagesize
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hasfl.arrays import quantity
from hasfl.deployment.links import Links, ask
from hasfl.deployment.messages import Probe, Probed
from hasfl.deployment.pacing import SlowTo
from hasfl.errors import InputError
from hasfl.fleet import Device
from hasfl.learning.memory import available_memory
from hasfl.learning.state import LayerState, forward, trainable
from hasfl.models.layered_model import LayeredModel
from hasfl.plan import Order
from hasfl.profile import Profile
from hasfl.record import EDGE
from hasfl.theory.latency import Arrangement
from hasfl.training.clock import ModelledClock
from hasfl.units import BITS_PER_BYTE
from hasfl.world import LiveWorld

# ── one machine ──────────────────────────────────────────────────────────────────────────────────────────


# The numbers below were chosen by hand.
BATCH, CUTS, REPEATS = 8, 4, 3  # batch size, cuts, and passes per cut, in a measurement of compute
LONGEST = 10.0  # seconds after which a measurement of compute begins no further cut
INTERVALS = 5  # number of last intervals whose values are kept
FADING = 0.5  # weight of an interval's value, relative to the next interval's value
OUTLIER = 1.5  # factor from the median beyond which one value may be left out
TRANSFERS = 64  # number of last transfers that are kept for each link in an interval
SPREAD = 4.0  # smallest ratio of the largest to the smallest transfer, to measure both rate and latency
TELLING = 1 / 3  # smallest ratio of the largest transfer's bits / rate to the latency, to measure the rate
FEWEST = 4  # smallest number of transfers, to measure both rate and latency
UNMEASURED_RATE = 100e6  # assumed bit/s of a link before its first measurement
# File names of a Linux control group: its memory limit, its memory use, and the name of cached files in its
# memory.stat. The key is the group's controllers.
GROUP_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),  # version 2, which names no controllers
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),  # version 1
}
USABLE = 0.9  # share of the free memory that training may take; the rest is for the system


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The compute, link rates and memory of a device or the edge server, as in `hasfl.fleet.Device`."""

    flops: float  # FLOP/s
    up_rate: float  # bit/s, as the other rates
    down_rate: float
    fed_up_rate: float
    fed_down_rate: float
    memory: float  # bits

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            quantity(f"{name} of a device's resources", value, positive=True)

    def as_device(self, name: str) -> Device:
        """A device of a fleet with this name and these resources."""
        return Device(name=name, **asdict(self))

    def as_server(self) -> dict[str, float]:
        """These resources as a fleet's fields for its edge server, whose only links are to the fed server."""
        return {
            "server_flops": self.flops,
            "server_fed_up_rate": self.fed_up_rate,
            "server_fed_down_rate": self.fed_down_rate,
        }


LINKS = ("up_rate", "down_rate", "fed_up_rate", "fed_down_rate")  # fields of `Resources`


class Transfer(NamedTuple):
    """The size of a message, and how long it was under way."""

    bits: float
    seconds: float


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """The speed of a link: a message takes latency + bits / rate seconds."""

    rate: float  # bit/s
    latency: float = 0.0  # s

    def seconds(self, bits: float) -> float:
        """How long a message of `bits` bits is under way."""
        return self.latency + bits / self.rate

    def effective_rate(self, bits: float) -> float:
        """The rate in bit/s at which a message of `bits` bits would take as long without latency."""
        return bits / self.seconds(bits)


def fit_link(transfers: Sequence[Transfer], known: LinkSpeed) -> LinkSpeed:
    """The speed of a link, estimated from its last transfers with medians, which tolerate some outliers.

    Small messages show the latency, and large ones the rate. Messages of about the same size show only one of
    the two numbers: the one that takes more of their time. The other number stays as in `known`.
    """
    if not transfers:
        return known
    bits, seconds = np.array(transfers, dtype=np.float64).T
    if len(transfers) >= FEWEST and bits.max() >= SPREAD * bits.min():
        pace = _slope(bits, seconds)
        latency = _latency(bits, seconds, pace)
        if pace > 0 and pace * bits.max() > TELLING * latency:
            return LinkSpeed(1 / pace, latency)
        return LinkSpeed(known.rate, _latency(bits, seconds, 1 / known.rate))
    if float(np.median(bits)) / known.rate < known.latency:
        return LinkSpeed(known.rate, _latency(bits, seconds, 1 / known.rate))
    sending = np.maximum(seconds - known.latency, seconds / 2)
    return LinkSpeed(float(1 / np.median(sending / bits)), known.latency)


def _slope(bits: NDArray[np.float64], seconds: NDArray[np.float64]) -> float:
    """The seconds per bit: the weighted median of the slopes between all pairs of transfers.

    This is the estimator of Theil and Sen. The weight of a pair is the difference of its sizes, because the
    slope between two transfers of about the same size is mostly noise.
    """
    one, other = np.triu_indices(len(bits), k=1)
    distance = np.abs(bits[one] - bits[other])
    apart = distance > 0
    slopes = (seconds[one] - seconds[other])[apart] / (bits[one] - bits[other])[apart]
    order = np.argsort(slopes)
    weight = np.cumsum(distance[apart][order])
    return float(slopes[order][np.searchsorted(weight, weight[-1] / 2)])


def _latency(bits: NDArray[np.float64], seconds: NDArray[np.float64], pace: float) -> float:
    """The latency: the median of seconds − pace · bits over the smaller half of the transfers, at least 0."""
    small = bits <= np.median(bits)
    return max(float(np.median((seconds - pace * bits)[small])), 0.0)


def recent_mean(values: Sequence[float]) -> float:
    """The weighted geometric mean of values, oldest first; older values weigh less.

    Of three or more values, the one farthest from the median has no weight if it differs by more than the
    factor `OUTLIER`. So a large change counts from its second interval on, and a small one at once.
    """
    logs = np.log(np.array(values))
    weights = FADING ** np.arange(len(logs))[::-1]
    distance = np.abs(logs - np.median(logs))
    if len(logs) > 2 and distance.max() > np.log(OUTLIER):
        weights[distance.argmax()] = 0.0
    return float(np.exp(np.average(logs, weights=weights)))


class ResourceMeter:
    """Measures the resources of a party during training; begins with the given `flops` and `rates`.

    The paper's links have a rate and no latency, Eqs. (29) to (37). So the rates of `resources` are effective
    rates: without latency, messages of the interval's median size would take as long at these rates.
    """

    def __init__(
        self, flops: float, memory: Callable[[], float], rates: Mapping[str, float] | None = None
    ) -> None:
        given = rates or {}
        self.memory = memory  # returns the memory that is free for training, in bits
        self.links = {link: LinkSpeed(given.get(link, UNMEASURED_RATE)) for link in LINKS}
        self._first = {"flops": flops} | {link: speed.rate for link, speed in self.links.items()}
        self._intervals: dict[str, deque[float]] = {name: deque(maxlen=INTERVALS) for name in self._first}
        self._passes: list[float] = []  # FLOP/s in each round of this interval
        self._transfers: dict[str, deque[Transfer]] = {link: deque(maxlen=TRANSFERS) for link in LINKS}

    def computed(self, flop_count: float, seconds: float) -> None:
        """Note the FLOP of a round's forward and backward pass, and the seconds of both together."""
        if flop_count > 0 and seconds > 0:
            self._passes.append(flop_count / seconds)

    def transferred(self, link: str, bits: float, seconds: float) -> None:
        """Note the bits and seconds of a message on a link, which is named as in `Resources`."""
        if bits > 0 and seconds > 0:
            self._transfers[link].append(Transfer(bits, seconds))

    def end_interval(self) -> Resources:
        """Update the resources with the measurements of this interval, and return them."""
        if self._passes:
            self._intervals["flops"].append(float(np.median(self._passes)))
            self._passes = []
        for link, transfers in self._transfers.items():
            if transfers:
                self.links[link] = fit_link(list(transfers), self.links[link])
                usual = float(np.median([transfer.bits for transfer in transfers]))
                self._intervals[link].append(self.links[link].effective_rate(usual))
                transfers.clear()
        return self.resources()

    def resources(self) -> Resources:
        """The resources, from all intervals that have ended."""
        known = {name: recent_mean(values or [self._first[name]]) for name, values in self._intervals.items()}
        return Resources(memory=self.memory(), **known)


def measure_flops(model: LayeredModel, profile: Profile, slow: SlowTo | None = None) -> float:
    """The FLOP/s of this machine on the first layers of a model: the median over several cuts.

    The model and torch's random numbers do not change. `slow` imitates a slower machine.
    """
    found: list[float] = []
    began = time.monotonic()
    with torch.random.fork_rng(devices=[]):
        for cut in _cuts(profile):
            if not found or time.monotonic() - began < LONGEST:
                found.append(_flops_of_cut(model, profile, cut, slow))
    return float(np.median(found))


def _cuts(profile: Profile) -> list[int]:
    """Up to CUTS cuts in the first half of the layers, from the first layer that has any FLOP."""
    (working,) = np.nonzero(profile.forward_flops_upto)
    if not working.size:
        raise InputError("a model must take at least one FLOP, so that a device can measure its FLOP/s on it")
    first = int(working[0]) + 1
    last = max(first, (len(profile) + 1) // 2)
    return sorted({round(cut) for cut in np.linspace(first, last, CUTS)})


def _flops_of_cut(model: LayeredModel, profile: Profile, cut: int, slow: SlowTo | None) -> float:
    """The FLOP/s of one cut: the median over REPEATS passes, after one pass in which torch warms up."""
    layers = list(model.layers.values())[:cut]
    states = [trainable(LayerState.of(layer, lambda weight: {})) for layer in layers]
    weights = [weight for state in states for weight in state.weights.values()]
    where = weights[0].device if weights else torch.device("cpu")
    example = model.example_input
    x = torch.zeros(BATCH, *example.shape[1:], dtype=example.dtype, device=where)
    if example.is_floating_point():
        x.normal_()
    work = BATCH * float(profile.forward_flops_upto[cut - 1] + profile.backward_flops_upto[cut - 1])

    def both_passes() -> None:
        y: Tensor = forward(layers, states, x)
        if y.requires_grad:
            torch.autograd.grad(y, weights, grad_outputs=torch.ones_like(y), allow_unused=True)
        if where.type == "cuda":
            torch.cuda.synchronize(where)

    seconds = []
    for _ in range(1 + REPEATS):
        began = time.monotonic()
        with slow.step(work) if slow else nullcontext():
            both_passes()
        seconds.append(time.monotonic() - began)
    return work / float(np.median(seconds[1:]))


class FreeMemory:
    """The memory that training may take, in bits; memory that training has already taken counts as free."""

    def __init__(self, device: torch.device, limit: float | None = None, sharers: int = 1) -> None:
        self.device = device
        self.limit = limit  # bits that the owner allows at most; None: no limit
        self.sharers = sharers  # number of processes that train on this machine at the same time
        self._held_at_start = _held(device)

    def __call__(self) -> float:
        """The free memory now, in bits."""
        room = available_memory(self.device)
        if self.device.type == "cpu":
            room = min([room, *group_rooms(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))])
        taken = max(_held(self.device) - self._held_at_start, 0)
        free = BITS_PER_BYTE * USABLE * (room / self.sharers + taken)
        return max(free if self.limit is None else min(free, self.limit), 1.0)


def _held(device: torch.device) -> int:
    """The bytes of memory that this process holds now."""
    if device.type == "cuda":
        return int(torch.cuda.memory_reserved(device))
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * getpagesize()


def group_rooms(root: Path, membership: Path) -> list[int]:
    """The free bytes in each Linux control group of this process that has a memory limit.

    `root` is the folder where control groups are mounted, and the file `membership` lists the groups of this
    process. Memory that only caches files counts as free.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    found = (line.split(":", 2) for line in lines if line.count(":") >= 2)
    return [
        room
        for _, controllers, path in found
        if controllers in GROUP_FILES
        for folder in _up_to_the_top(root / controllers, path)
        if (room := _room(folder, *GROUP_FILES[controllers])) is not None
    ]


def _up_to_the_top(top: Path, path: str) -> list[Path]:
    """The folder of a control group and those of its parents, whose limits hold too."""
    own = top / path.strip("/")
    return [folder for folder in (own, *own.parents) if folder.is_relative_to(top)]


def _room(folder: Path, limit: str, usage: str, cached: str) -> int | None:
    """The free bytes below the memory limit of one control group; None without a limit."""
    try:
        most, used = int((folder / limit).read_text()), int((folder / usage).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return max(most - used + int(stat.get(cached, 0)), 0)


# ── links, before the first round ────────────────────────────────────────────────────────────────────────


# The numbers below were chosen by hand.
PROBE_SIZES = tuple(2**power for power in (12, 15, 18, 21))  # bytes of the probes, in the order of sending
# Seconds that a probe should take at most in one direction. A probe that would take longer is not sent.
LONGEST_PROBE = 0.2
PROBE_SECONDS = 120.0  # time limit for the answer to a probe
SHORTEST_WAY = 1e-6  # smallest seconds that a message counts with; clocks may say 0


def answer_probe(question: Probe) -> Probed:
    """Send back as many bytes as the probe asks for, so that the asker can measure the link."""
    return Probed(bytes=torch.zeros(question.count, dtype=torch.uint8))


def probe_rates(links: Links, parties: Collection[int]) -> dict[int, dict[str, float]]:
    """Measure the links between the fed server and parties: bit/s by the names of `Resources`.

    A party that does not answer is missing. The links between a device and the edge server are assumed to be
    as fast as those between the device and the fed server.
    """
    rates: dict[int, dict[str, float]] = {}
    left = set(parties)
    for size, larger in zip(PROBE_SIZES, (*PROBE_SIZES[1:], PROBE_SIZES[-1]), strict=True):
        probe = Probe(count=size, bytes=torch.zeros(size, dtype=torch.uint8))
        answers = ask(links, dict.fromkeys(left, probe), PROBE_SECONDS)
        rates = {party: of for party, of in rates.items() if party not in left or party in answers}
        for party, answer in answers.items():
            up, down = (max(each, SHORTEST_WAY) for each in (answer.up_seconds, answer.down_seconds))
            fast = {"up_rate": BITS_PER_BYTE * size / up, "down_rate": BITS_PER_BYTE * size / down}
            rates[party] = fast | {f"fed_{name}": rate for name, rate in fast.items()}
            if max(up, down) * larger / size > LONGEST_PROBE:
                left.discard(party)
        left &= answers.keys()
        if not left:
            break
    return rates


# ── the fleet, measured during training ──────────────────────────────────────────────────────────────────


@dataclass(slots=True, eq=False)
class FleetMeters:
    """The meters of all parties, fed with the seconds of every step; they report to the world."""

    profile: Profile
    world: LiveWorld
    meters: Mapping[int, ResourceMeter]  # by party; `Meeting` adds the meter of a device that comes later
    memory: dict[int, float]  # free memory of each device, in bits
    order: Order | None = None  # order of the present round
    forward: dict[int, float] = field(default_factory=dict)  # seconds of forward passes in this round

    def begins_round(self, order: Order) -> None:
        """Note the order of the round that begins."""
        self.order = order

    def heard(self, step: str, seconds: Mapping[int, float]) -> None:
        """Take the measured seconds of a step, by party."""
        order = self.order
        if order is None:
            return
        places = {int(device): place for place, device in enumerate(order.devices)}
        for party, each in seconds.items():
            if party == EDGE:
                self._of_edge(order, step, each)
            elif party in places and party in self.meters:
                self._of_device(order, step, party, places[party], each)
        if step == "device_backward" and order.round % self.world.interval == 0:
            self._report()  # the interval ends, and the next plan shall use its values

    def reported(self, party: int, resources: object) -> None:
        """Take the free memory that a device reports when an interval begins."""
        memory = resources.get("memory") if isinstance(resources, Mapping) else None
        if isinstance(memory, bool) or not isinstance(memory, int | float) or not 0 < memory < math.inf:
            return  # a wrong value is ignored, and the last value stays
        self.memory[party] = float(memory)

    def _of_device(self, order: Order, step: str, device: int, place: int, seconds: float) -> None:
        meter, plan, profile = self.meters[device], order.plan, self.profile
        b, j = int(plan.batch_sizes[place]), int(plan.cut_index[place])
        sub_model = float(profile.submodel_bits_upto[j])
        sent = {
            "activation_upload": ("up_rate", b * float(profile.activation_bits_at[j])),
            "gradient_download": ("down_rate", b * float(profile.gradient_bits_at[j])),
            "submodel_upload": ("fed_up_rate", sub_model),
            "submodel_download": ("fed_down_rate", sub_model),
        }
        if step in sent:
            link, bits = sent[step]
            meter.transferred(link, bits, seconds)
        elif step == "device_forward":
            self.forward[device] = seconds
        elif step == "device_backward" and device in self.forward:
            work = b * float(profile.forward_flops_upto[j] + profile.backward_flops_upto[j])
            meter.computed(work, self.forward.pop(device) + seconds)

    def _of_edge(self, order: Order, step: str, seconds: float) -> None:
        """Take the measured seconds of a step of the edge server.

        A transfer of middle parts counts with the bits of Eqs. (35) and (37), so that the rates suit these
        equations. Fewer bits are really sent down: at the beginning of an interval all replicas of a layer
        are the same, so each layer is sent once.
        """
        links = {"submodel_upload": "fed_up_rate", "submodel_download": "fed_down_rate"}
        if step in links:
            upto = self.profile.submodel_bits_upto[order.plan.cut_index]
            self.meters[EDGE].transferred(links[step], float((upto.max() - upto).sum()), seconds)
        elif step == "server_forward":
            self.forward[EDGE] = seconds
        elif step == "server_backward" and EDGE in self.forward:
            forward, backward = self.profile.forward_flops_upto, self.profile.backward_flops_upto
            j = order.plan.cut_index
            beyond = (forward[-1] - forward[j]) + (backward[-1] - backward[j])
            work = float((order.batch_sizes * beyond).sum())
            self.meters[EDGE].computed(work, self.forward.pop(EDGE) + seconds)

    def _report(self) -> None:
        """End the interval of all meters, and report the resources to the world, for the next plan."""
        for party, meter in list(self.meters.items()):
            known = meter.end_interval()
            if party == EDGE:
                self.world.server_reports(**known.as_server())
            else:
                self.world.device_reports(party, known.as_device(self.world.fleet.names[party]))


# The time limit of an answer is SLACK times the predicted seconds, plus SHORTEST seconds; chosen by hand.
SLACK, SHORTEST = 5.0, 5.0
CONNECTING_SECONDS = 5.0  # extra time for a device to connect to the edge server; chosen by hand


@dataclass(frozen=True, slots=True, eq=False)
class Deadlines:
    """The time limits of answers of devices: a multiple of the time that the plan predicts."""

    clock: ModelledClock
    world: LiveWorld

    def of_round(self, order: Order) -> float:
        """The time limit in seconds of one answer in a round, from the predicted time of the whole round."""
        return SLACK * self.clock.round(self._now(order)).seconds + SHORTEST

    def of_exchange(self, order: Order) -> float:
        """The time limit in seconds to take or give a sub-model, from the predicted time of both."""
        now = self._now(order)
        return SLACK * self.clock.aggregation(now, now).seconds + SHORTEST + CONNECTING_SECONDS

    def _now(self, order: Order) -> Arrangement:
        fleet = self.world.fleet_at(order.round).only(order.devices)
        return Arrangement(order.plan, fleet, self.clock.depth(order.plan))
