"""Rules for batch sizes, given the cuts: the best ones, random ones, the same for all devices."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hasfl.arrays import IntN
from hasfl.errors import Infeasible, InputError
from hasfl.plan import Plan
from hasfl.planning.exact.planner import best_batches
from hasfl.planning.tables import largest_batch_in_memory
from hasfl.problem import Problem
from hasfl.strategies.situation import Situation
from hasfl.theory.objective import memory_needed
from hasfl.units import format_size

DEFAULT_BATCH = 16  # of strategies whose name gives no batch size
GAP = 1e-2  # of the search: rules are asked often, and rates are hardly known better than to 1 %


def habs(situation: Situation, cuts: IntN, *, gap: float = GAP) -> IntN:
    """Heterogeneity-aware batch sizes (HABS): the best ones for these cuts."""
    start = None if situation.start is None else Plan(situation.start.batch_sizes, cuts)
    return best_batches(situation.problem, cuts, gap=gap, start=start).plan.batch_sizes


def random_batches(situation: Situation, cuts: IntN) -> IntN:
    """Random batch sizes (RBS): uniform from 1 to max_batch, then clipped to what each device can take."""
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
    on_devices: bool = True  # False: the edge server does the work alone, so devices' memory is no bound

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
    """Wanted batch sizes, clipped to what each device and the private layers can take."""
    smallest = situation.problem.smallest_batch_upto[cuts.max() - 1]
    return np.clip(np.asarray(wanted, dtype=np.int64), smallest, largest_batches(situation, cuts))
