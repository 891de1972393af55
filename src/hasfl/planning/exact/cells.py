"""Lower bounds for a grid of cells over T₃ and T₄. They make the search fast on large fleets.

The search divides a box into a grid over T₃ and T₄. Each cell is a box of its own, with the same T₅, T₆ and
price. So the lower bound of a cell is that of `relaxation.py`: T₃ and T₄ at the lower corner of the cell, and
as limits at the upper corner.

Within a cell, device i at cut j costs cost(b) = b x_j + y n(b), where b is limited by T₃ to b₃ and by T₄ to
b₄. Samples beyond `best_batch` never pay, so b₃ and b₄ are clipped to it, and cost falls up to there. Hence

    cost(min(b₃, b₄)) = max(cost(b₃), cost(b₄)).                                                  (max)

cost(b₃) depends on the row of the cell alone, and cost(b₄) on its column alone. For R rows and C columns,
R + C costs per device and cut are computed, and R · C maxima. The maximum is far cheaper than the cost.

Example (that of `relaxation.py`, at price 0): the box T₃, T₄ from 4 to 6 s in 2 × 2 cells, with upper edges 5
and 6 s. Device C at cut 1 takes 3 s per sample, so b is 1 at 5 s and 2 at 6 s, and the cost is 9 or 6. In the
cell with T₃ ≤ 6 and T₄ ≤ 5 device C costs max(6, 9) = 9. The sums over the devices, and the lower bounds with
T₃ + T₄ + (T₅ + T₆)/I at the lower corners, are

    sums        T₄ ≤ 5  T₄ ≤ 6        lower bounds    T₄ from 4  T₄ from 5
    T₃ ≤ 5      19      19            T₃ from 4       27.4       28.4
    T₃ ≤ 6      19      12.67         T₃ from 5       28.4       23.07

The bound of the whole box is 21.07. If 25 are needed, only the last cell stays open. The next box is then T₃,
T₄ from 5 to 6 s.

Most devices have one or two cuts that can be the cheapest in a box. Other cuts are left out.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from hasfl.planning.exact.relaxation import Relaxation, Tariff
from hasfl.planning.tables import EXCHANGE_TIMES, ROUNDING, STEP_TIMES, T3, T4, Bools, Ints
from hasfl.theory.rounds import Floats, Lines

# Number of cells of a grid. Measured with `python -m benchmarks.bench_planner --constants`: the planner takes
# 1.08 times as long with half as many and 1.13 times as long with twice as many
# (benchmarks/planner_search_2-core-x86_64_2026-11-16.md).
CELLS = 576
CELLS_A_SIDE = 96  # most rows, and most columns, of a grid; a divisor of CELLS, chosen by hand
CHUNK = 1 << 17  # cells × devices in one array: 1 MiB of floats, which fits into a cache; chosen by hand


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """The lower bounds of a grid of cells over T₃ (rows) and T₄ (columns)."""

    up_edges: Floats  # (rows + 1,) seconds of T₃
    down_edges: Floats  # (columns + 1,) seconds of T₄
    bounds: Floats  # (rows, columns) lower bounds on the left side of the line

    @property
    def width(self) -> float:
        """The width of a cell in T₃ plus its width in T₄, in seconds."""
        return float(self.up_edges[1] - self.up_edges[0] + self.down_edges[1] - self.down_edges[0])

    def best(self) -> tuple[Floats, Floats]:
        """The lower and upper corner (2,) of the cell with the least bound."""
        row, column = divmod(int(self.bounds.argmin()), self.bounds.shape[1])
        return self._corners(row, row, column, column)

    def rectangle(self, still_open: Bools) -> tuple[Floats, Floats]:
        """The lower and upper corner (2,) of the smallest rectangle around the cells that are still open."""
        rows, columns = np.flatnonzero(still_open.any(axis=1)), np.flatnonzero(still_open.any(axis=0))
        return self._corners(rows[0], rows[-1], columns[0], columns[-1])

    def _corners(self, top: int, bottom: int, left: int, right: int) -> tuple[Floats, Floats]:
        """The corners of the rectangle from cell (top, left) to cell (bottom, right)."""
        lower = np.array([self.up_edges[top], self.down_edges[left]])
        return lower, np.array([self.up_edges[bottom + 1], self.down_edges[right + 1]])


def bounded_cells(
    relaxation: Relaxation, box: tuple[Floats, Floats], lines: Lines, price: float, forbidden: Bools | None
) -> Cells:
    """The lower bounds of a grid over the T₃ and T₄ of one box with corners (4,), at a given price.

    Each bound is (price) of `relaxation.py` plus per_second · (T₃ + T₄ + (T₅ + T₆)/I) at the lower corner.
    """
    tables, (lower, upper) = relaxation.tables, box
    counts = cell_counts(upper[STEP_TIMES] - lower[STEP_TIMES])
    up, down = (np.linspace(lower[k], upper[k], counts[k] + 1) for k in (T3, T4))
    tariff = Tariff.of(tables, (lower[None], upper[None]), lines)
    # due(η) − η N δ_J is the same in all cells.
    due = float(tariff.due(np.array([price]))[0]) - price * float(relaxation.server_bits(np.zeros(1))[0])
    seconds = up[:-1, None] + down[:-1] + float(lower[EXCHANGE_TIMES].sum()) / tables.interval
    sums = CostsByLimit.of(relaxation, upper, lines, price, forbidden).summed(up[1:], down[1:])
    return Cells(up, down, float(lines.per_second[0]) * seconds + sums - due)


@dataclass(frozen=True, slots=True, eq=False)
class CostsByLimit:
    """The costs of every device and cut under a limit on T₃ alone, or on T₄ alone, in one box."""

    relaxation: Relaxation
    x: Floats  # (J,) per_second · C_j, the cost of a sample
    y: float  # per_noise, the cost of noise
    priced: Floats  # (J,) η δ_j
    most: Floats  # (N, J) the batch size beyond which more samples cost more; 0 where the cut is impossible

    @classmethod
    def of(
        cls, relaxation: Relaxation, upper: Floats, lines: Lines, price: float, forbidden: Bools | None
    ) -> Self:
        """The costs at a price, with the limits of T₅ and T₆ from the upper corner (4,) of the box."""
        tables, J = relaxation.tables, relaxation.deepest_cut
        x, y = float(lines.per_second[0]) * tables.server_seconds[:J], float(lines.per_noise[0])
        largest, smallest = relaxation.allowed.room(tables, J), relaxation.least_batch[:, None]
        best = relaxation.noise.best_batch(x, np.array(y), J)
        excluded = (largest <= 0) | relaxation.cut_excluded(upper[None])[0]
        if forbidden is not None:
            excluded |= forbidden
        most = np.where(excluded, 0.0, np.clip(best, smallest, np.maximum(largest, smallest)))
        return cls(relaxation, x, y, price * tables.submodel_bits[:J], most)

    def summed(self, up: Floats, down: Floats) -> Floats:
        """Σ_i min_j of the costs under every pair of a limit on T₃ (rows) and a limit on T₄ (columns).

        Costs fall with the limits, so they are highest in the first cell and lowest in the last.
        """
        tight, loose = (self._corner(up[k], down[k]) for k in (0, -1))
        highest, lowest = tight.min(axis=1), loose.min(axis=1)
        sums = np.full((len(up), len(down)), lowest[highest == lowest].sum())
        varying = np.flatnonzero(highest != lowest)  # devices whose cost differs between cells
        matters = loose <= highest[:, None]  # the cuts that may be the cheapest in some cell
        varying = varying[np.lexsort(matters[varying].T)]  # groups devices with the same cuts that matter
        size = max(1, CHUNK // sums.size)
        for first in range(0, len(varying), size):
            some = varying[first : first + size]
            sums += self._least(up, down, some, np.flatnonzero(matters[some].any(axis=0))).sum(axis=2)
        return sums

    def _corner(self, up: float, down: float) -> Floats:
        """(N, J) The costs under one limit on T₃ and one on T₄, by (max) at the head of this file."""
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
        """(up, down, devices) The costs of some devices at the cheapest of some cuts, for all limits."""
        by_up = self._costs(up, self.relaxation.tables.up_rate, some, cuts)
        by_down = self._costs(down, self.relaxation.tables.down_rate, some, cuts)
        least = np.full((len(up), len(down), len(some)), np.inf)
        under_both = np.empty_like(least)
        for under_up, under_down in zip(by_up, by_down, strict=True):
            np.maximum(under_up[:, None], under_down[None], out=under_both)  # (max)
            np.minimum(least, under_both, out=least)
        return least

    def _costs(self, limits: Floats, rate: Floats, some: Ints | slice, cuts: Ints) -> Floats:
        """(cuts, limits, devices) b x_j + y n(b) − η δ_j with the best b under each limit on T₃ or T₄."""
        most, rate = (table[some][:, cuts].T[:, None] for table in (self.most, rate))
        batch = np.floor(np.minimum(most, limits[:, None] * ROUNDING * rate))
        smallest = self.relaxation.least_batch[some]
        possible = batch >= smallest
        np.maximum(batch, smallest, out=batch)
        x, priced = (per_cut[cuts, None, None] for per_cut in (self.x, self.priced))
        cost = batch * x + self.y * self.relaxation.noise.each(batch, self.relaxation.deepest_cut) - priced
        cost[~possible] = np.inf
        return cost


def cell_counts(widths: Floats) -> tuple[int, int]:
    """The rows and columns of a grid of about CELLS cells that are about as wide in T₃ as in T₄."""
    up, down = widths.tolist()
    if min(up, down) <= 0:
        return (CELLS_A_SIDE if up > 0 else 1), (CELLS_A_SIDE if down > 0 else 1)
    # rows/columns = up/down and rows · columns = CELLS give rows = √(CELLS · up/down).
    rows = min(max(round(math.sqrt(CELLS * up / down)), CELLS // CELLS_A_SIDE), CELLS_A_SIDE)
    return rows, CELLS // rows
