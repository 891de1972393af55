"""The plans that a planner may choose from, and the reason if there are none."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import FloatN, IntN
from hasfl.plan import Plan
from hasfl.planning.tables import CostTables
from hasfl.problem import Problem
from hasfl.theory.objective import law_of
from hasfl.units import format_size


@dataclass(frozen=True, slots=True, eq=False)
class AllowedPlans:
    """The batch sizes and cuts that a planner may choose from.

    Both are open, or only the batch sizes (cuts are given), or only the cuts (batch sizes are given).
    """

    smallest_batch: FloatN  # (N,) samples
    largest_batch: FloatN  # (N,) samples
    cuts: NDArray[np.bool_]  # (N, L): True where device i may cut after layer j

    @classmethod
    def anything(cls, problem: Problem) -> Self:
        """Any batch size up to the largest of the problem, and any cut."""
        shape = (len(problem.fleet), len(problem.profile))
        return cls(np.ones(shape[0]), problem.largest_batch, np.ones(shape, dtype=bool))

    @classmethod
    def these_cuts(cls, problem: Problem, cuts: IntN) -> Self:
        """Any batch size, with the given cuts."""
        anything = cls.anything(problem)
        layers = np.arange(1, len(problem.profile) + 1)
        return cls(anything.smallest_batch, anything.largest_batch, layers == np.asarray(cuts)[:, None])

    @classmethod
    def these_batches(cls, problem: Problem, batch_sizes: IntN) -> Self:
        """Any cut, with the given batch sizes."""
        only = np.asarray(batch_sizes, dtype=float)
        return cls(only, only, cls.anything(problem).cuts)

    @property
    def batches_are_given(self) -> bool:
        """True if every device has exactly one batch size to choose from."""
        return bool((self.smallest_batch == self.largest_batch).all())

    def least(self, tables: CostTables, deepest_cut: int) -> FloatN:
        """(N,) The smallest batch size of each device, where layers 1 to `deepest_cut` are private."""
        return np.maximum(self.smallest_batch, tables.smallest_batch_upto[deepest_cut - 1])

    def room(self, tables: CostTables, deepest_cut: int) -> NDArray[np.float64]:
        """(N, J) The largest batch size of each device at each cut up to J = `deepest_cut`.

        0 where the cut is not allowed, or where even the smallest batch size does not fit.
        """
        up_to_deepest = slice(None), slice(deepest_cut)
        largest = np.minimum(tables.largest_batch[up_to_deepest], self.largest_batch[:, None])
        possible = (largest >= self.least(tables, deepest_cut)[:, None]) & self.cuts[up_to_deepest]
        return np.where(possible, largest, 0.0)

    def leaves_one_plan(self, tables: CostTables) -> bool:
        """True if exactly one plan can be chosen."""
        plans = 0
        for deepest_cut in range(1, self.cuts.shape[1] + 1):
            largest = self.room(tables, deepest_cut)
            # Whole batch sizes from the smallest to the largest, for each device and cut.
            options = np.where(largest > 0, largest - self.least(tables, deepest_cut)[:, None] + 1, 0.0)
            options_of_device = options.sum(axis=1)
            if not options_of_device.all() or not options[:, -1].any():
                continue  # no plan has this deepest cut
            if (options_of_device > 1).any():
                return False
            plans += 1
        return plans == 1


def why_infeasible(problem: Problem, tables: CostTables, allowed: AllowedPlans) -> str:
    """One sentence that says why no plan is possible: which constraint fails, and for which device."""
    if (too_large := np.flatnonzero(allowed.smallest_batch > problem.largest_batch)).size:
        i = too_large[0]
        return (
            f"batch size {allowed.smallest_batch[i]:.0f} of device {problem.fleet.names[i]!r} is above "
            f"{problem.largest_batch[i]:.0f}, the smaller of max_batch and the samples that the device holds"
        )
    rooms = [allowed.room(tables, deepest_cut) for deepest_cut in range(1, len(problem.profile) + 1)]
    # The deepest cuts with which every device has a cut that fits, and the largest batches.
    largest_upto = {k: room.max(axis=1) for k, room in enumerate(rooms, start=1) if room.any(axis=1).all()}
    if not largest_upto:
        return _device_without_cut(problem, tables, allowed)
    # Only C1 can fail now. The largest batches have the least noise, so their margin is the largest.
    law = law_of(problem)
    margins = [
        law.target_margin(Plan(largest.astype(np.int64), np.full(len(largest), deepest_cut)))
        for deepest_cut, largest in largest_upto.items()
    ]
    best = max(margin for margin in margins if margin is not None)
    assert problem.target is not None
    return (
        f"no plan reaches target {problem.target:.6g} (C1): with the largest batches that fit, the floor of "
        f"the bound is still {problem.target - best:.6g}: raise the target or max_batch, or lower the "
        "learning rate"
    )


def _device_without_cut(problem: Problem, tables: CostTables, allowed: AllowedPlans) -> str:
    """One sentence on the first device that has no possible cut."""
    possible = np.where(allowed.cuts, np.minimum(tables.largest_batch, allowed.largest_batch[:, None]), 0.0)
    largest = possible.max(axis=1)
    without_memory = np.flatnonzero(largest < allowed.smallest_batch)
    if without_memory.size:
        i = without_memory[0]
        return (
            f"no plan fits the memory of device {problem.fleet.names[i]!r}: even the cheapest cut asked "
            f"for needs more than its {format_size(problem.fleet.memory[i])} at batch size "
            f"{allowed.smallest_batch[i]:.0f}"
        )
    i = int(largest.argmin())
    return (
        f"device {problem.fleet.names[i]!r} can take at most {largest[i]:.0f} samples in a round, but its "
        f"layers need {allowed.least(tables, 1)[i]:.0f} or more to train on (batch norm): give the device "
        "more memory or samples, or leave it out"
    )
