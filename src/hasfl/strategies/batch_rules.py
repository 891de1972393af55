"""Rules for batch sizes, given the cuts: the best ones, random ones, the same for all devices."""

from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from hasfl.arrays import IntN
from hasfl.errors import Infeasible
from hasfl.plan import Plan
from hasfl.planning.exact.planner import best_batches
from hasfl.planning.tables import largest_batch_in_memory
from hasfl.problem import Problem
from hasfl.strategies.situation import Rule, Situation
from hasfl.theory.objective import memory_needed

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


@cache
def fixed_batch(batch_size: int) -> Rule:
    """The rule that gives every device this batch size, clipped to what the device can take."""

    def fixed(situation: Situation, cuts: IntN) -> IntN:
        return _clipped(situation, cuts, batch_size)

    return fixed


@cache
def server_batch(batch_size: int) -> Rule:
    """The rule for centralised training: the edge server does the work, so devices' memory is no bound."""

    def fixed(situation: Situation, cuts: IntN) -> IntN:
        return np.minimum(situation.problem.largest_batch, batch_size).astype(np.int64)

    return fixed


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
        f"device {name!r} has {problem.fleet.memory[i]:.4g} bit of memory, but cut {cuts[i]} needs "
        f"{needed:.4g} bit with {samples}: cut earlier, or leave the device out"
    )


def _clipped(situation: Situation, cuts: IntN, wanted: ArrayLike) -> IntN:
    """Wanted batch sizes, clipped to what each device and the private layers can take."""
    smallest = situation.problem.smallest_batch_upto[cuts.max() - 1]
    return np.clip(np.asarray(wanted, dtype=np.int64), smallest, largest_batches(situation, cuts))
