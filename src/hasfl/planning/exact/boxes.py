"""Boxes for (T₃, T₄, T₅, T₆, slope): what a search divides, and the test that closes a box."""

from dataclasses import dataclass

import numpy as np

from hasfl.planning.exact.relaxation import ROUNDOFF, Choice, Relaxation
from hasfl.planning.tables import Bools
from hasfl.theory.rounds import Floats, Lines

# benchmarks/bench_planner.py --constants shows what half and double of these numbers cost.
STEPS = 4  # prices tried for a box
DEVICE_SHARE = 0.5  # devices are split when all sides give away less than this share of what is missing
SLOPE = 4  # the place of the slope among the sides of a box, after T₃ to T₆


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """Lower and upper corner, the price to start from, and the cuts that are excluded inside."""

    lower: Floats  # (5,) T₃, T₄, T₅, T₆, slope
    upper: Floats
    price: float = 0.0
    steps: int = STEPS
    forbidden: Bools | None = None  # (N, J)


@dataclass(frozen=True, slots=True, eq=False)
class ClosingTest:
    """The test that a box must pass to be closed: its line must reach what is needed."""

    value: float  # Θ ≥ value is what is to be proved
    lines: Lines  # of this box alone
    relaxation: Relaxation

    @property
    def per_second(self) -> float:
        """What a second of a round weighs."""
        return float(self.lines.per_second[0])

    @property
    def needed(self) -> float:
        """What counts as reached, up to rounding."""
        return float(self.lines.needed[0] - ROUNDOFF * self.lines.whole[0])

    @property
    def point(self) -> float:
        """Seconds below which a box is a point."""
        return ROUNDOFF * float(self.lines.whole[0]) / self.per_second


def corners(boxes: list[Box]) -> tuple[Floats, Floats]:
    """The lower and the upper corners of K boxes, (K, 5)."""
    return np.array([box.lower for box in boxes]), np.array([box.upper for box in boxes])


def price_is_to_blame(choice: Choice, given_away: float, missing: float, point: float) -> bool:
    """Whether a box stays open because of the price on M rather than because its sides are wide.

    The choice costs `unpaid` more than the bound. If that is less than what is missing, narrower sides are
    needed in any case. If not, the price is to blame where the sides give away little, or where one device
    that moves to another cut makes up for more than what is missing: few devices, large layers.
    """
    if given_away <= point:
        return choice.unpaid > point
    narrow = given_away <= DEVICE_SHARE * missing
    return choice.unpaid >= missing and (narrow or choice.device_worth > missing)


def share_left(box: Box, smaller: Box) -> float:
    """The share of the area over T₃ and T₄ that is left of a box."""
    before, after = (each.upper[:2] - each.lower[:2] for each in (box, smaller))
    return float(np.divide(after, before, out=np.ones(2), where=before > 0).prod())
