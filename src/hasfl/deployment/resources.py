"""What is known of compute, links and memory: measured before training, and followed as training goes.

A device measures its compute on the model's own layers when a training begins. As training goes, every pass
and every transfer tells more. Plans are made from the newest values, and deadlines from plans.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
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


# All numbers below were chosen by hand.
BATCH, CUTS, REPEATS = 8, 4, 3  # samples, cuts and passes of a measurement of compute
LONGEST = 10.0  # seconds after which a measurement of compute takes no further cut
INTERVALS = 5  # whose values are kept
FADING = 0.5  # how much less an interval counts than the one after it
OUTLIER = 1.5  # a value that differs from the median by this factor may be left out
TRANSFERS = 64  # of one link in one interval that are kept
SPREAD = 4.0  # the largest transfer must have so many times the bits of the smallest, to tell both numbers
TELLING = 1 / 3  # the bits of the largest transfer must take so many times the latency, to tell the rate
FEWEST = 4  # transfers that tell both numbers
UNMEASURED_RATE = 100e6  # bit/s, of a link before its first transfer
# Files of a control group, by its controllers: the limit, the use, and the cached files in memory.stat.
GROUP_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),  # version 2 has all controllers in one group
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),  # version 1
}
USABLE = 0.9  # share of the free memory that training may take; the rest is left for the system


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The compute, the link rates and the memory of one device; `hasfl.fleet.Device` explains them."""

    flops: float  # FLOP/s
    up_rate: float  # bit/s
    down_rate: float
    fed_up_rate: float
    fed_down_rate: float
    memory: float  # bit

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            quantity(f"{name} of a device's resources", value, positive=True)

    def as_device(self, name: str) -> Device:
        """The device of this name with these resources."""
        return Device(name=name, **asdict(self))

    def as_server(self) -> dict[str, float]:
        """The fields of a fleet's edge server, if these are its resources; it has no other links."""
        return {
            "server_flops": self.flops,
            "server_fed_up_rate": self.fed_up_rate,
            "server_fed_down_rate": self.fed_down_rate,
        }


LINKS = ("up_rate", "down_rate", "fed_up_rate", "fed_down_rate")  # fields of `Resources`


class Transfer(NamedTuple):
    """A message that was sent or received."""

    bits: float
    seconds: float  # under way


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """How long a link takes for a message: seconds = latency + bits / rate."""

    rate: float  # bit/s
    latency: float = 0.0  # s

    def seconds(self, bits: float) -> float:
        """How long a message of so many bits is under way."""
        return self.latency + bits / self.rate

    def effective_rate(self, bits: float) -> float:
        """The bit/s of a link without latency on which a message of so many bits takes as long."""
        return bits / self.seconds(bits)


