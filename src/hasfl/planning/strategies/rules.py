"""The situation that a strategy plans for, and the rules that choose batch sizes or cuts."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hasfl.arrays import IntN, frozen, same_length
from hasfl.errors import Infeasible, InputError
from hasfl.plan import Plan
from hasfl.planning.exact.planner import best_batches, best_cuts
from hasfl.planning.tables import CostTables, largest_batch_in_memory
from hasfl.problem import Problem
from hasfl.seeds import Seeds
from hasfl.theory.objective import law_of, memory_needed
from hasfl.theory.rounds import Floats
from hasfl.units import format_size

# ── the situation of a strategy ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Situation:
    """The planning problem of a round, the devices that take part, and the plan in use.

    A random rule draws from a separate stream of random numbers for each round and device, so a device's draw
    does not depend on which other devices take part.
    """

    problem: Problem
    devices: IntN  # index in the whole fleet of each device of problem.fleet
    round: int
    seeds: Seeds
    previous: Plan | None = None  # the plan in use, if there is one

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", frozen(np.array(self.devices)))
        same_length({"problem.fleet": self.problem.fleet.names, "devices": self.devices}, per="device")

    @property
    def start(self) -> Plan | None:
        """The previous plan, if its number of devices and its cuts suit the problem; else None."""
        if self.previous is None or len(self.previous) != len(self.devices):
            return None
        return self.previous if self.previous.deepest_cut <= len(self.problem.profile) else None


# A batch rule takes cuts and returns batch sizes; a cut rule takes batch sizes and returns cuts.
Rule: TypeAlias = Callable[[Situation, IntN], IntN]


# ── batch sizes ──────────────────────────────────────────────────────────────────────────────────────────


DEFAULT_BATCH = 16  # batch size of a strategy whose name gives none; chosen by hand
# Gap at which the search of a rule stops. 1 %, because rules are asked often, and rates are rarely known to 1
# %; chosen by hand.
GAP = 1e-2


def habs(situation: Situation, cuts: IntN, *, gap: float = GAP) -> IntN:
    """Heterogeneity-aware batch sizes (HABS): the best ones for these cuts."""
    start = None if situation.start is None else Plan(situation.start.batch_sizes, cuts)
    return best_batches(situation.problem, cuts, gap=gap, start=start).plan.batch_sizes


def random_batches(situation: Situation, cuts: IntN) -> IntN:
    """Random batch sizes (RBS): uniform from 1 to max_batch, then clipped to each device's limits."""
    streams = (situation.seeds.stream("batch_size", situation.round, int(i)) for i in situation.devices)
    drawn = [stream.integers(1, situation.problem.max_batch, endpoint=True) for stream in streams]
    return _clipped(situation, cuts, drawn)


@dataclass(frozen=True, slots=True)
class FixedBatch:
    """The rule that gives every device the same batch size.

    A batch size above max_batch is refused. A device whose memory or samples allow less gets the most that
    they allow, and a device whose layers cannot train on so few samples gets the fewest that they can train
    on; `note` says which devices these are. If no batch size is asked for, devices get DEFAULT_BATCH, or
    max_batch where it is smaller.
    """

    asked: int | None = None
    on_devices: bool = True  # False: the edge server trains alone, so the memory of devices does not count

    def __call__(self, situation: Situation, cuts: IntN) -> IntN:
        """The batch sizes of all devices."""
        wanted = self._wanted(situation.problem)
        if self.on_devices:
            return _clipped(situation, cuts, wanted)
        return np.minimum(situation.problem.largest_batch, wanted).astype(np.int64)

    def note(self, plan: Plan, problem: Problem) -> str | None:
        """A sentence on the devices that get another batch size than asked for; None if there are none."""
        wanted = self._wanted(problem)
        (others,) = np.nonzero(plan.batch_sizes != wanted)
        if not others.size:
            return None
        i = int(others[0])
        name, given = problem.fleet.names[i], int(plan.batch_sizes[i])
        why = "memory or samples allow no more" if given < wanted else "layers cannot train on fewer"
        return (
            f"batch sizes: {others.size} of {len(plan)} devices do not get {wanted} samples, because their "
            f"{why}; device {name!r} gets {given}"
        )

    def _wanted(self, problem: Problem) -> int:
        if self.asked is None:
            return min(DEFAULT_BATCH, problem.max_batch)
        if self.asked > problem.max_batch:
            raise InputError(
                f"batch size {self.asked} of the strategy is above max_batch, which is {problem.max_batch}: "
                "choose a smaller batch size, or raise training.max_batch"
            )
        return self.asked


