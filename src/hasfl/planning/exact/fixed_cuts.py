"""The best batch sizes for fixed cuts, by a grid over T₃ and T₄ (docs/decisions/0007).

A line (`theory/rounds.py`) with fixed cuts reads, with x_i = per_second · C_i and y = per_noise,

    per_second · (T₃ + T₄ + T_A/I) + Σ_i (b_i x_i + y n(b_i)) ≥ needed.                           (line)

Only T₃ and T₄ contain more than one device. In a window of the (T₃, T₄) plane the left side is at least
`BatchLine.bound`: T₃ and T₄ count at the lower corner, and every device takes as many samples as pay within
the limits of the upper corner (R3, R4). If the bound reaches `needed`, the window is closed: all its plans
have Θ ≥ cutoff.

Example: three devices A, B, C with up = (1, 1, 2) and down = (1, 2, 1) seconds per sample, x = 1, y = 12,
n(b) = 1/b, per_second = 1 and T_A = 0. In the window T₃, T₄ from 2 to 4.5 s the limits are (4, 2, 2) samples,
of which (3, 2, 2) pay. They cost (3 + 4) + (2 + 6) + (2 + 6) = 23, so the bound is 2 + 2 + 23 = 27.

The line must be bounded from below for all (T₃, T₄). Raising b_i from k − 1 to k changes its sum
Σ_i (b_i x_i + y n(b_i)) by

    drop = x_i − y (n(k − 1) − n(k))                                                              (drop)

and is possible if and only if T₃ ≥ k · up_i and T₄ ≥ k · down_i (R3, R4). So each sample of each device is a
point (k · up_i, k · down_i) with the weight `drop`. Samples that do not pay are left out, so no drop is above
0. The least sum under the limits (T₃, T₄) is the cost of the smallest batches plus the weights of all points
with both coordinates within the limits. One histogram of the points and two cumulated sums give the least
sums of all cells of a grid. The lower bound of a cell takes T₃ and T₄ at the lower corner of the cell and
includes all points inside the cell.

In the example, drop is 1 − 12/2 = −5 from b = 1 to 2, 1 − 12/6 = −1 from 2 to 3, and 1 − 12/12 = 0 from 3 to
4, which does not pay. At (2, 2) the batch sizes are (2, 1, 1) and cost 8 + 13 + 13 = 34. Three points remain
in the window: the third sample of A at (3, 3), the second of B at (2, 4) and the second of C at (4, 2).

    weights  T₄: 2   3   4      cumulated  T₄: 2   3   4      34 + T₃ + T₄ + cumulated  T₄: 2   3   4
    T₃ = 2       0   0  −5      T₃ = 2         0   0  −5      T₃ = 2                       38  39  35
    T₃ = 3       0  −1   0      T₃ = 3         0  −1  −6      T₃ = 3                       39  39  35
    T₃ = 4      −5   0   0      T₃ = 4        −5  −6 −11      T₃ = 4                       35  35  31

The points are few, so the edges of the cells are the points themselves, and the bounds are exact: 31 is the
left side for the batch sizes (3, 2, 2). If 33 are needed, only the last cell stays open. With many points the
edges are evenly spaced. The rectangle around the open cells is then the next window, with a grid of its own.

For Corollary 1 there is one line. A line of the measured law holds for a range of slopes only. Each range has
its own grids then, and a range is split until its line gives away less than its grid.
"""

import math
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import FloatN, IntN
from hasfl.plan import Plan
from hasfl.planning.exact.relaxation import ROUNDOFF
from hasfl.planning.tables import ROUNDING, largest_batch_in_memory, seconds_per_sample
from hasfl.problem import Problem
from hasfl.theory.latency import aggregation_latency
from hasfl.theory.objective import law_of
from hasfl.theory.rounds import Floats, RoundsLaw

