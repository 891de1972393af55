"""Batch sizes for given cuts: the best ones, random ones, the same for all."""

from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from hasfl.arrays import FloatN, IntN
from hasfl.errors import Infeasible
from hasfl.plan import Plan
from hasfl.planning.joint import best_batches
from hasfl.planning.tables import largest_batch_in_memory
from hasfl.strategies.situation import Rule, Situation
from hasfl.theory.objective import memory_needed

GAP = 1e-2  # loose: rules are asked often, and rates are hardly known better than this


def habs(situation: Situation, cuts: IntN, *, gap: float = GAP) -> IntN:
    """Heterogeneity-aware batch sizes: the best ones for these cuts."""
    start = None if situation.start is None else Plan(situation.start.batch_sizes, cuts)
    return best_batches(situation.problem, cuts, gap=gap, start=start).plan.batch_sizes


def random_batches(situation: Situation, cuts: IntN) -> IntN:
    """Uniform from 1 to max_batch, then as many of them as fit."""
    streams = (situation.seeds.stream("batch_size", situation.round, int(i)) for i in situation.devices)
    drawn = [stream.integers(1, situation.problem.max_batch, endpoint=True) for stream in streams]
    return _at_most(largest_batches(situation, cuts), drawn)


@cache
def fixed_batch(batch_size: int) -> Rule:
    """The rule that gives every device this batch size, or as much of it as fits."""

    def fixed(situation: Situation, cuts: IntN) -> IntN:
        return _at_most(largest_batches(situation, cuts), batch_size)

    return fixed


@cache
def server_batch(batch_size: int) -> Rule:
    """The rule for samples that the edge server works on alone: no device's memory bounds them."""

    def fixed(situation: Situation, cuts: IntN) -> IntN:
        return _at_most(situation.problem.largest_batch, batch_size)

    return fixed


def largest_batches(situation: Situation, cuts: IntN) -> IntN:
    """The most samples that each device's memory, its data and max_batch allow at these cuts."""
    problem = situation.problem
    problem.require_fits(Plan(np.ones_like(cuts), cuts))
    room = np.minimum(largest_batch_in_memory(problem, cuts - 1), problem.largest_batch)
    if (stuck := np.flatnonzero(room < 1)).size:
        i = int(stuck[0])
        needed = memory_needed(Plan(np.ones_like(cuts), cuts), problem.profile)[i]
        raise Infeasible(
            f"device {problem.fleet.names[i]!r} has {problem.fleet.memory[i]:.4g} bit of memory, but cut "
            f"{cuts[i]} needs {needed:.4g} bit with one sample: cut earlier, or leave the device out"
        )
    return room.astype(np.int64)


def _at_most(most: FloatN | IntN, wanted: ArrayLike) -> IntN:
    return np.asarray(np.minimum(most, wanted), dtype=np.int64)