def largest_batches(situation: Situation, cuts: IntN) -> IntN:
    """The largest batch size that each device's memory, its samples and max_batch allow at these cuts."""
    problem = situation.problem
    problem.require_fits(Plan(np.ones_like(cuts), cuts))
    largest = np.minimum(largest_batch_in_memory(problem, cuts - 1), problem.largest_batch)
    smallest = int(problem.smallest_batch_upto[cuts.max() - 1])
    if (stuck := np.flatnonzero(largest < smallest)).size:
        raise Infeasible(_why_stuck(problem, cuts, int(stuck[0]), smallest))
    return largest.astype(np.int64)


def _why_stuck(problem: Problem, cuts: IntN, i: int, smallest: int) -> str:
    name, samples = problem.fleet.names[i], "one sample" if smallest == 1 else f"{smallest} samples"
    if problem.largest_batch[i] < smallest:
        return (
            f"device {name!r} can take at most {problem.largest_batch[i]:.0f} sample in a round, but the "
            f"layers down to cut {cuts.max()} need {samples} to train on (batch norm): cut earlier, or leave "
            "the device out"
        )
    needed = memory_needed(Plan(np.full_like(cuts, smallest), cuts), problem.profile)[i]
    return (
        f"device {name!r} has {format_size(problem.fleet.memory[i])} of memory, but cut {cuts[i]} needs "
        f"{format_size(needed)} with {samples}: cut earlier, or leave the device out"
    )


def _clipped(situation: Situation, cuts: IntN, wanted: ArrayLike) -> IntN:
    """Wanted batch sizes, clipped to the limits of each device and of the private layers."""
    smallest = situation.problem.smallest_batch_upto[cuts.max() - 1]
    return np.clip(np.asarray(wanted, dtype=np.int64), smallest, largest_batches(situation, cuts))


# ── cuts ─────────────────────────────────────────────────────────────────────────────────────────────────


def hams(situation: Situation, batch_sizes: IntN, *, gap: float = GAP) -> IntN:
    """Heterogeneity-aware cuts (HAMS): the best ones for these batch sizes."""
    start = None if situation.start is None else Plan(batch_sizes, situation.start.cuts)
    return best_cuts(situation.problem, batch_sizes, gap=gap, start=start).plan.cuts


def random_cuts(situation: Situation, batch_sizes: IntN) -> IntN:
    """Random cuts (RMS): uniform over the cuts whose client part fits the device's memory with one sample."""
    drawn = [
        situation.seeds.stream("cut", situation.round, int(device)).choice(np.flatnonzero(row))
        for device, row in zip(situation.devices, _cuts_that_fit(situation), strict=True)
    ]
    return np.array(drawn, dtype=np.int64) + 1


def random_common_cut(situation: Situation, batch_sizes: IntN) -> IntN:
    """One random cut for all devices (RMS read in the other way), uniform over the cuts that fit all."""
    (fits,) = np.nonzero(_cuts_that_fit(situation).all(axis=0))
    return np.full(len(situation.devices), situation.seeds.stream("cut", situation.round).choice(fits) + 1)


def _cuts_that_fit(situation: Situation) -> NDArray[np.bool_]:
    """(N, L) Whether the client part of each cut fits each device's memory with one sample."""
    largest_batches(situation, np.ones(len(situation.devices), dtype=np.int64))  # the first cut must fit
    fits: NDArray[np.bool_] = largest_batch_in_memory(situation.problem, slice(None)) >= 1
    return fits