STRIPS = 8  # strips into which `BatchLine.narrowed` divides one side of a window; chosen by hand
EDGES = 256  # most rows, and most columns, of a grid: 65,536 cells are 0.5 MiB of floats; chosen by hand
# Sides in the order of narrowing: T₃ (0), T₄ (1), then both again, because a narrower T₃ closes more strips
# of T₄. Chosen by hand.
STRIP_SIDES = (0, 1, 0, 1)
PASSES = 12  # most grids for one range of slopes; then the search takes over; chosen by hand
# A range of slopes is split, without a grid, if its line gives away more than 1/CELLS of the width of its
# window. Measured: the planner takes 1.02 times as long with 8 and 1.03 times as long with 32
# (benchmarks/planner_search_2-core-x86_64_2026-11-16.md).
CELLS = 16
RANGES = 400  # most ranges of slopes, repetitions included; then the search takes over; chosen by hand
MOST_POINTS = 2e7  # most points of a grid: 160 MB an array. With more, the search takes over; chosen by hand
STUCK = 2  # a grid that narrows its window by less than this factor is stuck; chosen by hand
CELL_ROUNDING = 1 - 1e-11  # moves points towards earlier cells, by more than the rounding error of `_cell`

# The trials of `first_batches`, chosen by hand. The first (T₃, T₄) lets the slowest device take FIRST_SAMPLES
# samples. Each trial multiplies T₃ (0) or T₄ (1) of the best trial so far by CORNERS factors, from 2^−spread
# to 2^spread.
FIRST_SAMPLES = 8
FIRST_TRIALS = ((0, 3.0), (1, 3.0), (0, 1.0), (1, 1.0), (0, 0.3), (1, 0.3))  # side, spread
CORNERS = 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FixedCuts:
    """The costs and limits of batch sizes for fixed cuts.

    With fixed cuts, T₅ and T₆ are constants, and each device has one column of the tables of
    `planning/tables.py`: that of its own cut.
    """

    up_seconds: FloatN  # seconds per sample up, R3
    down_seconds: FloatN  # seconds per sample down, R4
    server_seconds: FloatN  # C_j, seconds per sample on the edge server
    largest_batch: FloatN  # the most samples by memory, max_batch and |D_i|
    aggregation_seconds: float  # (T₅ + T₆)/I = T_A/I
    deepest_cut: int
    smallest_batch: float  # the fewest samples that the private layers can train on
    law: RoundsLaw

    @classmethod
    def of(cls, problem: Problem, cuts: IntN) -> Self:
        """The problem of the batch sizes for the given cuts."""
        j = cuts - 1
        up, down, server = seconds_per_sample(problem, j)
        aggregation = aggregation_latency(
            Plan(np.ones_like(cuts), cuts), problem.fleet, problem.profile
        ).total
        return cls(
            up_seconds=up,
            down_seconds=down,
            server_seconds=server,
            largest_batch=np.minimum(largest_batch_in_memory(problem, j), problem.largest_batch),
            aggregation_seconds=aggregation / problem.interval,
            deepest_cut=int(cuts.max()),
            smallest_batch=float(problem.smallest_batch_upto[cuts.max() - 1]),
            law=law_of(problem),
        )

    def within_limits(self, batch_sizes: IntN) -> FloatN:
        """Batch sizes, clipped to the smallest and the largest possible ones."""
        return np.clip(batch_sizes.astype(np.float64), self.smallest_batch, np.floor(self.largest_batch))

    @property
    def possible(self) -> bool:
        """True if the smallest batch fits on every device."""
        return bool((self.largest_batch >= self.smallest_batch).all())

    @property
    def leaves_one_plan(self) -> bool:
        """True if every device has exactly one possible batch size."""
        return bool((np.floor(self.largest_batch) == self.smallest_batch).all())

    def seconds(self, batch_sizes: FloatN) -> float:
        """The mean seconds of a round, T_S + T_A/I = T₃ + T₄ + edge server + (T₅ + T₆)/I."""
        return float(
            (batch_sizes * self.up_seconds).max()
            + (batch_sizes * self.down_seconds).max()
            + (batch_sizes * self.server_seconds).sum()
            + self.aggregation_seconds
        )

    def value(self, batch_sizes: FloatN) -> float:
        """The training time Θ = R (T_S + T_A/I), Eq. (43)."""
        return float(self.law.rounds(batch_sizes, self.deepest_cut)) * self.seconds(batch_sizes)

    def slope(self, batch_sizes: FloatN) -> float:
        """The slope of a plan, as the law of rounds defines it."""
        seconds, noise = np.array(self.seconds(batch_sizes)), self.noise(batch_sizes)
        return float(self.law.slope(seconds, noise, self.deepest_cut))

    def noise(self, batch_sizes: FloatN) -> Floats:
        """The noise S = Σ_i n(b_i) of all batches."""
        return self.law.noise.total(batch_sizes, self.deepest_cut)

    def most(self, corner: Floats) -> FloatN:
        """The largest batch sizes with T₃ ≤ corner[0] and T₄ ≤ corner[1].

        A batch size is never below the smallest, even where a limit is too tight for it.
        """
        limit = np.minimum(corner[0] / self.up_seconds, corner[1] / self.down_seconds) * ROUNDING
        whole: FloatN = np.floor(np.minimum(self.largest_batch, limit))
        return np.maximum(whole, self.smallest_batch)


