"""The price on what the edge server exchanges, and the search for the best price.

The M = N δ_J − Σ_i δ_{j_i} bits that the edge server exchanges couple the devices (R6, R8). A price η on M
uncouples them. Up to 1/r_{s,f} a bit, the price stands for the time that M takes beyond the box's lower end
of T₅, which every plan pays; likewise T₆; beyond both, it stands for M exceeding what the upper end allows,
which no plan may.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from hasfl.planning.tables import ROUNDING, CostTables, Ints
from hasfl.theory.rounds import Floats, Lines

UPWARDS = 1.5  # how prices grow while the best one has not been passed


@dataclass(frozen=True, slots=True, eq=False)
class Tariff:
    """What a price on M is worth: three steps of bits, each up to its own price, cheapest first.

    A plan with M bits to exchange pays at least η M − due(η) beyond the lower corner of its box.
    """

    bits: Floats  # (K, 3) rising
    width: Floats  # (K, 3) of price; the step for the upper corner has no end
    order: Ints  # (K, 3) which of T₅, T₆ and the upper corner each step stands for

    @classmethod
    def of(cls, tables: CostTables, box: tuple[Floats, Floats], lines: Lines) -> Self:
        """The steps for the two lower ends and for the upper corner."""
        rates = np.array([tables.server_fed_up_rate, tables.server_fed_down_rate])
        lower, upper = (corner[:, 2:4] * rates for corner in box)
        bits = np.column_stack([lower, upper.min(axis=1) * ROUNDING])
        width = np.column_stack(
            [lines.per_second[:, None] / (rates * tables.interval), np.full(len(bits), np.inf)]
        )
        order = bits.argsort(axis=1, kind="stable")
        return cls(np.take_along_axis(bits, order, axis=1), np.take_along_axis(width, order, axis=1), order)

    def _filled(self, price: Floats) -> Floats:
        """How much of a price falls into each step."""
        start = np.column_stack([np.zeros(len(price)), self.width.cumsum(axis=1)[:, :2]])
        return np.clip(price[:, None] - np.minimum(start, price[:, None]), 0.0, self.width)

    def due(self, price: Floats) -> Floats:
        """Σ over the steps of their bits times how much of the price falls into them."""
        return (self._filled(price) * self.bits).sum(axis=1)

    def unpaid(self, price: Floats, server_bits: Floats) -> Floats:
        """What M bits cost at least, minus what the price makes of them; infinite if M is not allowed."""
        filled = self._filled(price)
        over = server_bits[:, None] - self.bits
        unused = np.where(over > 0, self.width - filled, 0.0)
        return (filled * np.maximum(-over, 0.0) + unused * np.maximum(over, 0.0)).sum(axis=1)

    def used(self, price: Floats) -> Floats:
        """(K, 2) how much of the steps for T₅ and T₆ a price uses, 0 to 1."""
        share = np.empty_like(self.width)
        np.put_along_axis(share, self.order, self._filled(price) / self.width, axis=1)
        return share[:, :2]

    def bits_at(self, price: Floats) -> Floats:
        """The slope of `due` at a price: the M at which a higher price stops to pay."""
        step = (price[:, None] >= self.width.cumsum(axis=1)).sum(axis=1)
        return np.take_along_axis(self.bits, np.minimum(step, 2)[:, None], axis=1)[:, 0]

    @property
    def ends(self) -> Floats:
        """(K, 4) The prices at which steps begin and end, rising; the last one is finite."""
        finite = np.where(np.isfinite(self.width), self.width, 0.0)
        return np.column_stack([np.zeros(len(finite)), finite.cumsum(axis=1)])


@dataclass(frozen=True, slots=True, eq=False)
class Bracket:
    """The two prices that enclose the best one, with the value and the slope of the bound at both.

    The bound is concave in the price, so it lies below its tangents at both ends.
    """

    low: Floats  # (K, 3) price, value, slope > 0; NaN while there is none
    high: Floats  # (K, 3) price, value, slope ≤ 0; NaN while there is none

    @classmethod
    def open(cls, boxes: int) -> Self:
        """Before any price was tried."""
        return cls(np.full((boxes, 3), np.nan), np.full((boxes, 3), np.nan))

    def narrowed(self, price: Floats, value: Floats, slope: Floats) -> "Bracket":
        """With one more price tried."""
        tried, rises = np.column_stack([price, value, slope]), (slope > 0)[:, None]
        return Bracket(np.where(rises, tried, self.low), np.where(rises, self.high, tried))

    def next_price(self, tariff: Tariff) -> Floats:
        """Where the tangents meet; while one end is missing, the next end of a step of the tariff.

        Above the last step prices grow by UPWARDS.
        """
        (low, low_value, low_slope), (high, high_value, high_slope) = self.low.T, self.high.T
        ends = tariff.ends
        above = np.where(ends > low[:, None], ends, np.inf).min(axis=1)
        above = np.where(np.isinf(above), UPWARDS * low, above)
        below = np.where(ends < high[:, None], ends, 0.0).max(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            meet = (high_value - low_value + low_slope * low - high_slope * high) / (low_slope - high_slope)
        meet = np.where(np.isfinite(meet), np.clip(meet, low, high), (low + high) / 2)
        return np.where(np.isnan(high), above, np.where(np.isnan(low), below, meet))
