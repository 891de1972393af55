"""A grid of cells over T₃ and T₄, all bounded at once: what makes the exact search fast on large fleets.

In one box, at one price, device i costs cost(b) = b x_j + y n(b) at cut j, where b is limited by T₃ and by
T₄. The cost falls with the limit, so under two limits it is the larger of the costs under either:

    cost(min(b₃, b₄)) = max(cost(b₃), cost(b₄)).

The costs under every T₃ and under every T₄ of the grid are worked out once. Then a cell takes one comparison
for each device and cut. Most devices have one or two cuts that can be the cheapest in a box; other cuts are
left out.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from hasfl.planning.exact.relaxation import Relaxation
from hasfl.planning.exact.tariff import Tariff
from hasfl.planning.tables import ROUNDING, Bools, Ints
from hasfl.theory.rounds import Floats, Lines

CELLS = 576  # benchmarks/bench_planner.py --constants shows what fewer and more cost
CELLS_A_SIDE = 96  # at most
CHUNK = 1 << 17  # cells × devices that are worked on at once: what fits into a cache


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Lower bounds of a grid of cells over T₃ and T₄."""

    up_edges: Floats  # (rows + 1,)
    down_edges: Floats  # (columns + 1,)
    bounds: Floats  # (rows, columns) the least left side of the line in each cell

    @property
    def width(self) -> float:
        """T₃ and T₄ from corner to corner of a cell, in seconds."""
        return float(self.up_edges[1] - self.up_edges[0] + self.down_edges[1] - self.down_edges[0])

    def best(self) -> tuple[Floats, Floats]:
        """The corners (2,) of the cell with the least bound."""
        row, column = divmod(int(self.bounds.argmin()), self.bounds.shape[1])
        return self._corners(row, row, column, column)

    def rectangle(self, still_open: Bools) -> tuple[Floats, Floats]:
        """The corners (2,) of the smallest rectangle around these cells."""
        rows, columns = np.flatnonzero(still_open.any(axis=1)), np.flatnonzero(still_open.any(axis=0))
        return self._corners(rows[0], rows[-1], columns[0], columns[-1])

    def _corners(self, top: int, bottom: int, left: int, right: int) -> tuple[Floats, Floats]:
        lower = np.array([self.up_edges[top], self.down_edges[left]])
        return lower, np.array([self.up_edges[bottom + 1], self.down_edges[right + 1]])


def bounded_cells(
    relaxation: Relaxation, box: tuple[Floats, Floats], lines: Lines, price: float, forbidden: Bools | None
) -> Cells:
    """Bound a grid of cells over the T₃ and T₄ of one box with corners (4,), at a given price."""
    tables, (lower, upper) = relaxation.tables, box
    counts = cell_counts(upper[:2] - lower[:2])
    up, down = (np.linspace(lower[k], upper[k], counts[k] + 1) for k in (0, 1))
    tariff = Tariff.of(tables, (lower[None], upper[None]), lines)
    due = float(tariff.due(np.array([price]))[0]) - price * float(relaxation.server_bits(np.zeros(1))[0])
    seconds = up[:-1, None] + down[:-1] + float(lower[2:].sum()) / tables.interval
    sums = CostsByLimit.of(relaxation, upper, lines, price, forbidden).summed(up[1:], down[1:])
    return Cells(up, down, float(lines.per_second[0]) * seconds + sums - due)