# ── the line, and its lower bound in a window of (T₃, T₄) ────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A rectangle of the (T₃, T₄) plane that may still hold a better plan."""

    low: Floats  # (2,) lower ends of T₃ and T₄, seconds
    high: Floats  # (2,) upper ends of T₃ and T₄, seconds

    @property
    def width(self) -> float:
        """The width in T₃ plus the width in T₄, in seconds."""
        return float((self.high - self.low).sum())

    def with_side(self, side: int, low: float, high: float) -> "Window":
        """The same window with other ends of one side."""
        lows, highs = self.low.copy(), self.high.copy()
        lows[side], highs[side] = low, high
        return Window(lows, highs)


@dataclass(frozen=True, slots=True, eq=False)
class BatchLine:
    """The test (line) at the head of this file. It proves Θ ≥ cutoff for plans with slopes in one range."""

    cuts: FixedCuts
    cutoff: float
    per_second: float
    x: FloatN  # per_second · C_i, the cost of a sample
    y: float  # per_noise, the cost of noise
    needed: float
    whole: float  # the unit of rounding errors (`theory/rounds.py`, `Lines`)
    largest: FloatN  # the batch sizes beyond which more samples cost more than they save

    @classmethod
    def at(cls, cuts: FixedCuts, cutoff: float, low: Floats, high: Floats) -> Self:
        """The line for a cutoff and for the slopes from `low` to `high`, both (1,)."""
        lines = cuts.law.lines(cutoff, cuts.deepest_cut, low, high)
        per_second, y = float(lines.per_second[0]), float(lines.per_noise[0])
        x = per_second * cuts.server_seconds
        best = cuts.law.noise.best_batch(x, np.array(y), cuts.deepest_cut)
        largest = np.minimum(np.floor(cuts.largest_batch), np.maximum(best, cuts.smallest_batch))
        return cls(cuts, cutoff, per_second, x, y, float(lines.needed[0]), float(lines.whole[0]), largest)

    def limit(self, corner: Floats) -> FloatN:
        """The largest batch sizes that pay under the limits corner[0] on T₃ and corner[1] on T₄."""
        return np.minimum(self.cuts.most(corner), self.largest)

    def bound(self, window: Window) -> float:
        """A lower bound on the left side in a window: T at the lower corner, limits at the upper corner."""
        b = self.limit(window.high)
        seconds = float(window.low.sum()) + self.cuts.aggregation_seconds
        return self.per_second * seconds + self.cost(b)

    def cost(self, b: FloatN) -> float:
        """The cost Σ_i (b_i x_i + y n(b_i)) of batch sizes."""
        return float(b @ self.x) + self.y * float(self.cuts.noise(b))

    def closed(self, bounds: Floats) -> NDArray[np.bool_]:
        """True where a bound reaches `needed`, up to rounding."""
        return bounds >= self.needed - ROUNDOFF * self.whole

    def reachable(self, window: Window) -> Window:
        """The window without plans that are too far from its lower corner.

        If `missing` seconds are missing to close the window, a plan whose T₃ or T₄ is more than `missing`
        seconds above the lower corner reaches `needed`, so the plan is not better.
        """
        missing = max(self.needed - self.bound(window), 0.0) / self.per_second
        return Window(window.low, np.minimum(window.high, window.low + missing))

    def narrowed(self, window: Window, side: int) -> Window:
        """The window without the first and the last strips of one side that are closed."""
        edges = np.linspace(window.low[side], window.high[side], STRIPS + 1)
        strips = [window.with_side(side, low, high) for low, high in pairwise(edges)]
        still_open = [strip for strip in strips if not self.closed(np.array(self.bound(strip)))]
        if not still_open:
            return window.with_side(side, edges[0], edges[0])
        return window.with_side(side, still_open[0].low[side], still_open[-1].high[side])

    def points_within(self, window: Window) -> float:
        """The number of points of the grid in a window: samples between the limits of its corners."""
        return float((self.limit(window.high) - self.limit(window.low)).sum())