def resource_aware_cuts(situation: Situation, batch_sizes: IntN) -> IntN:
    """Resource-aware cuts (RHAMS, after CoopFL): each device's own quickest cut, without regard to rounds.

    Of the cuts that fit its memory, each device takes the cut that minimises

        b (ρ_j/f_i + ψ_j/r_i^U + C_j + χ_j/r_i^D + ϖ_j/f_i) + (δ_j/r_{i,f}^U + δ_j/r_{i,f}^D) / I

    where C_j is the edge server's time for a sample, and δ_j the bits of the exchanged sub-model.
    """
    tables = CostTables.of(situation.problem)
    fits = tables.largest_batch >= batch_sizes[:, None]
    if (stuck := np.flatnonzero(~fits.any(axis=1))).size:
        name = situation.problem.fleet.names[stuck[0]]
        raise Infeasible(
            f"device {name!r} cannot train on {batch_sizes[stuck[0]]} samples at any cut: give it fewer"
        )
    training = tables.up_seconds + tables.server_seconds + tables.down_seconds
    exchange = np.outer(1 / tables.fed_up_rate + 1 / tables.fed_down_rate, tables.submodel_bits)
    seconds = batch_sizes[:, None] * training + exchange / tables.interval
    quickest: IntN = np.where(fits, seconds, np.inf).argmin(axis=1) + 1
    return quickest


@cache
def fixed_cut(cut: int) -> Rule:
    """The rule that gives every device the same cut."""

    def fixed(situation: Situation, batch_sizes: IntN) -> IntN:
        layers = len(situation.problem.profile)
        if cut > layers:
            raise InputError(
                f"the strategy's cut must be at most {layers}, the number of layers of the model, got {cut}"
            )
        return np.full(len(situation.devices), cut)

    return fixed


def quarter_cut(situation: Situation, batch_sizes: IntN) -> IntN:
    """The rule that gives every device a quarter of the layers, but at least one layer."""
    return np.full(len(situation.devices), max(1, len(situation.problem.profile) // 4))


def whole_model(situation: Situation, batch_sizes: IntN) -> IntN:
    """The rule that gives every device all layers."""
    return np.full(len(situation.devices), len(situation.problem.profile))


# ── cuts and batch sizes at once ─────────────────────────────────────────────────────────────────────────


SCALES_PER_DOUBLING = 8  # scales tried between a scale and twice that scale; chosen by hand


def proportional(situation: Situation) -> Plan:
    """One cut for all devices, and batch sizes in proportion to their speed.

    An engineer would try this first. For every cut the best scale is chosen, then the best cut, with the law
    of rounds and the constants of `hasfl`. So the time that `hasfl` saves over `proportional` is the gain of
    exact planning.
    """
    tables, law = CostTables.of(situation.problem), law_of(situation.problem)
    best, least = None, np.inf
    for cut in range(1, len(situation.problem.profile) + 1):
        cuts = np.full(len(situation.devices), cut)
        try:
            batch_sizes = proportional_batches(situation, cuts)
        except Infeasible:
            if cut == 1:
                raise
            continue
        rounds = float(law.rounds(batch_sizes, cut))
        value = rounds * float(tables.round_seconds(batch_sizes.astype(np.float64), cuts))
        if best is None or value < least:
            best, least = Plan(batch_sizes, cuts), value
    if best is None or not np.isfinite(least):
        raise Infeasible(
            "no batch sizes in proportion to the devices' speed, with one cut for all, reach the target: "
            "raise the target, or let hasfl choose"
        )
    return best


def proportional_batches(situation: Situation, cuts: IntN) -> IntN:
    """Batch sizes in proportion to the samples per second that each device trains at its cut.

    Batch sizes are rounded, and clipped to the limits of the device and of the private layers. Several scales
    are tried, and the one with the least Θ is taken.
    """
    problem, devices = situation.problem, np.arange(len(cuts))
    tables, most = CostTables.of(problem), largest_batches(situation, cuts)
    speed = 1 / (tables.up_seconds + tables.down_seconds)[devices, cuts - 1]
    doublings = np.log2(problem.max_batch)
    scales = 2 ** np.linspace(0, doublings, 1 + round(SCALES_PER_DOUBLING * doublings))
    wanted = np.rint(np.outer(scales, speed / speed.max()))
    tried = np.clip(wanted, problem.smallest_batch_upto[cuts.max() - 1], most)
    seconds = tables.round_seconds(tried, np.broadcast_to(cuts, tried.shape))
    values: Floats = law_of(problem).rounds(tried, int(cuts.max())) * seconds
    batch_sizes: IntN = tried[values.argmin()].astype(np.int64)
    return batch_sizes