def fit_link(transfers: Sequence[Transfer], known: LinkSpeed) -> LinkSpeed:
    """The speed of a link from its last transfers; a few outliers among them do no harm.

    Small messages tell the latency, and large ones the rate. If all messages have about the same size, they
    tell only one of the two numbers: the one that takes more of their time. The other one stays as `known`.
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
    """Seconds a bit: the median of the slopes between all pairs of transfers, weighted with their distance.

    This is the estimator of Theil and Sen. The weights keep pairs of about the same size from counting much:
    their slopes are mostly noise.
    """
    one, other = np.triu_indices(len(bits), k=1)
    distance = np.abs(bits[one] - bits[other])
    apart = distance > 0
    slopes = (seconds[one] - seconds[other])[apart] / (bits[one] - bits[other])[apart]
    order = np.argsort(slopes)
    weight = np.cumsum(distance[apart][order])
    return float(slopes[order][np.searchsorted(weight, weight[-1] / 2)])


def _latency(bits: NDArray[np.float64], seconds: NDArray[np.float64], pace: float) -> float:
    """The median of what the smaller half of the transfers took beside their bits; at least 0."""
    small = bits <= np.median(bits)
    return max(float(np.median((seconds - pace * bits)[small])), 0.0)


def recent_mean(values: Sequence[float]) -> float:
    """The geometric mean of values, oldest first, where older ones count less and one outlier does not count.

    A change is therefore followed from its second interval on; a change by less than `OUTLIER`, at once.
    """
    logs = np.log(np.array(values))
    weights = FADING ** np.arange(len(logs))[::-1]
    distance = np.abs(logs - np.median(logs))
    if len(logs) > 2 and distance.max() > np.log(OUTLIER):
        weights[distance.argmax()] = 0.0
    return float(np.exp(np.average(logs, weights=weights)))


class ResourceMeter:
    """Measures the resources of a device while it trains. `flops` and `rates` count until training tells.

    The paper's links have a rate and no latency, Eqs. (29) to (37). So the rates of `resources` are effective
    ones: those at which messages of the interval's usual size would take as long without latency.
    """

    def __init__(
        self, flops: float, memory: Callable[[], float], rates: Mapping[str, float] | None = None
    ) -> None:
        given = rates or {}
        self.memory = memory  # free for training, bit
        self.links = {link: LinkSpeed(given.get(link, UNMEASURED_RATE)) for link in LINKS}
        self._first = {"flops": flops} | {link: speed.rate for link, speed in self.links.items()}
        self._intervals: dict[str, deque[float]] = {name: deque(maxlen=INTERVALS) for name in self._first}
        self._passes: list[float] = []  # FLOP/s in each round of this interval
        self._transfers: dict[str, deque[Transfer]] = {link: deque(maxlen=TRANSFERS) for link in LINKS}

    def computed(self, flop_count: float, seconds: float) -> None:
        """The forward and the backward pass of a round took so long together."""
        if flop_count > 0 and seconds > 0:
            self._passes.append(flop_count / seconds)

    def transferred(self, link: str, bits: float, seconds: float) -> None:
        """A message was under way so long on a link, which is named as in `Resources`."""
        if bits > 0 and seconds > 0:
            self._transfers[link].append(Transfer(bits, seconds))

    def end_interval(self) -> Resources:
        """Take what the interval told; returns what is known now."""
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
        """What is known now, from the intervals that have ended."""
        known = {name: recent_mean(values or [self._first[name]]) for name, values in self._intervals.items()}
        return Resources(memory=self.memory(), **known)


def measure_flops(model: LayeredModel, profile: Profile, slow: SlowTo | None = None) -> float:
    """The FLOP/s of this machine on the first layers of a model: the median over several cuts.

    The model and the random numbers of torch stay as they are. `slow` is a rehearsal of a slower box.
    """
    found: list[float] = []
    began = time.monotonic()
    with torch.random.fork_rng(devices=[]):
        for cut in _cuts(profile):
            if not found or time.monotonic() - began < LONGEST:
                found.append(_flops_of_cut(model, profile, cut, slow))
    return float(np.median(found))


def _cuts(profile: Profile) -> list[int]:
    """Cuts of the first half of the layers, among those that take any work."""
    (working,) = np.nonzero(profile.forward_flops_upto)
    if not working.size:
        raise InputError("a model must take at least one FLOP, so that a device can measure its FLOP/s on it")
    first = int(working[0]) + 1
    last = max(first, (len(profile) + 1) // 2)
    return sorted({round(cut) for cut in np.linspace(first, last, CUTS)})


def _flops_of_cut(model: LayeredModel, profile: Profile, cut: int, slow: SlowTo | None) -> float:
    """The median over several passes; a pass before them, in which torch prepares itself, does not count."""
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
    """The memory that training may take, in bits; what training has already taken counts as free."""

    def __init__(self, device: torch.device, limit: float | None = None, sharers: int = 1) -> None:
        self.device = device
        self.limit = limit  # the most that a person allows, bits
        self.sharers = sharers  # processes that train on this machine at the same time
        self._held_at_start = _held(device)

    def __call__(self) -> float:
        """The free memory now."""
        room = available_memory(self.device)
        if self.device.type == "cpu":
            room = min([room, *group_rooms(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))])
        taken = max(_held(self.device) - self._held_at_start, 0)
        free = BITS_PER_BYTE * USABLE * (room / self.sharers + taken)
        return max(free if self.limit is None else min(free, self.limit), 1.0)


def _held(device: torch.device) -> int:
    """Bytes that this process holds now."""
    if device.type == "cuda":
        return int(torch.cuda.memory_reserved(device))
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * getpagesize()


def group_rooms(root: Path, membership: Path) -> list[int]:
    """Bytes that are left to this process in each control group with a limit on memory.

    `root` is where control groups are mounted, and `membership` says in which ones this process is. Memory
    that only caches files counts as left.
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
    """The folder of a control group and those above it, whose limits hold too."""
    own = top / path.strip("/")
    return [folder for folder in (own, *own.parents) if folder.is_relative_to(top)]