# ── the grid over T₃ and T₄ ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, eq=False)
class BatchesFound:
    """The best batch sizes of the grid, and a lower bound on Θ of all batch sizes."""

    batch_sizes: FloatN
    lower_bound: float | None  # None if the grid did not close
    passes: int


def first_batches(cuts: FixedCuts) -> FloatN:
    """The first batch sizes: the largest that fit, or better ones that a few trials of (T₃, T₄) find.

    In each trial every device takes as many samples as pay within T₃ and T₄.
    """
    best = np.floor(cuts.largest_batch)
    value = cuts.value(best)
    corner = FIRST_SAMPLES * np.array([cuts.up_seconds.max(), cuts.down_seconds.max()])
    for side, spread in FIRST_TRIALS:
        if not math.isfinite(value):
            break
        corners = np.tile(corner, (CORNERS, 1))
        corners[:, side] *= 2.0 ** np.linspace(-spread, spread, CORNERS)
        slope = np.array([cuts.slope(best)])
        line = BatchLine.at(cuts, value, slope, slope)
        candidates = [line.limit(limits) for limits in corners]
        values = [cuts.value(batch_sizes) for batch_sizes in candidates]
        k = int(np.argmin(values))
        corner = corners[k]
        if values[k] < value:
            best, value = candidates[k], values[k]
    return best


