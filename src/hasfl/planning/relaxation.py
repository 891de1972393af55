"""The least that a round can cost when its parts T₃ to T₆ are boxed: device by device, in closed form.

Fix the deepest cut J and a box for the four maxima of a round,

    T₃ slowest up · T₄ slowest down · T₅ slowest sub-model upload · T₆ slowest sub-model download.

With the limits at the box's upper corner and the cost of the T themselves at its lower corner, devices no
longer see each other: device i takes the (j, b) that minimises b·x_j + y/b, where b is limited by memory,
T₃ and T₄, and j by T₅ and T₆. For a fixed j that is convex in b, so the best whole b is the smaller of the
limit and of the best b without limit, which is the same for all devices.

One thing still couples them: the M = N δ_J − Σ_i δ_{j_i} bits that the server must exchange (R6, R8). A
price η on M keeps the problem separable and the result a lower bound, whatever η is. Up to 1/r_{s,f} a
bit, the price stands for the time that M takes beyond the box's lower end of T₅, which every plan pays;
likewise T₆; beyond both, it stands for M exceeding what the upper end allows, which no plan may.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hasfl.planning.feasibility import Asked
from hasfl.planning.tables import CostTables
from hasfl.theory.rounds import Floats, Lines

ROUNDING = 1 + 1e-12  # limits are loosened by this much, so that rounding never excludes a plan
ROUNDOFF = 1e-12  # of a round: a bound this close counts as reached, a box smaller than this is a point
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What was chosen in one box."""

    cuts: Ints  # (N,)
    batch_sizes: Floats  # (N,)
    price: float
    unpriced: Floats  # (4,)
    price_gap: float  # seconds
    slope: float = 1.0
    slope_loss: float = 0.0  # seconds that the line for a range of slopes gives away at this one


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """For each of K boxes, every device's choice and what they add up to."""

    least: Floats  # (K,) Σ_i (b x + y/b) at the best price found: a lower bound, infinite if impossible
    price: Floats  # (K,) η
    cuts: Ints  # (K, N), counts
    batch_sizes: Floats  # (K, N)
    unpriced: Floats  # (K, 4) the share of T₃ to T₆ that the bound counts at the lower corner
    price_gap: Floats  # (K,) what the price on M gives away against these choices

    def of(self, k: int, per_second: float) -> Choice:
        """The choice in one box, its price gap in seconds."""
        return Choice(
            cuts=self.cuts[k],
            batch_sizes=self.batch_sizes[k],
            price=float(self.price[k]),
            unpriced=self.unpriced[k],
            price_gap=float(self.price_gap[k]) / per_second,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """The separable problem of one deepest cut J."""

    tables: CostTables
    asked: Asked
    deepest_cut: int

    def root(self) -> tuple[Floats, Floats] | None:
        """The smallest box that holds every plan with deepest cut J; None if there is no such plan."""
        tables, J, smallest = self.tables, self.deepest_cut, self.asked.smallest_batch[:, None]
        largest = self.asked.room(tables)[:, :J]
        fits = largest > 0
        if not fits.any(axis=1).all() or not fits[:, J - 1].any():
            return None
        parts = (
            (tables.up_seconds[:, :J], smallest, largest),
            (tables.down_seconds[:, :J], smallest, largest),
            (tables.submodel_bits[:J] / tables.fed_up_rate[:, None], 1.0, 1.0),
            (tables.submodel_bits[:J] / tables.fed_down_rate[:, None], 1.0, 1.0),
        )
        lower = np.array([np.where(fits, cost * few, np.inf).min(axis=1).max() for cost, few, _ in parts])
        upper = np.array([np.where(fits, cost * many, 0.0).max() for cost, _, many in parts])
        for k in (2, 3):  # some device holds J layers
            lower[k] = max(lower[k], parts[k][0][fits[:, J - 1], J - 1].min())
        middle = len(smallest) * (tables.submodel_bits[J - 1] - tables.submodel_bits[0])
        upper[2:] = np.maximum(upper[2:], middle / self._server_rates())
        return lower, upper

    def choose(
        self, box: tuple[Floats, Floats], lines: Lines, price: Floats, *, steps: int, forbidden: Bools | None
    ) -> Choices:
        """Choose for K boxes with corners (K, 4), each from its price on.

        `steps` more prices are tried, to raise the bound; `forbidden` (K, N, J) excludes single cuts.
        """
        cost, batch = self._costs(box[1], lines)
        if forbidden is not None:
            cost[forbidden] = np.inf
        tariff = Tariff.of(self.tables, box, lines)
        least, index, bits = self._at_price(cost, price, tariff)
        best, low, high, trial = price, np.zeros_like(price), np.full_like(price, np.inf), price
        for step in range(steps):
            too_few = self._server_bits(bits) > tariff.bits_at(trial)
            active = np.isfinite(least) & (too_few | (trial > 0)) & (high > low)
            if not active.any():
                break
            low, high = np.where(too_few, trial, low), np.where(too_few, high, trial)
            trial = np.where(active, tariff.next_price(low, high, step), trial)
            value, chosen, bits = self._at_price(cost, trial, tariff)
            better = value > least
            least, best = np.where(better, value, least), np.where(better, trial, best)
            index = np.where(better[:, None], chosen, index)
        batch_sizes = np.take_along_axis(batch, index[:, :, None], axis=2)[:, :, 0]
        unpriced = np.column_stack([np.ones((len(best), 2)), 1 - tariff.used(best)])
        server_bits = self._server_bits(self.tables.submodel_bits[index].sum(axis=1))
        return Choices(least, best, index + 1, batch_sizes, unpriced, tariff.gap(best, server_bits))

    def _server_bits(self, bits: Floats) -> Floats:
        """M, if the devices hold `bits`."""
        return len(self.tables.fed_up_rate) * self.tables.submodel_bits[self.deepest_cut - 1] - bits

    def _at_price(self, cost: Floats, price: Floats, tariff: "Tariff") -> tuple[Floats, Ints, Floats]:
        """The bound at a price, the choices, and the bits that the devices hold under them."""
        bits = self.tables.submodel_bits[: self.deepest_cut]
        priced = cost - price[:, None, None] * bits if price.any() else cost
        index = priced.argmin(axis=2)
        least = np.take_along_axis(priced, index[:, :, None], axis=2)[:, :, 0].sum(axis=1)
        all_bits = self._server_bits(np.zeros(1))
        return least + price * all_bits - tariff.due(price), index, bits[index].sum(axis=1)

    def marginal_device(
        self, upper: Floats, lines: Lines, choice: Choice, forbidden: Bools | None
    ) -> tuple[int, int] | None:
        """The device that another price would move first, and the smaller of the two cuts it moves between.

        None if no device has another cut to go to.
        """
        cost, _ = self._costs(upper[None], lines)
        priced = cost[0] - choice.price * self.tables.submodel_bits[: self.deepest_cut]
        if forbidden is not None:
            priced[forbidden] = np.inf
        chosen = choice.cuts[:, None] - 1
        now = np.take_along_axis(priced, chosen, axis=1)[:, 0].copy()
        np.put_along_axis(priced, chosen, np.inf, axis=1)
        rise = priced.min(axis=1) - now
        i = int(rise.argmin())
        return (i, min(int(choice.cuts[i]), int(priced[i].argmin()) + 1)) if np.isfinite(rise[i]) else None

    def _costs(self, upper: Floats, lines: Lines) -> tuple[Floats, Floats]:
        """b x_j + y/b and b for every box, device and cut; infinite where the cut is not possible."""
        tables, J, asked = self.tables, self.deepest_cut, self.asked
        limit = self._limits(upper)
        x = lines.per_second[:, None] * tables.server_seconds[:J]
        y = lines.per_inverse[:, None]
        batch = np.minimum(limit, best_batch(x, y)[:, None, :])
        np.clip(batch, asked.smallest_batch[:, None], asked.largest_batch[:, None], out=batch)
        cost = batch * x[:, None, :]
        cost += y[:, :, None] / batch
        cost[(limit < asked.smallest_batch[:, None]) | self._cut_excluded(upper)] = np.inf
        return cost, batch

    def _limits(self, upper: Floats) -> Floats:
        """The largest b for every box, device and cut, by T₃, T₄ and memory."""
        tables, J = self.tables, self.deepest_cut
        limit = upper[:, 0, None, None] * tables.up_rate[:, :J]
        np.minimum(limit, upper[:, 1, None, None] * tables.down_rate[:, :J], out=limit)
        limit *= ROUNDING
        np.minimum(limit, tables.largest_batch[:, :J], out=limit)
        np.floor(limit, out=limit)
        return limit

    def least_inverse(self, upper: Floats) -> Floats:
        """The least Σ 1/b in K boxes with these upper corners, (K,)."""
        most = np.where(self.asked.cuts[:, : self.deepest_cut], self._limits(upper), 0.0).max(axis=2)
        most = np.clip(most, self.asked.smallest_batch, self.asked.largest_batch)
        return (1 / most).sum(axis=1)

    def _cut_excluded(self, upper: Floats) -> Bools:
        """Cuts whose sub-model travels longer than T₅ or T₆, or that nobody asked for."""
        tables, J = self.tables, self.deepest_cut
        up, down = upper[:, 2, None] * tables.fed_up_rate, upper[:, 3, None] * tables.fed_down_rate
        most_bits = np.minimum(up, down) * ROUNDING
        return (tables.submodel_bits[:J] > most_bits[:, :, None]) | ~self.asked.cuts[:, :J]

    def _server_rates(self) -> Floats:
        return np.array([self.tables.server_fed_up_rate, self.tables.server_fed_down_rate])


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

    def gap(self, price: Floats, server_bits: Floats) -> Floats:
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

    def next_price(self, low: Floats, high: Floats, step: int) -> Floats:
        """The price to try next.

        First the ends of the steps, where the best price often lies. Then away from the last one in growing
        strides while a side of the bracket is open, and the middle of it once both are closed.
        """
        ends = np.where(np.isfinite(self.width), self.width, 0.0).cumsum(axis=1)
        stride = 1.2 ** (step + 1)
        upwards = np.maximum(low, ends[:, 2]) * stride
        inwards = (np.where(low > 0, low, high / stride**2) + high) / 2
        end = ends[:, min(step, 1)]
        at_end = (low < end) & (end < high) & (step < 2)
        return np.where(at_end, end, np.where(np.isinf(high), upwards, inwards))


def best_batch(x: Floats, y: Floats) -> Floats:
    """The whole b ≥ 1 that minimises b·x + y/b: the first for which b (b + 1) x ≥ y."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(y > 0, y / x, 0.0)
    return np.maximum(np.ceil(np.sqrt(0.25 + ratio) - 0.5), 1.0)
