"""What a planner is asked for, and which constraint of which device forbids it."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import FloatN, IntN
from hasfl.planning.tables import CostTables, largest_batch_in_memory
from hasfl.problem import Problem
from hasfl.theory.rounds import Corollary1


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
        return cls(_smallest_batch(problem), problem.largest_batch, np.ones(shape, dtype=bool))

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

    def room(self, tables: CostTables) -> NDArray[np.float64]:
        """The largest batch size for each device and cut, 0 where none will do."""
        most = np.minimum(tables.largest_batch, self.largest_batch[:, None])
        return np.where((most >= self.smallest_batch[:, None]) & self.cuts, most, 0.0)


def _smallest_batch(problem: Problem) -> FloatN:
    """min_batch, or as much of it as a device's data and memory allow."""
    if problem.min_batch == 1:
        return np.ones(len(problem.fleet))
    room = np.minimum(largest_batch_in_memory(problem, slice(None)).max(axis=1), problem.largest_batch)
    return np.clip(room, 1.0, problem.min_batch)


def why_infeasible(problem: Problem, tables: CostTables, asked: Asked) -> str:
    """Which constraint of which device forbids every plan that is asked for."""
    room = asked.room(tables)
    if (large := np.flatnonzero(asked.smallest_batch > problem.largest_batch)).size:
        i = large[0]
        return (
            f"batch size {asked.smallest_batch[i]:.0f} of device {problem.fleet.names[i]!r} is above "
            f"{problem.largest_batch[i]:.0f}, the lesser of max_batch and the samples it holds"
        )
    if (stuck := np.flatnonzero(~room.any(axis=1))).size:
        name, bits = problem.fleet.names[stuck[0]], problem.fleet.memory[stuck[0]]
        return (
            f"no plan fits the memory of device {name!r} (C4): even the cheapest cut asked for needs more "
            f"than its {bits:.4g} bit at batch size {asked.smallest_batch[stuck[0]]:.0f}"
        )
    model, (_, target) = Corollary1.of(problem), problem.bound_constants()
    floors = []
    for deepest_cut in range(1, room.shape[1] + 1):
        most = room[:, :deepest_cut].max(axis=1)
        if most.all():
            sampling = model.per_inverse_batch * float((1 / most).sum())
            floors.append(target - float(model.margin_upto[deepest_cut - 1]) + sampling)
    return (
        f"no plan reaches target {target:.6g} (C1): with the largest batches that fit, the floor "
        f"of the bound is still {min(floors):.6g}: raise the target or max_batch, or lower the learning rate"
    )
