"""A lower bound on the line of a box, in which every device chooses its own cut and batch size.

A line (`theory/rounds.py`) proves Θ ≥ value for all plans in a box if, for each of these plans,

    per_second · (T₃ + T₄ + (T₅ + T₆)/I + Σ_i b_i C_{j_i}) + per_noise · Σ_i n(b_i) ≥ needed.

This file computes a lower bound on the left side over all plans with deepest cut J and with T₃ to T₆ in a
box. The lower bound comes in three steps, shown here for three devices and two layers, so J = 2.

**Step 1: limits.** T₃ to T₆ on the left side count at the lower corner of the box. As limits (R3, R4, R5, R7)
they count at the upper corner: device i takes at most b = min(T₃/up_ij, T₄/down_ij) samples at cut j, and at
most as many as fit into memory (C4). Cut j is possible if its sub-model is sent within T₅ and T₆. In the
example a sample takes the same seconds up and down, and the box is T₃, T₄ from 4 to 6 s and T₅, T₆ from
2 to 3 s, with I = 10:

    seconds per sample     A  B  C        limit at T₃, T₄ ≤ 6     A  B  C
    cut 1                  1  2  3        cut 1                   6  3  2
    cut 2                  2  3  6        cut 2                   3  2  1

**Step 2: devices on their own.** What remains is Σ_i (b x_j + y n(b)) with x_j = per_second · C_j and
y = per_noise. No term contains two devices, so each device takes the cheapest (j, b). The cost of a fixed cut
is convex in b. So the best b is the smaller of the limit and of `best_batch`, which is the same for all
devices. With x = (1, 0), y = 8 and n(b) = 1/b, `best_batch` is 3 at cut 1 and infinite at cut 2:

    b                      A  B  C        b x_j + 8/b             A     B     C
    cut 1                  3  3  2        cut 1                   5.67  5.67  6*
    cut 2                  3  2  1        cut 2                   2.67* 4*    8         * cheapest

The sum of the cheapest costs is 12.67. With per_second = 1 the left side is at least
4 + 4 + (2 + 2)/10 + 12.67 = 21.07.

**Step 3: a price on M.** One term still contains all devices: the edge server exchanges
M = N δ_J − Σ_i δ_{j_i} bits, and T₅ ≥ M/r_{s,f}, T₆ ≥ M/r_{f,s} (R6, R8). In the example δ = (1, 5) Mbit and
both rates are 1 Mbit/s. The choices above have M = 3 · 5 − (5 + 5 + 1) = 4 Mbit, which takes 4 s, while the
box allows 3 s. With a price η per bit of M the devices choose on their own again: device i minimises
b x_j + y n(b) − η δ_j. Beyond T₃ to T₆ at the lower corner, the left side is then at least

    Σ_i min_{j,b} (b x_j + y n(b) − η δ_j) + η N δ_J − due(η)      for every η ≥ 0                (price)

where due(η) is the most by which η M can exceed the cost of M beyond the lower corner (`Tariff`). At
η = 0.5 per Mbit, due is 1.3, and device C costs the same at both cuts. The sum is 12.67 + 0.5 · 4 − 1.3 =
13.37, so the left side is at least 8.4 + 13.37 = 21.77. No other price gives more. The best choices with
M ≤ 3 Mbit are cut 2 for all: they cost 2.67 + 4 + 8 = 14.67, which is 1.3 more than the lower bound. No price
removes this difference. To close such a box, the search splits it by device: C takes cut 1 in one half and
cut 2 in the other.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from hasfl.planning.feasibility import AllowedPlans
from hasfl.planning.tables import EXCHANGE_TIMES, ROUNDING, T3, T4, T5, T6, Bools, CostTables, Ints
from hasfl.theory.rounds import BatchNoise, Floats, Lines

# Relative rounding error of a line, over `Lines.whole`. A bound this close to `needed` counts as reached, and
# a box narrower than this counts as a single point. Floating-point numbers have 16 digits, and sums over up
# to 1e5 devices lose a few of them.
ROUNDOFF = 1e-12
# The factor from one price to the next above the last step of the tariff, while the bound still rises.
# Measured with `python -m benchmarks.bench_planner --constants`: the planner takes 1.11 times as long with
# 1.05 and 1.25 times as long with 3 (benchmarks/planner_search_2-core-x86_64_2026-11-16.md).
UPWARDS = 1.5


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The cuts and batch sizes that the devices chose in one box."""

    cuts: Ints  # (N,)
    batch_sizes: Floats  # (N,)
    price: float  # η, the price of a bit of M
    unpriced: Floats  # (4,) the shares of T₃ to T₆ that count at the lower corner; see `Choices`
    unpaid: float  # seconds that these choices cost above the lower bound, because of M; 0 if they attain it
    device_worth: float  # seconds: η times the most bits by which one device can change M
    slope: float = 1.0  # the slope at which to split the range of slopes
    slope_loss: float = 0.0  # seconds that the line of the whole range gives away at `slope`


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """The choices of all devices in each of K boxes, and the lower bounds."""

    least: Floats  # (K,) the sum (price) of the head of this file at the best price; infinite without a plan
    price: Floats  # (K,) η, the best price that was found
    cuts: Ints  # (K, N)
    batch_sizes: Floats  # (K, N)
    unpriced: Floats  # (K, 4) the shares of T₃ to T₆ that count at the lower corner: 1 minus the priced share
    unpaid: Floats  # (K,) the cost of these choices above `least`, because of M; infinite if M is too large
    most_bits: float  # δ_J − δ_1, the most bits by which one device can change M

    def of(self, k: int, per_second: float) -> Choice:
        """The choice in box k; costs are divided by `per_second`, which turns them into seconds."""
        return Choice(
            cuts=self.cuts[k],
            batch_sizes=self.batch_sizes[k],
            price=float(self.price[k]),
            unpriced=self.unpriced[k],
            unpaid=float(self.unpaid[k]) / per_second,
            device_worth=float(self.price[k]) * self.most_bits / per_second,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """Computes the lower bounds for one deepest cut J, as the head of this file explains them."""

    tables: CostTables
    allowed: AllowedPlans
    noise: BatchNoise  # n(b)
    deepest_cut: int  # J

    @property
    def least_batch(self) -> Floats:
        """(N,) The smallest possible batch size of each device."""
        return self.allowed.least(self.tables, self.deepest_cut)

    @property
    def least_server_seconds(self) -> float:
        """The edge server's seconds if every device takes its smallest batch at the deepest cut."""
        least = self.least_batch.sum()
        return float(least * self.tables.server_seconds[self.deepest_cut - 1])

    def root(self) -> tuple[Floats, Floats] | None:
        """The corners (4,) of a box with T₃ to T₆ of every plan with deepest cut J; None without a plan.

        Lower end of T₃: each device takes its cheapest cut with its smallest batch, and T₃ waits for the
        slowest device. Upper end: the most seconds of any device at any cut. The same holds for T₄ to T₆.
        """
        tables, J, smallest = self.tables, self.deepest_cut, self.least_batch[:, None]
        largest = self.allowed.room(tables, J)
        fits = largest > 0
        if not fits.any(axis=1).all() or not fits[:, J - 1].any():
            return None
        parts = (  # seconds, then the smallest and the largest factor: a batch size, or 1 for a sub-model
            (tables.up_seconds[:, :J], smallest, largest),  # R3
            (tables.down_seconds[:, :J], smallest, largest),  # R4
            (tables.submodel_bits[:J] / tables.fed_up_rate[:, None], 1.0, 1.0),  # R5
            (tables.submodel_bits[:J] / tables.fed_down_rate[:, None], 1.0, 1.0),  # R7
        )
        lower = np.array([np.where(fits, cost * few, np.inf).min(axis=1).max() for cost, few, _ in parts])
        upper = np.array([np.where(fits, cost * many, 0.0).max() for cost, _, many in parts])
        # Some device holds J layers. So T₅ and T₆ are at least the seconds of the fastest device that can.
        for k in (T5, T6):
            lower[k] = max(lower[k], parts[k][0][fits[:, J - 1], J - 1].min())
        middle = len(smallest) * (tables.submodel_bits[J - 1] - tables.submodel_bits[0])  # the largest M
        upper[EXCHANGE_TIMES] = np.maximum(upper[EXCHANGE_TIMES], middle / tables.server_fed_rates)  # R6, R8
        return lower, upper

    def choose(
        self, box: tuple[Floats, Floats], lines: Lines, price: Floats, *, steps: int, forbidden: Bools | None
    ) -> Choices:
        """The choices in K boxes with corners (K, 4), with the best price that `steps` trials find.

        The first trial is `price` (K,). (price) at the head of this file is concave in η; its slope at η is
        M − bits_at(η), with M of the choices at η (`Tariff`). `forbidden` (K, N, J) excludes single cuts.
        """
        cost, batch = self._costs(box[1], lines)
        if forbidden is not None:
            cost[forbidden] = np.inf
        tariff = Tariff.of(self.tables, box, lines)
        least, index, bits = self._at_price(cost, price, tariff)
        best, trial, value, bracket = price, price, least, Bracket.open(len(price))
        for _ in range(steps):
            slope = self.server_bits(bits) - tariff.bits_at(trial)
            bracket = bracket.narrowed(trial, value, slope)
            following = bracket.next_price(tariff)
            # A falling bound at η = 0 has its maximum there, because prices are not negative.
            active = np.isfinite(least) & (following != trial) & ((slope > 0) | (trial > 0))
            if not active.any():
                break
            trial = np.where(active, following, trial)
            value, chosen, bits = self._at_price(cost, trial, tariff)
            better = value > least
            least, best = np.where(better, value, least), np.where(better, trial, best)
            index = np.where(better[:, None], chosen, index)
        batch_sizes = np.take_along_axis(batch, index[:, :, None], axis=2)[:, :, 0]
        no_price = np.ones((len(best), 2))  # T₃ and T₄
        unpriced = np.column_stack([no_price, 1 - tariff.used(best)])
        server_bits = self.server_bits(self.tables.submodel_bits[index].sum(axis=1))
        unpaid = tariff.unpaid(best, server_bits)
        most_bits = float(self.tables.submodel_bits[self.deepest_cut - 1] - self.tables.submodel_bits[0])
        return Choices(least, best, index + 1, batch_sizes, unpriced, unpaid, most_bits)

    def server_bits(self, bits: Floats) -> Floats:
        """The bits M = N δ_J − Σ_i δ_{j_i} of the middle parts, where `bits` = Σ_i δ_{j_i}."""
        return len(self.tables.fed_up_rate) * self.tables.submodel_bits[self.deepest_cut - 1] - bits

    def _at_price(self, cost: Floats, price: Floats, tariff: "Tariff") -> tuple[Floats, Ints, Floats]:
        """For K boxes at given prices: the sum (price), the index of each device's cut, and Σ_i δ_{j_i}."""
        bits = self.tables.submodel_bits[: self.deepest_cut]
        priced = cost - price[:, None, None] * bits if price.any() else cost
        index = priced.argmin(axis=2)
        least = np.take_along_axis(priced, index[:, :, None], axis=2)[:, :, 0].sum(axis=1)
        all_bits = self.server_bits(np.zeros(1))  # N δ_J
        return least + price * all_bits - tariff.due(price), index, bits[index].sum(axis=1)

    def marginal_device(
        self, upper: Floats, lines: Lines, choice: Choice, forbidden: Bools | None
    ) -> tuple[int, int] | None:
        """The device that a small change of the price moves first to another cut.

        Of all devices, its second cheapest cut costs least above its choice, at the price of the choice.
        Returns the device and the smaller of the two cuts; None if no device has a second possible cut. In
        the example at the head of this file the device is C, and the cut is 1.
        """
        cost, _ = self._costs(upper[None], lines)
        priced = cost[0] - choice.price * self.tables.submodel_bits[: self.deepest_cut]
        if forbidden is not None:
            priced[forbidden] = np.inf
        chosen = choice.cuts[:, None] - 1
        cheapest = np.take_along_axis(priced, chosen, axis=1)[:, 0].copy()
        np.put_along_axis(priced, chosen, np.inf, axis=1)
        rise = priced.min(axis=1) - cheapest
        i = int(rise.argmin())
        return (i, min(int(choice.cuts[i]), int(priced[i].argmin()) + 1)) if np.isfinite(rise[i]) else None

    def _costs(self, upper: Floats, lines: Lines) -> tuple[Floats, Floats]:
        """(K, N, J) The costs b x_j + y n(b) and the best b, step 2; impossible cuts cost infinitely much."""
        J, smallest = self.deepest_cut, self.least_batch[:, None]
        limit = self._limits(upper)
        x = lines.per_second[:, None] * self.tables.server_seconds[:J]
        y = lines.per_noise[:, None]
        batch = np.minimum(limit, self.noise.best_batch(x, y, J)[:, None, :])
        np.clip(batch, smallest, self.allowed.largest_batch[:, None], out=batch)
        cost = batch * x[:, None, :]
        cost += y[:, :, None] * self.noise.each(batch, J)
        cost[(limit < smallest) | self.cut_excluded(upper)] = np.inf
        return cost, batch

    def _limits(self, upper: Floats) -> Floats:
        """(K, N, J) The largest b by T₃ (R3), T₄ (R4) and memory (C4), step 1."""
        tables, J = self.tables, self.deepest_cut
        limit = upper[:, T3, None, None] * tables.up_rate[:, :J]
        np.minimum(limit, upper[:, T4, None, None] * tables.down_rate[:, :J], out=limit)
        limit *= ROUNDING
        np.minimum(limit, tables.largest_batch[:, :J], out=limit)
        np.floor(limit, out=limit)
        return limit

    def least_noise(self, upper: Floats) -> Floats:
        """(K,) A lower bound on S = Σ_i n(b_i) in K boxes: every device takes its largest batch."""
        most = np.where(self.allowed.cuts[:, : self.deepest_cut], self._limits(upper), 0.0).max(axis=2)
        most = np.clip(most, self.least_batch, self.allowed.largest_batch)
        return self.noise.total(most, self.deepest_cut)

    def cut_excluded(self, upper: Floats) -> Bools:
        """(K, N, J) True where a sub-model takes longer than T₅ or T₆ (R5, R7) or a cut is not allowed."""
        tables, J = self.tables, self.deepest_cut
        up, down = upper[:, T5, None] * tables.fed_up_rate, upper[:, T6, None] * tables.fed_down_rate
        most_bits = np.minimum(up, down) * ROUNDING
        return (tables.submodel_bits[:J] > most_bits[:, :, None]) | ~self.allowed.cuts[:, :J]


# ── the price on M ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, eq=False)
class Tariff:
    """The price η of the M bits that the edge server exchanges, in K boxes.

    M = N δ_J − Σ_i δ_{j_i} contains the cuts of all devices (R6, R8). The lower bound of a box counts T₅ and
    T₆ at their lower ends l₅ and l₆. With rates r₅ = r_{s,f} and r₆ = r_{f,s}, M costs a plan more than that:

        cost(M) = p₅ max(M − r₅ l₅, 0) + p₆ max(M − r₆ l₆, 0),    infinite for M > min(r₅ u₅, r₆ u₆)

    where u₅ and u₆ are the upper ends and p = per_second / (r I) is the price of a bit that takes 1/r seconds
    every I rounds. cost is convex in M. Its tangents are lines: for every η ≥ 0,

        cost(M) ≥ η M − due(η),        due(η) = max over M ≥ 0 of (η M − cost(M)).

    η M is a sum over devices, so a lower bound with η M − due(η) in place of cost(M) is found device by
    device.

    due is a *tariff* of three steps. A step has a number of bits and a width of price; each unit of η within
    a step adds the step's bits to due. The steps are (r₅ l₅, width p₅), (r₆ l₆, width p₆) and (min(r₅ u₅, r₆
    u₆), endless), sorted by bits.

    Example (that of the head of this file): I = 10, r₅ = r₆ = 1 Mbit/s, T₅ and T₆ from 2 to 3 s, per_second =
    1. The steps are (2 Mbit, width 0.1), (2 Mbit, width 0.1) and (3 Mbit, endless). So due(0.5) = 0.1 · 2 +
    0.1 · 2 + 0.3 · 3 = 1.3. M = 4 Mbit is not allowed, and the tariff shows it: η M − due(η) = η − 0.2 grows
    without end for η ≥ 0.2.
    """

    bits: Floats  # (K, 3) bits of each step, rising
    width: Floats  # (K, 3) width of each step in price; infinite for the step of the upper corner
    order: Ints  # (K, 3) what each step stands for: 0 is T₅, 1 is T₆, 2 is the upper corner

    @classmethod
    def of(cls, tables: CostTables, box: tuple[Floats, Floats], lines: Lines) -> Self:
        """The steps of K boxes with corners (K, 4)."""
        rates = tables.server_fed_rates
        lower, upper = (corner[:, EXCHANGE_TIMES] * rates for corner in box)  # r₅ l₅, r₆ l₆ and r₅ u₅, r₆ u₆
        bits = np.column_stack([lower, upper.min(axis=1) * ROUNDING])
        width = np.column_stack(
            [lines.per_second[:, None] / (rates * tables.interval), np.full(len(bits), np.inf)]
        )
        order = bits.argsort(axis=1, kind="stable")
        return cls(np.take_along_axis(bits, order, axis=1), np.take_along_axis(width, order, axis=1), order)

    def _filled(self, price: Floats) -> Floats:
        """(K, 3) The part of a price that falls into each step: 0.1, 0.1 and 0.3 of 0.5 in the example."""
        start = np.column_stack([np.zeros(len(price)), self.width.cumsum(axis=1)[:, :2]])
        return np.clip(price[:, None] - np.minimum(start, price[:, None]), 0.0, self.width)

    def due(self, price: Floats) -> Floats:
        """(K,) The amount due(η): the sum over steps of bits times the part of the price in the step."""
        return (self._filled(price) * self.bits).sum(axis=1)

    def unpaid(self, price: Floats, server_bits: Floats) -> Floats:
        """(K,) The unpaid cost(M) − (η M − due(η)) of M = `server_bits`; infinite if M is not allowed.

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

    The lower bound is concave in η, a minimum over plans of lines in η, minus the convex due, so it lies
    below its tangents at both prices. Its slope at η is M − bits_at(η), where M belongs to the choices at η.
    The bracket follows the slope to the best η. In the example it tries 0, 0.1 and 0.2 (the ends of steps),
    then 0.3, 0.45 and 0.675 (1.5 times the last). Up to 0.45 the slope is 4 − 3 = 1 or more; at 0.675 device
    C changes its cut, M is 0 and the slope is −3. The tangents at 0.45 and 0.675 meet at η = 0.5, which is
    the best price.
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

        While one of the two prices is missing, the next price is the next end of a step, upwards or
        downwards. Above the last step it is UPWARDS times the last price.
        """
        (low, low_value, low_slope), (high, high_value, high_slope) = self.low.T, self.high.T
        ends = tariff.ends
        above = np.where(ends > low[:, None], ends, np.inf).min(axis=1)
        above = np.where(np.isinf(above), UPWARDS * low, above)
        below = np.where(ends < high[:, None], ends, 0.0).max(axis=1)
        # The solution of low_value + low_slope (η − low) = high_value + high_slope (η − high).
        with np.errstate(invalid="ignore", divide="ignore"):
            meet = (high_value - low_value + low_slope * low - high_slope * high) / (low_slope - high_slope)
        meet = np.where(np.isfinite(meet), np.clip(meet, low, high), (low + high) / 2)
        return np.where(np.isnan(high), above, np.where(np.isnan(low), below, meet))