def best_batches_on_grid(
    cuts: FixedCuts, start: FloatN, gap: float, deadline: float = math.inf
) -> BatchesFound:
    """The best batch sizes with a lower bound, if the grid closes before the deadline (monotonic clock).

    `start` holds the first batch sizes, which must be within their limits. A window is closed when all its
    plans are proved to have Θ ≥ cutoff. The cutoff is best Θ so far · (1 − gap).
    """
    best, value, passes = start, cuts.value(start), 0
    slowest = np.array([cuts.up_seconds.max(), cuts.down_seconds.max()])
    window = Window(cuts.smallest_batch * slowest, np.full(2, np.inf))
    parts = [_Part(window, np.zeros(1), np.full(1, np.inf))] if gap < 1 else []
    while parts:
        passes += 1
        cutoff = value * (1 - gap)
        if time.monotonic() > deadline:
            return BatchesFound(best, None, passes)
        # 1. Keep the slopes that a better plan can have, and cut off what closes without a grid.
        part = parts.pop().in_reach(cuts, cutoff)
        if part is None:
            continue
        if part.passes == PASSES or passes > RANGES:
            return BatchesFound(best, None, passes)
        line = BatchLine.at(cuts, cutoff, part.low, part.high)
        part = part.narrowed(line)
        if line.closed(np.array(line.bound(part.window))):
            continue
        # 2. Split the range of slopes if its line gives away more than a grid would.
        lost = part.lost_by_slopes(line)
        if lost * CELLS > part.window.width:
            parts += part.halves(cuts.slope(best))
            continue
        if line.points_within(part.window) > MOST_POINTS:
            return BatchesFound(best, None, passes)
        # 3. Bound a grid. Its best cell gives a candidate, its open cells the next window.
        grid = _Grid.of(line, part.window)
        candidate = grid.batch_sizes_of_best_cell()
        if (candidate_value := cuts.value(candidate)) < value:
            best, value = candidate, candidate_value
        if (still_open := grid.open_window()) is not None:
            stuck = still_open.width > part.window.width / STUCK
            part = replace(part, window=still_open, passes=part.passes + 1)
            parts += part.halves(cuts.slope(best)) if stuck and lost > 0 else [part]
    return BatchesFound(best, value if cuts.leaves_one_plan else value * (1 - gap), passes)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A range of slopes, and the window that may still hold a better plan with a slope in the range."""

    window: Window
    low: Floats  # (1,) the least slope
    high: Floats  # (1,) the largest slope
    passes: int = 0  # grids for this range so far

    def in_reach(self, cuts: FixedCuts, cutoff: float) -> "_Part | None":
        """The part with the slopes of plans in the window with Θ < cutoff; None if there are none."""
        server = cuts.smallest_batch * float(cuts.server_seconds.sum())
        least = float(self.window.low.sum()) + server + cuts.aggregation_seconds
        low, high = cuts.law.slopes(
            cutoff,
            cuts.deepest_cut,
            least_seconds=np.array([least]),
            least_noise=cuts.noise(cuts.most(self.window.high)),
        )
        low, high = np.maximum(self.low, low / ROUNDING), np.minimum(self.high, high * ROUNDING)
        return replace(self, low=low, high=high) if (low <= high).all() else None

    def narrowed(self, line: BatchLine) -> "_Part":
        """The part with a smaller window: strips that close without a grid are cut off."""
        window = self.window
        for side in STRIP_SIDES if self.passes == 0 else ():
            window = line.narrowed(line.reachable(window), side)
        return replace(self, window=line.reachable(window))

    def lost_by_slopes(self, line: BatchLine) -> float:
        """Seconds by which the line of the range is weaker than the line of its middle slope; 0 if none."""
        middle = np.sqrt(self.low * self.high)
        exact = BatchLine.at(line.cuts, line.cutoff, middle, middle)
        lost = exact.bound(self.window) - exact.needed - (line.bound(self.window) - line.needed)
        return lost / line.per_second if lost > ROUNDOFF * line.whole else 0.0

    def halves(self, slope: float) -> "list[_Part]":
        """Two parts, split at the slope of the best plan, where both lines are exact, or in the middle."""
        inside = (self.low < slope) & (slope < self.high)
        at = np.where(inside, slope, np.sqrt(self.low * self.high))
        return [replace(self, low=at, passes=0), replace(self, high=at, passes=0)]


@dataclass(frozen=True, slots=True, eq=False)
class _Grid:
    """The lower bounds of all cells of a grid, with T₃ in rows and T₄ in columns."""

    line: BatchLine
    up_edges: Floats  # lower edges of the rows
    down_edges: Floats  # lower edges of the columns
    high: Floats  # (2,) upper corner of the window
    bounds: Floats  # (rows, columns) lower bounds on the left side of the line

    @classmethod
    def of(cls, line: BatchLine, window: Window) -> Self:
        """The grid over a window, as the head of this file explains it."""
        cuts = line.cuts
        always, top = line.limit(window.low), line.limit(window.high)
        added = np.maximum(top - always, 0.0).astype(np.int64)
        # One entry per point. Device i has added[i] points: k = always[i] + 1, always[i] + 2, …, top[i].
        device = np.repeat(np.arange(len(top)), added)
        first = np.repeat(always - (added.cumsum() - added), added)
        k = first + np.arange(1, len(device) + 1)
        saved = cuts.law.noise.saved_by_one_more(k - 1, cuts.deepest_cut)
        drop = line.x[device] - line.y * saved  # (drop)
        up, down = k * cuts.up_seconds[device], k * cuts.down_seconds[device]
        up_edges, down_edges = (_edges(points, window, side) for side, points in enumerate((up, down)))
        sums = _cumulated(
            _cell(up, up_edges), _cell(down, down_edges), drop, (len(up_edges), len(down_edges))
        )
        seconds = up_edges[:, None] + down_edges + cuts.aggregation_seconds
        bounds = line.per_second * seconds + sums + line.cost(always)
        return cls(line, up_edges, down_edges, window.high, bounds)

    def batch_sizes_of_best_cell(self) -> FloatN:
        """The largest batch sizes that pay at the upper corner of the cell with the least bound."""
        row, column = divmod(int(self.bounds.argmin()), self.bounds.shape[1])
        return self.line.limit(np.array([self._upper(0, row), self._upper(1, column)]))

    def _upper(self, side: int, cell: int) -> float:
        """The upper end of a row (side 0) or column (1): just below the next edge, or the window's end."""
        edges = (self.up_edges, self.down_edges)[side]
        end = edges[cell + 1] / ROUNDING**2 if cell + 1 < len(edges) else self.high[side]
        return float(max(end, edges[cell]))

    def open_window(self) -> Window | None:
        """The smallest rectangle around the cells that are not closed; None if all are closed."""
        still_open = ~self.line.closed(self.bounds)
        rows, columns = np.flatnonzero(still_open.any(axis=1)), np.flatnonzero(still_open.any(axis=0))
        if not len(rows):
            return None
        low = np.array([self.up_edges[rows[0]], self.down_edges[columns[0]]])
        return Window(low, np.array([self._upper(0, rows[-1]), self._upper(1, columns[-1])]))