@dataclass(frozen=True, slots=True, eq=False)
class CostsByLimit:
    """What every device and cut costs under a limit on T₃ alone, or on T₄ alone, in one box."""

    relaxation: Relaxation
    x: Floats  # (J,)
    y: float
    priced: Floats  # (J,) the price of the bits of each cut
    most: Floats  # (N, J) the batch size beyond which more costs more; 0 where the cut is not possible

    @classmethod
    def of(
        cls, relaxation: Relaxation, upper: Floats, lines: Lines, price: float, forbidden: Bools | None
    ) -> Self:
        """The costs at a price, with T₅ and T₆ at the upper corner (4,)."""
        tables, J = relaxation.tables, relaxation.deepest_cut
        x, y = float(lines.per_second[0]) * tables.server_seconds[:J], float(lines.per_noise[0])
        room, smallest = relaxation.asked.room(tables, J), relaxation.least_batch[:, None]
        best = relaxation.noise.best_batch(x, np.array(y), J)
        excluded = (room <= 0) | relaxation.cut_excluded(upper[None])[0]
        if forbidden is not None:
            excluded |= forbidden
        most = np.where(excluded, 0.0, np.clip(best, smallest, np.maximum(room, smallest)))
        return cls(relaxation, x, y, price * tables.submodel_bits[:J], most)

    def summed(self, up: Floats, down: Floats) -> Floats:
        """Σ_i min_j of the costs under every pair of these limits."""
        tight, loose = (self._corner(up[k], down[k]) for k in (0, -1))
        worst, best = tight.min(axis=1), loose.min(axis=1)
        sums = np.full((len(up), len(down)), best[worst == best].sum())
        moved = np.flatnonzero(worst != best)  # the other devices cost the same in all cells
        matters = loose <= worst[:, None]  # other cuts are never the cheapest
        moved = moved[np.lexsort(matters[moved].T)]  # devices with the same such cuts stand together
        size = max(1, CHUNK // sums.size)
        for first in range(0, len(moved), size):
            some = moved[first : first + size]
            sums += self._least(up, down, some, np.flatnonzero(matters[some].any(axis=0))).sum(axis=2)
        return sums

    def _corner(self, up: float, down: float) -> Floats:
        """(N, J) The costs under one pair of limits."""
        cuts = np.arange(self.relaxation.deepest_cut)
        by_up, by_down = (
            self._costs(np.array([limit]), rate, slice(None), cuts)[:, 0].T
            for limit, rate in (
                (up, self.relaxation.tables.up_rate),
                (down, self.relaxation.tables.down_rate),
            )
        )
        return np.maximum(by_up, by_down)

    def _least(self, up: Floats, down: Floats, some: Ints, cuts: Ints) -> Floats:
        """(up, down, devices) The least cost of some devices over these cuts, under every pair of limits."""
        by_up = self._costs(up, self.relaxation.tables.up_rate, some, cuts)
        by_down = self._costs(down, self.relaxation.tables.down_rate, some, cuts)
        least = np.full((len(up), len(down), len(some)), np.inf)
        both = np.empty_like(least)
        for under_up, under_down in zip(by_up, by_down, strict=True):
            np.maximum(under_up[:, None], under_down[None], out=both)
            np.minimum(least, both, out=least)
        return least

    def _costs(self, limits: Floats, rate: Floats, some: Ints | slice, cuts: Ints) -> Floats:
        """(cuts, limits, devices) b x + y n(b) − priced bits with the most samples under each limit."""
        most, rate = (table[some][:, cuts].T[:, None] for table in (self.most, rate))
        batch = np.floor(np.minimum(most, limits[:, None] * ROUNDING * rate))
        smallest = self.relaxation.least_batch[some]
        possible = batch >= smallest
        np.maximum(batch, smallest, out=batch)
        x, priced = (each[cuts, None, None] for each in (self.x, self.priced))
        cost = batch * x + self.y * self.relaxation.noise.each(batch, self.relaxation.deepest_cut) - priced
        cost[~possible] = np.inf
        return cost


def cell_counts(widths: Floats) -> tuple[int, int]:
    """Rows and columns, about CELLS in all, so that cells are as wide in T₃ as in T₄."""
    up, down = widths.tolist()
    if min(up, down) <= 0:
        return (CELLS_A_SIDE if up > 0 else 1), (CELLS_A_SIDE if down > 0 else 1)
    rows = min(max(round(math.sqrt(CELLS * up / down)), CELLS // CELLS_A_SIDE), CELLS_A_SIDE)
    return rows, CELLS // rows
