"""The boxes that the search divides, and the test that closes a box.

A box is a range for each of T₃, T₄, T₅, T₆ and for the slope of the law of rounds, and a set of cuts that are
excluded inside. A box stands for all plans whose T₃ to T₆ and slope lie in the ranges. The box is closed when
its line (`theory/rounds.py`) proves Θ ≥ value for all its plans, so that no plan of the box is better.

*Missing* seconds are the seconds by which the lower bound on the left side of the line lacks `needed`. Wide
sides *give away* seconds: the line counts T₃ at the lower end of the box, but limits batch sizes by the upper
end, so a box that is w seconds wide in T₃ may underestimate its plans by w seconds.
"""

from dataclasses import dataclass, replace

import numpy as np

from hasfl.planning.exact.relaxation import ROUNDOFF, Choice, Relaxation
from hasfl.planning.tables import STEP_TIMES, TIMES, Bools
from hasfl.theory.rounds import Floats, Lines, RoundsLaw

# The two numbers behind a constant are measured: the seconds of the planner with half and with double of the
# constant, over those with the constant itself (benchmarks/planner_search_2-core-x86_64_2026-11-16.md).
STEPS = 4  # prices tried for a box; 1.01, 1.06
DEVICE_SHARE = 0.5  # of the missing seconds: sides that give away less count as narrow; 0.96, 1.02

SLOPE = 4  # the place of the slope among the sides of a box, after T₃ to T₆


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """Lower and upper corner, the first price to try, and the cuts that are excluded inside."""

    lower: Floats  # (5,) T₃, T₄, T₅, T₆, slope
    upper: Floats  # (5,)
    price: float = 0.0  # η, see `tariff.py`
    steps: int = STEPS  # further prices to try
    forbidden: Bools | None = None  # (N, J) cuts that are excluded; None if none is

    def with_step_times(self, lower: Floats, upper: Floats) -> "Box":
        """The box with other ends (2,) of T₃ and T₄."""
        others = slice(STEP_TIMES.stop, None)
        return replace(
            self, lower=np.append(lower, self.lower[others]), upper=np.append(upper, self.upper[others])
        )

    def halves(self, side: int, middle: float) -> "tuple[Box, Box]":
        """The box below and the box above a value of one side."""
        lower, upper = self.lower.copy(), self.upper.copy()
        lower[side] = upper[side] = middle
        return replace(self, upper=upper), replace(self, lower=lower)

    def split_by_device(self, device: int, cut: int, shape: tuple[int, int], steps: int) -> "list[Box]":
        """Two boxes: one device takes at most `cut` in the first, and a later cut in the second.

        `shape` is (N, J). `steps` prices are tried for the new boxes.
        """
        boxes, layer = [], np.arange(1, shape[1] + 1)
        for excluded in (layer > cut, layer <= cut):
            forbidden = np.zeros(shape, dtype=bool)
            if self.forbidden is not None:
                forbidden |= self.forbidden
            forbidden[device] |= excluded
            boxes.append(replace(self, steps=steps, forbidden=forbidden))
        return boxes

    def upper_in_reach(self, weights: Floats, unpriced: Floats, missing: float) -> Floats:
        """(5,) The upper corner without plans that are too far from the lower corner.

        A plan with T₃ more than `missing` seconds above the lower end reaches `needed`: it pays T₃ in full,
        while the bound counts the lower end. T₄ to T₆ likewise, with their weights in a round. Of T₅ and T₆
        only the unpriced share counts, because the bound has the priced share already (`tariff.py`).
        """
        with np.errstate(divide="ignore"):
            furthest = self.lower[TIMES] + missing / (weights * unpriced)
        return np.append(np.minimum(self.upper[TIMES], furthest), self.upper[SLOPE])


