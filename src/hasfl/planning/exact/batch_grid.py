"""Batch sizes alone, exactly: for given cuts, Θ on a whole grid of (T₃, T₄) at once.

With the cuts given, raising b_i from k − 1 to k changes b x + y n(b) by a known amount, and is possible if
and only if T₃ ≥ k·up_i and T₄ ≥ k·down_i. So every device contributes points (k·up_i, k·down_i), and the
least cost under limits (T₃, T₄) is a sum over the points below and left of them: one histogram and two
cumulated sums give it for all cells of a grid. A cell's cost with T₃, T₄ at its lower corner and all its
points included is a lower bound for every plan inside; the grid closes in on the cells that stay open.

x and y come from a line (theory/rounds.py). Where a line holds for a range of slopes only, every range has a
grid of its own, and is split until its line gives away less than its grid does.
"""

import math
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import FloatN
from hasfl.planning.exact.fixed_cuts import FixedCuts
from hasfl.planning.exact.relaxation import ROUNDOFF
from hasfl.planning.tables import ROUNDING
from hasfl.theory.rounds import Floats

EDGES = 256  # of a grid, in each direction
STRIPS = 8  # that the plane is first divided into, in each direction
PASSES = 12  # over the grid of one range of slopes
CELLS = 16  # of a window: what its line may give away before a range of slopes is split without a grid
RANGES = 400  # of slopes, before the search is better
MOST_POINTS = 2e7  # that a grid holds; beyond them the search is better


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The part of the (T₃, T₄) plane that may still hold a better plan."""

    low: Floats  # (2,)
    high: Floats

    @property
    def width(self) -> float:
        """T₃ and T₄ from corner to corner, in seconds."""
        return float((self.high - self.low).sum())

    def with_side(self, side: int, low: float, high: float) -> "Window":
        """The same window with one side changed."""
        lows, highs = self.low.copy(), self.high.copy()
        lows[side], highs[side] = low, high
        return Window(lows, highs)


@dataclass(frozen=True, slots=True, eq=False)
class BatchesFound:
    """The best batch sizes found, and what no others can beat; None if the grid did not close."""

    batch_sizes: FloatN
    lower_bound: float | None
    passes: int


def first_batches(cuts: FixedCuts) -> FloatN:
    """Batch sizes to begin with: all that fit, then as many as pay within a T₃ and a T₄ homed in on."""
    best = np.floor(cuts.largest_batch)
    value = cuts.value(best)
    corner = 8 * np.array([cuts.up_seconds.max(), cuts.down_seconds.max()])
    for side, spread in ((0, 3.0), (1, 3.0), (0, 1.0), (1, 1.0), (0, 0.3), (1, 0.3)):
        if not math.isfinite(value):
            break
        corners = np.tile(corner, (6, 1))
        corners[:, side] *= 2.0 ** np.linspace(-spread, spread, 6)
        slope = np.array([cuts.slope(best)])
        level = _Level.at(cuts, value, slope, slope)
        tried = [level.limit(each) for each in corners]
        values = [cuts.value(each) for each in tried]
        k = int(np.argmin(values))
        corner = corners[k]
        if values[k] < value:
            best, value = tried[k], values[k]
    return best


def best_batches_on_grid(
    cuts: FixedCuts, start: FloatN, gap: float, deadline: float = math.inf
) -> BatchesFound:
    """The best batch sizes with a lower bound, if the grid closes before the deadline on the monotonic clock.

    `start` are batch sizes to begin with, within their limits.
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
        part = parts.pop().in_reach(cuts, cutoff)
        if part is None:
            continue
        if part.passes == PASSES or passes > RANGES:
            return BatchesFound(best, None, passes)
        level = _Level.at(cuts, cutoff, part.low, part.high)
        part = part.narrowed(level)
        if level.closed(np.array(level.bound(part.window))):
            continue
        lost = part.lost_by_slopes(level)
        if lost * CELLS > part.window.width:
            parts += part.halves(cuts.slope(best))
            continue
        if level.points_within(part.window) > MOST_POINTS:
            return BatchesFound(best, None, passes)
        grid = level.grid(part.window)
        candidate = grid.batch_sizes_of_best_cell()
        if (found := cuts.value(candidate)) < value:
            best, value = candidate, found
        if (still_open := grid.open_window()) is not None:
            stuck = still_open.width > part.window.width / 2
            part = replace(part, window=still_open, passes=part.passes + 1)
            parts += part.halves(cuts.slope(best)) if stuck and lost > 0 else [part]
    return BatchesFound(best, value if cuts.leaves_one_plan else value * (1 - gap), passes)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A range of slopes, and the window that may still hold a better plan with such a slope."""

    window: Window
    low: Floats  # (1,)
    high: Floats
    passes: int = 0

    def in_reach(self, cuts: FixedCuts, cutoff: float) -> "_Part | None":
        """With the slopes that plans with Θ below the cutoff can have in the window; None if none can."""
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

    def narrowed(self, level: "_Level") -> "_Part":
        """With what can be cut off the window before there is a grid."""
        window = self.window
        for side in (0, 1, 0, 1) if self.passes == 0 else ():
            window = level.narrowed(level.reachable(window), side)
        return replace(self, window=level.reachable(window))

    def lost_by_slopes(self, level: "_Level") -> float:
        """Seconds that its line gives away against the line for its middle; 0 if they are the same."""
        middle = np.sqrt(self.low * self.high)
        exact = _Level.at(level.cuts, level.cutoff, middle, middle)
        lost = exact.bound(self.window) - exact.needed - (level.bound(self.window) - level.needed)
        return lost / level.per_second if lost > ROUNDOFF * level.whole else 0.0

    def halves(self, slope: float) -> "list[_Part]":
        """Split at the slope of the best plan, where lines are exact then, or in the middle."""
        inside = (self.low < slope) & (slope < self.high)
        at = np.where(inside, slope, np.sqrt(self.low * self.high))
        return [replace(self, low=at, passes=0), replace(self, high=at, passes=0)]


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """The test for Θ ≥ cutoff: Σ_i (b x + y n(b)) + per_second · (T₃ + T₄ + T_A/I) must reach `needed`."""

    cuts: FixedCuts
    cutoff: float
    per_second: float
    x: FloatN
    y: float
    needed: float
    whole: float  # what rounding errors are relative to
    largest: FloatN  # more samples than this cost more than they bring

    @classmethod
    def at(cls, cuts: FixedCuts, cutoff: float, low: Floats, high: Floats) -> Self:
        """The test at a cutoff for a range of slopes."""
        lines = cuts.law.lines(cutoff, cuts.deepest_cut, low, high)
        per_second, y = float(lines.per_second[0]), float(lines.per_noise[0])
        x = per_second * cuts.server_seconds
        best = cuts.law.noise.best_batch(x, np.array(y), cuts.deepest_cut)
        largest = np.minimum(np.floor(cuts.largest_batch), np.maximum(best, cuts.smallest_batch))
        return cls(cuts, cutoff, per_second, x, y, float(lines.needed[0]), float(lines.whole[0]), largest)

    def limit(self, corner: Floats) -> FloatN:
        """The largest batch sizes that pay under limits for T₃ and T₄."""
        return np.minimum(self.cuts.most(corner), self.largest)

    def bound(self, window: Window) -> float:
        """The least left side in a window: T at its lower corner, limits at its upper one."""
        b = self.limit(window.high)
        seconds = float(window.low.sum()) + self.cuts.aggregation_seconds
        return self.per_second * seconds + self._cost(b)

    def _cost(self, b: FloatN) -> float:
        """Σ_i (b x + y n(b))."""
        return float(b @ self.x) + self.y * float(self.cuts.noise(b))

    def reachable(self, window: Window) -> Window:
        """Without what lies further from the lower corner than is missing to close the window."""
        missing = max(self.needed - self.bound(window), 0.0) / self.per_second
        return Window(window.low, np.minimum(window.high, window.low + missing))

    def narrowed(self, window: Window, side: int) -> Window:
        """Without the first and the last strips of one side that are closed as a whole."""
        edges = np.linspace(window.low[side], window.high[side], STRIPS + 1)
        strips = [window.with_side(side, low, high) for low, high in pairwise(edges)]
        still_open = [strip for strip in strips if not self.closed(np.array(self.bound(strip)))]
        if not still_open:
            return window.with_side(side, edges[0], edges[0])
        return window.with_side(side, still_open[0].low[side], still_open[-1].high[side])

    def points_within(self, window: Window) -> float:
        """How many samples more the upper corner allows than the lower one."""
        return float((self.limit(window.high) - self.limit(window.low)).sum())

    def closed(self, bounds: Floats) -> NDArray[np.bool_]:
        """Whether bounds reach what is needed, up to rounding."""
        return bounds >= self.needed - ROUNDOFF * self.whole

    def grid(self, window: Window) -> "_Grid":
        """Bound every cell of a grid over the window."""
        always, top = self.limit(window.low), self.limit(window.high)
        added = np.maximum(top - always, 0.0).astype(np.int64)
        device = np.repeat(np.arange(len(top)), added)
        first = np.repeat(always - (added.cumsum() - added), added)  # so that levels count from `always` + 1
        level = first + np.arange(1, len(device) + 1)
        saved = self.cuts.law.noise.saved_by_one_more(level - 1, self.cuts.deepest_cut)
        drop = self.x[device] - self.y * saved
        up, down = level * self.cuts.up_seconds[device], level * self.cuts.down_seconds[device]
        up_edges, down_edges = (_edges(points, window, side) for side, points in enumerate((up, down)))
        sums = _cumulated(
            _cell(up, up_edges), _cell(down, down_edges), drop, (len(up_edges), len(down_edges))
        )
        seconds = up_edges[:, None] + down_edges + self.cuts.aggregation_seconds
        bounds = self.per_second * seconds + sums + self._cost(always)
        return _Grid(self, up_edges, down_edges, window.high, bounds)


@dataclass(frozen=True, slots=True, eq=False)
class _Grid:
    """Lower bounds of all cells, and how to read batch sizes off one of them."""

    level: _Level
    up_edges: Floats  # lower edges of the cells
    down_edges: Floats
    high: Floats
    bounds: Floats  # (up edges, down edges)

    def batch_sizes_of_best_cell(self) -> FloatN:
        """As many samples as the upper corner of the cell with the least bound allows."""
        row, column = divmod(int(self.bounds.argmin()), self.bounds.shape[1])
        return self.level.limit(np.array([self._upper(0, row), self._upper(1, column)]))

    def _upper(self, side: int, cell: int) -> float:
        """Just below the next cell, or the end of the window."""
        edges = (self.up_edges, self.down_edges)[side]
        end = edges[cell + 1] / ROUNDING**2 if cell + 1 < len(edges) else self.high[side]
        return float(max(end, edges[cell]))

    def open_window(self) -> Window | None:
        """The smallest rectangle around the cells that are not closed."""
        still_open = ~self.level.closed(self.bounds)
        rows, columns = np.flatnonzero(still_open.any(axis=1)), np.flatnonzero(still_open.any(axis=0))
        if not len(rows):
            return None
        low = np.array([self.up_edges[rows[0]], self.down_edges[columns[0]]])
        return Window(low, np.array([self._upper(0, rows[-1]), self._upper(1, columns[-1])]))


def _edges(points: Floats, window: Window, side: int) -> Floats:
    """Lower edges of the cells: the points themselves if they are few, else EDGES evenly spaced ones."""
    low, high = window.low[side], window.high[side]
    if len(points) < EDGES - 1:
        return np.unique(np.append(points[points > low], low))
    width = float(high - low) / EDGES
    return low + width * np.arange(float(EDGES))


def _cell(points: Floats, edges: Floats) -> NDArray[np.int64]:
    """The cell of each point, or an earlier one; what lies left of all edges counts from the first on."""
    if len(edges) != EDGES:
        return np.maximum(np.searchsorted(edges, points, side="right").astype(np.int64) - 1, 0)
    per_cell = (EDGES - 1) / max(edges[-1] - edges[0], np.finfo(float).tiny)
    index = (points * per_cell * (1 - 1e-11) - edges[0] * per_cell).astype(np.int64)
    return np.clip(index, 0, EDGES - 1, out=index)


def _cumulated(
    rows: NDArray[np.int64], columns: NDArray[np.int64], drop: Floats, shape: tuple[int, int]
) -> Floats:
    """For every cell, the drops of all points in it or below and left of it."""
    histogram = np.bincount(rows * shape[1] + columns, weights=drop, minlength=shape[0] * shape[1])
    sums: Floats = histogram.astype(np.float64, copy=False).reshape(shape)
    np.cumsum(sums, axis=0, out=sums)
    np.cumsum(sums, axis=1, out=sums)
    return sums
