"""The line of the batch sizes for fixed cuts, and its lower bounds in a window of (T₃, T₄).

A line (`theory/rounds.py`) with fixed cuts reads, with x_i = per_second · C_i and y = per_noise,

    per_second · (T₃ + T₄ + T_A/I) + Σ_i (b_i x_i + y n(b_i)) ≥ needed.                           (line)

Only T₃ and T₄ contain more than one device. In a window of the (T₃, T₄) plane the left side is at least
`BatchLine.bound`: T₃ and T₄ count at the lower corner, and every device takes as many samples as pay within
the limits of the upper corner (R3, R4). If the bound reaches `needed`, the window is closed: all its plans
have Θ ≥ cutoff.

Example (that of `batch_grid.py`): three devices with up = (1, 1, 2) and down = (1, 2, 1) seconds per sample,
x = 1, y = 12, n(b) = 1/b, per_second = 1 and T_A = 0. In the window T₃, T₄ from 2 to 4.5 s the limits are
(4, 2, 2) samples, of which (3, 2, 2) pay. They cost (3 + 4) + (2 + 6) + (2 + 6) = 23, so the bound is
2 + 2 + 23 = 27.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import FloatN
from hasfl.planning.exact.fixed_cuts import FixedCuts
from hasfl.planning.exact.relaxation import ROUNDOFF
from hasfl.theory.rounds import Floats

STRIPS = 8  # into which `BatchLine.narrowed` divides one side of a window; chosen by hand


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A rectangle of the (T₃, T₄) plane that may still hold a better plan."""

    low: Floats  # (2,) T₃, T₄
    high: Floats  # (2,)

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
    """(line) at the head of this file. The line proves Θ ≥ cutoff for plans with slopes in one range."""

    cuts: FixedCuts
    cutoff: float
    per_second: float
    x: FloatN  # per_second · C_i, the cost of a sample
    y: float  # per_noise, the cost of noise
    needed: float
    whole: float  # the unit of rounding errors, see `Lines`
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
        """Σ_i (b_i x_i + y n(b_i))."""
        return float(b @ self.x) + self.y * float(self.cuts.noise(b))

    def closed(self, bounds: Floats) -> NDArray[np.bool_]:
        """True where a bound reaches `needed`, up to rounding."""
        return bounds >= self.needed - ROUNDOFF * self.whole

    def reachable(self, window: Window) -> Window:
        """The window without plans that are too far from its lower corner.

        With `missing` seconds to close the window, a plan with T₃ or T₄ more than `missing` seconds above the
        lower corner reaches `needed`.
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
        """The number of points of `batch_grid.py` in a window: samples between the limits of its corners."""
        return float((self.limit(window.high) - self.limit(window.low)).sum())
