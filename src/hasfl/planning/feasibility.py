"""What a planner is asked for, and which constraint of which device forbids it."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import FloatN, IntN
from hasfl.plan import Plan
from hasfl.planning.tables import CostTables
from hasfl.problem import Problem
from hasfl.theory.laws import law_of


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Which batch sizes and cuts the caller leaves open: all of them, batches alone, or cuts alone."""

    smallest_batch: FloatN
    largest_batch: FloatN
    cuts: NDArray[np.bool_]  # (N, L)

    @classmethod
    def anything(cls, problem: Problem) -> Self:
        """Any batch size up to the largest, and any cut."""
        shape = (len(problem.fleet), len(problem.profile))
        return cls(np.ones(shape[0]), problem.largest_batch, np.ones(shape, dtype=bool))

    @classmethod
    def these_cuts(cls, problem: Problem, cuts: IntN) -> Self:
        """Any batch size, at given cuts."""
        anything = cls.anything(problem)
        layers = np.arange(1, len(problem.profile) + 1)
        return cls(anything.smallest_batch, anything.largest_batch, layers == np.asarray(cuts)[:, None])

    @classmethod
    def these_batches(cls, problem: Problem, batch_sizes: IntN) -> Self:
        """Any cut, with given batch sizes."""
        fixed = np.asarray(batch_sizes, dtype=float)
        return cls(fixed, fixed, cls.anything(problem).cuts)

    @property
    def batches_are_given(self) -> bool:
        """Whether only the cuts are left open."""
        return bool((self.smallest_batch == self.largest_batch).all())

    def least(self, tables: CostTables, deepest_cut: int) -> FloatN:
        """The smallest batch size of each device that the private layers of this deepest cut can train on."""
        return np.maximum(self.smallest_batch, tables.smallest_batch_upto[deepest_cut - 1])

    def room(self, tables: CostTables, deepest_cut: int) -> NDArray[np.float64]:
        """The largest batch size for each device and cut up to the deepest, 0 where none will do."""
        within = slice(None), slice(deepest_cut)
        most = np.minimum(tables.largest_batch[within], self.largest_batch[:, None])
        possible = (most >= self.least(tables, deepest_cut)[:, None]) & self.cuts[within]
        return np.where(possible, most, 0.0)

    def leaves_one_plan(self, tables: CostTables) -> bool:
        """Whether there is a single plan to choose."""
        plans = 0
        for deepest_cut in range(1, self.cuts.shape[1] + 1):
            room = self.room(tables, deepest_cut)
            options = np.where(room > 0, room - self.least(tables, deepest_cut)[:, None] + 1, 0.0)
            of_device = options.sum(axis=1)
            if not of_device.all() or not options[:, -1].any():
                continue  # no plan has this deepest cut
            if (of_device > 1).any():
                return False
            plans += 1
        return plans == 1


def why_infeasible(problem: Problem, tables: CostTables, asked: Asked) -> str:
    """Which constraint of which device forbids every plan that is asked for."""
    rooms = [asked.room(tables, deepest_cut) for deepest_cut in range(1, len(problem.profile) + 1)]
    if (large := np.flatnonzero(asked.smallest_batch > problem.largest_batch)).size:
        i = large[0]
        return (
            f"batch size {asked.smallest_batch[i]:.0f} of device {problem.fleet.names[i]!r} is above "
            f"{problem.largest_batch[i]:.0f}, the lesser of max_batch and the samples it holds"
        )
    if all(not room.any(axis=1).all() for room in rooms):
        return _who_is_stuck(problem, tables, asked)
    law = law_of(problem)
    margins = [
        law.target_margin(Plan(room.max(axis=1).astype(np.int64), np.full(len(room), deepest_cut)))
        for deepest_cut, room in enumerate(rooms, start=1)
        if room.any(axis=1).all()
    ]
    best = max(margin for margin in margins if margin is not None)
    assert problem.target is not None
    return (
        f"no plan reaches target {problem.target:.6g} (C1): with the largest batches that fit, the floor of "
        f"the bound is still {problem.target - best:.6g}: raise the target or max_batch, or lower the "
        "learning rate"
    )


def _who_is_stuck(problem: Problem, tables: CostTables, asked: Asked) -> str:
    """The first device that no cut will do for."""
    allowed = np.where(asked.cuts, np.minimum(tables.largest_batch, asked.largest_batch[:, None]), 0.0)
    most = allowed.max(axis=1)
    without_memory = np.flatnonzero(most < asked.smallest_batch)
    if without_memory.size:
        i = without_memory[0]
        return (
            f"no plan fits the memory of device {problem.fleet.names[i]!r} (C4): even the cheapest cut asked "
            f"for needs more than its {problem.fleet.memory[i]:.4g} bit at batch size "
            f"{asked.smallest_batch[i]:.0f}"
        )
    i = int(most.argmin())
    return (
        f"device {problem.fleet.names[i]!r} can take at most {most[i]:.0f} samples in a round, but layers on "
        f"devices need {asked.least(tables, 1)[i]:.0f} or more to train on (batch norm): give the device "
        "more memory or samples, or leave it out"
    )