def _edges(points: Floats, window: Window, side: int) -> Floats:
    """The lower edges of the cells: the points themselves if they are few, otherwise EDGES even edges."""
    low, high = window.low[side], window.high[side]
    if len(points) < EDGES - 1:
        return np.unique(np.append(points[points > low], low))
    width = float(high - low) / EDGES
    return low + width * np.arange(float(EDGES))


def _cell(points: Floats, edges: Floats) -> NDArray[np.int64]:
    """The row or column of each point; the first one for points before all edges.

    A rounding error may give the row before, never the row after: a weight that counts too early lowers the
    bounds, and lower bounds stay valid. A weight that counts too late would raise them.
    """
    if len(edges) != EDGES:
        return np.maximum(np.searchsorted(edges, points, side="right").astype(np.int64) - 1, 0)
    per_cell = (EDGES - 1) / max(edges[-1] - edges[0], np.finfo(float).tiny)
    index = (points * per_cell * CELL_ROUNDING - edges[0] * per_cell).astype(np.int64)
    return np.clip(index, 0, EDGES - 1, out=index)


def _cumulated(
    rows: NDArray[np.int64], columns: NDArray[np.int64], drop: Floats, shape: tuple[int, int]
) -> Floats:
    """The sum of the drops of all points in rows and columns up to a cell's own, for every cell."""
    histogram = np.bincount(rows * shape[1] + columns, weights=drop, minlength=shape[0] * shape[1])
    sums: Floats = histogram.astype(np.float64, copy=False).reshape(shape)
    np.cumsum(sums, axis=0, out=sums)
    np.cumsum(sums, axis=1, out=sums)
    return sums