@dataclass(frozen=True, slots=True, eq=False)
class ClosingTest:
    """The line of one box, which must reach `needed` to prove Θ ≥ value and close the box."""

    value: float
    lines: Lines  # of this box alone
    relaxation: Relaxation
    law: RoundsLaw

    @property
    def per_second(self) -> float:
        """The weight of a second of a round in the line."""
        return float(self.lines.per_second[0])

    @property
    def needed(self) -> float:
        """The left side that closes the box: `needed` of the line, less a rounding error."""
        return float(self.lines.needed[0] - ROUNDOFF * self.lines.whole[0])

    @property
    def point(self) -> float:
        """Seconds: a box whose sides give away no more than this is a single point."""
        return ROUNDOFF * float(self.lines.whole[0]) / self.per_second

    def missing(self, reached: float) -> float:
        """The seconds missing to close the box if the lower bound on the left side is `reached`."""
        return (float(self.lines.needed[0]) - reached) / self.per_second

    def proved(self, box: Box, reached: float) -> float:
        """The lower bound on Θ in the box that follows if the left side is at least `reached`."""
        weights = self.relaxation.tables.weights
        seconds = float(box.lower[TIMES] @ weights) + self.relaxation.least_server_seconds
        least = self.lines.per_second * seconds
        return float(self.law.proved(self.value, self.lines, reached=np.array([reached]), least=least)[0])

    def with_slope(self, choice: Choice, box: Box) -> Choice:
        """The choice with the slope at which to split the box, and the seconds that the split would gain.

        The slope is that of the chosen plan, with T₃ to T₆ at the lower corner. If this slope lies outside
        the box, it is the middle of the range. The gain is the excess of the line for this slope alone, which
        is exact, over the excess of the line for the whole range.
        """
        low, high, J = box.lower[SLOPE:], box.upper[SLOPE:], self.relaxation.deepest_cut
        if low == high:
            return choice
        tables = self.relaxation.tables
        server = choice.batch_sizes @ tables.server_seconds[choice.cuts - 1]
        seconds = np.array([float(box.lower[TIMES] @ tables.weights) + server])
        noise = self.law.noise.total(choice.batch_sizes[None], J)
        of_plan = self.law.slope(seconds, noise, J)
        slope = np.where((low < of_plan) & (of_plan < high), of_plan, np.sqrt(low * high))
        exact = self.law.lines(self.value, J, slope, slope)
        gain = (exact.excess(seconds, noise) - self.lines.excess(seconds, noise)) / self.per_second
        return replace(choice, slope=float(slope[0]), slope_loss=max(float(gain[0]), 0.0))


def corners(boxes: list[Box]) -> tuple[Floats, Floats]:
    """The lower and the upper corners of K boxes, (K, 5)."""
    return np.array([box.lower for box in boxes]), np.array([box.upper for box in boxes])


def price_is_to_blame(choice: Choice, given_away: float, missing: float, point: float) -> bool:
    """True if a box stays open because of the price on M, and not because its sides are wide.

    The choice costs `unpaid` seconds more than the lower bound, because of M. If that is less than what is
    missing, the chosen plan itself lies below `needed`, and only narrower sides can close the box. Otherwise
    the price is to blame in two cases: the sides give away little, or a single device that moves to another
    cut is worth more than what is missing (few devices, large layers). In a box that is a single point only
    the price can be to blame.

    In the example of `relaxation.py`, 1.3 are unpaid. With 22 needed, 22 − 21.77 = 0.23 are missing, and a
    device is worth 0.5 · 4 = 2. So the box is split by device.
    """
    if given_away <= point:
        return choice.unpaid > point
    narrow = given_away <= DEVICE_SHARE * missing
    return choice.unpaid >= missing and (narrow or choice.device_worth > missing)


def share_left(box: Box, smaller: Box) -> float:
    """The area over T₃ and T₄ of a smaller box, as a share of that of the box."""
    before, after = (part.upper[STEP_TIMES] - part.lower[STEP_TIMES] for part in (box, smaller))
    return float(np.divide(after, before, out=np.ones(2), where=before > 0).prod())
