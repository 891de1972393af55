"""A price η on the M bits that the edge server exchanges, and the search for the best price.

M = N δ_J − Σ_i δ_{j_i} contains the cuts of all devices (R6, R8). The lower bound of a box counts T₅ and T₆
at their lower ends l₅ and l₆. With rates r₅ = r_{s,f} and r₆ = r_{f,s}, M costs a plan more than that:

    cost(M) = p₅ max(M − r₅ l₅, 0) + p₆ max(M − r₆ l₆, 0),    infinite for M > min(r₅ u₅, r₆ u₆)

where u₅ and u₆ are the upper ends and p = per_second / (r I) is the price of a bit that takes 1/r seconds
every I rounds. cost is convex in M. Its tangents are lines: for every η ≥ 0,

    cost(M) ≥ η M − due(η),        due(η) = max over M ≥ 0 of (η M − cost(M)).

η M is a sum over devices, so a lower bound with η M − due(η) in place of cost(M) is found device by device.

due is a *tariff* of three steps. A step has a number of bits and a width of price; each unit of η within a
step adds the step's bits to due. The steps are (r₅ l₅, width p₅), (r₆ l₆, width p₆) and (min(r₅ u₅, r₆ u₆),
endless), sorted by bits.

Example (that of `relaxation.py`): I = 10, r₅ = r₆ = 1 Mbit/s, T₅ and T₆ from 2 to 3 s, per_second = 1. The
steps are (2 Mbit, width 0.1), (2 Mbit, width 0.1) and (3 Mbit, endless). So due(0.5) = 0.1 · 2 + 0.1 · 2
+ 0.3 · 3 = 1.3. M = 4 Mbit is not allowed, and the tariff says so: η M − due(η) = η − 0.2 grows without end
for η ≥ 0.2.

The lower bound is concave in η: a minimum over plans of lines in η, minus the convex due. Its slope at η is
M − bits_at(η), where M belongs to the choices at η. `Bracket` follows the slope to the best η. In the example
it tries 0, 0.1 and 0.2 (the ends of steps), then 0.3, 0.45 and 0.675 (1.5 times the last). Up to 0.45 the
slope is 4 − 3 = 1 or more; at 0.675 device C changes its cut, M is 0 and the slope is −3. The tangents at
0.45 and 0.675 meet at η = 0.5, which is the best price.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from hasfl.planning.tables import EXCHANGE_TIMES, ROUNDING, CostTables, Ints
from hasfl.theory.rounds import Floats, Lines

# The factor from one trial to the next above the last step of the tariff, while the bound still rises.
# Measured: the planner takes 1.11 times as long with 1.05 and 1.25 times as long with 3
# (benchmarks/planner_search_2-core-x86_64_2026-11-16.md).
UPWARDS = 1.5


@dataclass(frozen=True, slots=True, eq=False)
class Tariff:
    """due(η) for K boxes, as three steps sorted by bits; the head of this file explains the steps."""

    bits: Floats  # (K, 3) rising
    width: Floats  # (K, 3) of price; infinite for the step of the upper corner
    order: Ints  # (K, 3) what each step stands for: 0 is T₅, 1 is T₆, 2 is the upper corner

    @classmethod
    def of(cls, tables: CostTables, box: tuple[Floats, Floats], lines: Lines) -> Self:
        """The steps of K boxes with corners (K, 4)."""
        rates = np.array([tables.server_fed_up_rate, tables.server_fed_down_rate])
        lower, upper = (corner[:, EXCHANGE_TIMES] * rates for corner in box)  # r₅ l₅, r₆ l₆ and r₅ u₅, r₆ u₆
        bits = np.column_stack([lower, upper.min(axis=1) * ROUNDING])
        width = np.column_stack(
            [lines.per_second[:, None] / (rates * tables.interval), np.full(len(bits), np.inf)]
        )
        order = bits.argsort(axis=1, kind="stable")
        return cls(np.take_along_axis(bits, order, axis=1), np.take_along_axis(width, order, axis=1), order)

    def _filled(self, price: Floats) -> Floats:
        """(K, 3) The part of a price that falls into each step: 0.5 is 0.1, 0.1 and 0.3 in the example."""
        start = np.column_stack([np.zeros(len(price)), self.width.cumsum(axis=1)[:, :2]])
        return np.clip(price[:, None] - np.minimum(start, price[:, None]), 0.0, self.width)

    def due(self, price: Floats) -> Floats:
        """(K,) due(η): the sum over the steps of their bits times the part of the price in them."""
        return (self._filled(price) * self.bits).sum(axis=1)

    def unpaid(self, price: Floats, server_bits: Floats) -> Floats:
        """(K,) cost(M) − (η M − due(η)) for M = `server_bits`; infinite if the upper corner forbids M.

        A step with bits m, width w and filled part f contributes w max(M − m, 0) to cost(M) and f (M − m) to
        η M − due(η). The difference is (w − f)(M − m) if M > m, and f (m − M) otherwise. In the example at
        η = 0.5, the plan with M = 0 has 0.1 · 2 + 0.1 · 2 + 0.3 · 3 = 1.3 unpaid.
        """
        filled = self._filled(price)
        over = server_bits[:, None] - self.bits
        unused = np.where(over > 0, self.width - filled, 0.0)
        return (filled * np.maximum(-over, 0.0) + unused * np.maximum(over, 0.0)).sum(axis=1)

    def used(self, price: Floats) -> Floats:
        """(K, 2) The shares, 0 to 1, of the steps of T₅ and T₆ that a price fills."""
        share = np.empty_like(self.width)
        np.put_along_axis(share, self.order, self._filled(price) / self.width, axis=1)
        return share[:, :2]

    def bits_at(self, price: Floats) -> Floats:
        """(K,) The slope of due to the right of a price: the bits of the step in which the price lies."""
        step = (price[:, None] >= self.width.cumsum(axis=1)).sum(axis=1)
        last = self.bits.shape[1] - 1
        return np.take_along_axis(self.bits, np.minimum(step, last)[:, None], axis=1)[:, 0]

    @property
    def ends(self) -> Floats:
        """(K, 4) The prices at which steps begin and end, rising; the endless step counts as empty."""
        finite = np.where(np.isfinite(self.width), self.width, 0.0)
        return np.column_stack([np.zeros(len(finite)), finite.cumsum(axis=1)])


@dataclass(frozen=True, slots=True, eq=False)
class Bracket:
    """For K boxes, two prices with the best price between them, and the lower bound at both.

    The lower bound is concave in the price, so it lies below its tangents at both prices.
    """

    low: Floats  # (K, 3) price, lower bound and its slope > 0; NaN before such a price was tried
    high: Floats  # (K, 3) price, lower bound and its slope ≤ 0; NaN before such a price was tried

    @classmethod
    def open(cls, boxes: int) -> Self:
        """The bracket of K boxes before any price was tried."""
        return cls(np.full((boxes, 3), np.nan), np.full((boxes, 3), np.nan))

    def narrowed(self, price: Floats, value: Floats, slope: Floats) -> "Bracket":
        """The bracket after one more price, with the lower bound and its slope at this price."""
        trial, rises = np.column_stack([price, value, slope]), (slope > 0)[:, None]
        return Bracket(np.where(rises, trial, self.low), np.where(rises, self.high, trial))

    def next_price(self, tariff: Tariff) -> Floats:
        """(K,) The price at which the two tangents meet.

        While one price is missing: the next end of a step, upwards or downwards. Above the last step, UPWARDS
        times the last price.
        """
        (low, low_value, low_slope), (high, high_value, high_slope) = self.low.T, self.high.T
        ends = tariff.ends
        above = np.where(ends > low[:, None], ends, np.inf).min(axis=1)
        above = np.where(np.isinf(above), UPWARDS * low, above)
        below = np.where(ends < high[:, None], ends, 0.0).max(axis=1)
        # low_value + low_slope (η − low) = high_value + high_slope (η − high), solved for η
        with np.errstate(invalid="ignore", divide="ignore"):
            meet = (high_value - low_value + low_slope * low - high_slope * high) / (low_slope - high_slope)
        meet = np.where(np.isfinite(meet), np.clip(meet, low, high), (low + high) / 2)
        return np.where(np.isnan(high), above, np.where(np.isnan(low), below, meet))