def _room(folder: Path, limit: str, usage: str, cached: str) -> int | None:
    """Bytes below the limit of one control group; None if it has none."""
    try:
        most, used = int((folder / limit).read_text()), int((folder / usage).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return max(most - used + int(stat.get(cached, 0)), 0)


# ── links, before the first round ────────────────────────────────────────────────────────────────────────


PROBE_SIZES = tuple(2**power for power in (12, 15, 18, 21))  # bytes of a probe, from the first to the last
LONGEST_PROBE = (
    0.2  # seconds that a probe should take at most in one direction; a larger one is not sent then
)
PROBE_SECONDS = 120.0  # that a party has to answer a probe
SHORTEST_WAY = 1e-6  # seconds; a clock may say that a message took none


def answer_probe(question: Probe) -> Probed:
    """Send back as many bytes as are asked for, so that the asker learns how fast the link is."""
    return Probed(bytes=torch.zeros(question.count, dtype=torch.uint8))


def probe_rates(links: Links, parties: Collection[int]) -> dict[int, dict[str, float]]:
    """The bit/s of the links to parties, by the names of `Resources`; those who do not answer are missing.

    The links to the edge server are taken to be as fast as those to the fed server, which asks here.
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


# ── the fleet, from the seconds of every step ────────────────────────────────────────────────────────────


@dataclass(slots=True, eq=False)
class FleetMeters:
    """A meter for each party that was measured once; a device that comes later gets its own."""

    profile: Profile
    world: LiveWorld
    meters: Mapping[int, ResourceMeter]
    memory: dict[int, float]  # free on each device, bit
    order: Order | None = None  # of the present round
    forward: dict[int, float] = field(default_factory=dict)  # seconds of the forward passes of this round

    def begins_round(self, order: Order) -> None:
        """A round begins. If it begins an interval, plans hear what the one before has told."""
        self.order = order

    def heard(self, step: str, seconds: Mapping[int, float]) -> None:
        """Take the seconds of a step, by party."""
        if self.order is None:
            return
        places = {int(device): place for place, device in enumerate(self.order.devices)}
        for party, each in seconds.items():
            if party == EDGE:
                self._of_edge(step, each)
            elif party in places and party in self.meters:
                self._of_device(step, party, places[party], each)
        if step == "device_backward" and self.order.round % self.world.interval == 0:
            self._report()  # before the next plan is made

    def reported(self, party: int, resources: object) -> None:
        """Take what a device says of its memory when an interval begins."""
        with suppress(InputError):  # then what it said before counts
            self.memory[party] = positive(resources if isinstance(resources, Mapping) else {}, "memory")

    def _of_device(self, step: str, device: int, place: int, seconds: float) -> None:
        assert self.order is not None
        meter, plan, profile = self.meters[device], self.order.plan, self.profile
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

    def _of_edge(self, step: str, seconds: float) -> None:
        """The middle parts count with the bits of Eqs. (35) and (37), so that rates suit these equations.

        Less is sent down: all middle parts begin an interval alike, so each of their layers is sent once.
        """
        assert self.order is not None
        links = {"submodel_upload": "fed_up_rate", "submodel_download": "fed_down_rate"}
        if step in links:
            upto = self.profile.submodel_bits_upto[self.order.plan.cut_index]
            self.meters[EDGE].transferred(links[step], float((upto.max() - upto).sum()), seconds)
        elif step == "server_forward":
            self.forward[EDGE] = seconds
        elif step == "server_backward" and EDGE in self.forward:
            forward, backward = self.profile.forward_flops_upto, self.profile.backward_flops_upto
            j = self.order.plan.cut_index
            beyond = (forward[-1] - forward[j]) + (backward[-1] - backward[j])
            work = float((self.order.batch_sizes * beyond).sum())
            self.meters[EDGE].computed(work, self.forward.pop(EDGE) + seconds)

    def _report(self) -> None:
        """Let the next plan know what this interval has told."""
        for party, meter in list(self.meters.items()):
            known = meter.end_interval()
            if party == EDGE:
                self.world.server_reports(**known.as_server())
            else:
                self.world.device_reports(party, known.as_device(self.world.fleet.names[party]))


SLACK, SHORTEST = 5.0, 5.0  # a device may take so many times as long as predicted, and so many seconds more
CONNECTING_SECONDS = 5.0  # that a device may need beside its sub-model to connect to the edge server


@dataclass(frozen=True, slots=True, eq=False)
class Deadlines:
    """How long a device may take for one answer: a multiple of what the plan predicts."""

    clock: ModelledClock
    world: LiveWorld

    def of_round(self, order: Order) -> float:
        """Seconds for an answer in a round; the plan predicts the whole round."""
        return SLACK * self.clock.round(self._now(order)).seconds + SHORTEST

    def of_exchange(self, order: Order) -> float:
        """Seconds to take a sub-model or to give it; the plan predicts both."""
        now = self._now(order)
        return SLACK * self.clock.aggregation(now, now).seconds + SHORTEST + CONNECTING_SECONDS

    def _now(self, order: Order) -> Arrangement:
        fleet = self.world.fleet_at(order.round).only(order.devices)
        return Arrangement(order.plan, fleet, self.clock.depth(order.plan))


def positive(fields: Mapping[str, object], name: str) -> float:
    """A number above 0 that a party has measured."""
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise InputError(f"a party must measure its {name} as a number above 0, got {value!r:.40}")
    return float(value)
