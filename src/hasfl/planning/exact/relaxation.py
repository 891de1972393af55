"""The least that a round can cost when its parts T₃ to T₆ are boxed: device by device, in closed form.

Fix the deepest cut J and a box for the four maxima of a round,

    T₃ slowest up · T₄ slowest down · T₅ slowest sub-model upload · T₆ slowest sub-model download.

With the limits at the box's upper corner and the cost of the T themselves at its lower corner, devices no
longer see each other: device i takes the (j, b) that minimises b·x_j + y·n(b), where n(b) is the noise of a
batch, b is limited by memory, T₃ and T₄, and j by T₅ and T₆. For a fixed j that is convex in b, so the best
whole b is the smaller of the limit and of the best b without limit, which is the same for all devices.

One thing still couples them: the M = N δ_J − Σ_i δ_{j_i} bits that the server must exchange (R6, R8). A
price η on M keeps the problem separable and the result a lower bound, whatever η is (`tariff.py`).
"""

from dataclasses import dataclass

import numpy as np

from hasfl.planning.exact.tariff import Bracket, Tariff
from hasfl.planning.feasibility import Asked
from hasfl.planning.tables import ROUNDING, Bools, CostTables, Ints
from hasfl.theory.rounds import BatchNoise, Floats, Lines

ROUNDOFF = 1e-12  # of both sides of a line: a bound this close counts as reached, a smaller box is a point


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What was chosen in one box."""

    cuts: Ints  # (N,)
    batch_sizes: Floats  # (N,)
    price: float
    unpriced: Floats  # (4,)
    unpaid: float  # seconds paid for M beyond its price; 0 if the choice attains the bound
    device_worth: float  # seconds that moving one device between the first and the deepest cut is priced at
    slope: float = 1.0
    slope_loss: float = 0.0  # seconds that the line for a range of slopes gives away at this one


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """For each of K boxes, every device's choice and what they add up to."""

    least: Floats  # (K,) Σ_i (b x + y n(b)) at the best price found: a lower bound, infinite if impossible
    price: Floats  # (K,) η
    cuts: Ints  # (K, N), counts
    batch_sizes: Floats  # (K, N)
    unpriced: Floats  # (K, 4) the share of T₃ to T₆ that the bound counts at the lower corner
    unpaid: Floats  # (K,) what these choices pay for their M beyond its price; 0 if they attain `least`
    most_bits: float  # by which a device can change M

    def of(self, k: int, per_second: float) -> Choice:
        """The choice in one box, with what it leaves unpaid in seconds."""
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
    """The separable problem of one deepest cut J."""

    tables: CostTables
    asked: Asked
    noise: BatchNoise
    deepest_cut: int

    @property
    def least_batch(self) -> Floats:
        """(N,) The smallest batch sizes that will do."""
        return self.asked.least(self.tables, self.deepest_cut)

    def root(self) -> tuple[Floats, Floats] | None:
        """The smallest box that holds every plan with deepest cut J; None if there is no such plan."""
        tables, J, smallest = self.tables, self.deepest_cut, self.least_batch[:, None]
        largest = self.asked.room(tables, J)
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
        best, trial, value, bracket = price, price, least, Bracket.open(len(price))
        for _ in range(steps):
            slope = self.server_bits(bits) - tariff.bits_at(trial)
            bracket = bracket.narrowed(trial, value, slope)
            following = bracket.next_price(tariff)
            active = np.isfinite(least) & (following != trial) & ((slope > 0) | (trial > 0))
            if not active.any():
                break
            trial = np.where(active, following, trial)
            value, chosen, bits = self._at_price(cost, trial, tariff)
            better = value > least
            least, best = np.where(better, value, least), np.where(better, trial, best)
            index = np.where(better[:, None], chosen, index)
        batch_sizes = np.take_along_axis(batch, index[:, :, None], axis=2)[:, :, 0]
        unpriced = np.column_stack([np.ones((len(best), 2)), 1 - tariff.used(best)])
        server_bits = self.server_bits(self.tables.submodel_bits[index].sum(axis=1))
        unpaid = tariff.unpaid(best, server_bits)
        most_bits = float(self.tables.submodel_bits[self.deepest_cut - 1] - self.tables.submodel_bits[0])
        return Choices(least, best, index + 1, batch_sizes, unpriced, unpaid, most_bits)

    def server_bits(self, bits: Floats) -> Floats:
        """M, if the devices hold `bits`."""
        return len(self.tables.fed_up_rate) * self.tables.submodel_bits[self.deepest_cut - 1] - bits

    def _at_price(self, cost: Floats, price: Floats, tariff: Tariff) -> tuple[Floats, Ints, Floats]:
        """The bound at a price, the choices, and the bits that the devices hold under them."""
        bits = self.tables.submodel_bits[: self.deepest_cut]
        priced = cost - price[:, None, None] * bits if price.any() else cost
        index = priced.argmin(axis=2)
        least = np.take_along_axis(priced, index[:, :, None], axis=2)[:, :, 0].sum(axis=1)
        all_bits = self.server_bits(np.zeros(1))
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
        """b x_j + y n(b) and b for every box, device and cut; infinite where the cut is not possible."""
        J, smallest = self.deepest_cut, self.least_batch[:, None]
        limit = self._limits(upper)
        x = lines.per_second[:, None] * self.tables.server_seconds[:J]
        y = lines.per_noise[:, None]
        batch = np.minimum(limit, self.noise.best_batch(x, y, J)[:, None, :])
        np.clip(batch, smallest, self.asked.largest_batch[:, None], out=batch)
        cost = batch * x[:, None, :]
        cost += y[:, :, None] * self.noise.each(batch, J)
        cost[(limit < smallest) | self.cut_excluded(upper)] = np.inf
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

    def least_noise(self, upper: Floats) -> Floats:
        """The least Σ n(b) in K boxes with these upper corners, (K,)."""
        most = np.where(self.asked.cuts[:, : self.deepest_cut], self._limits(upper), 0.0).max(axis=2)
        most = np.clip(most, self.least_batch, self.asked.largest_batch)
        return self.noise.total(most, self.deepest_cut)

    def cut_excluded(self, upper: Floats) -> Bools:
        """Cuts whose sub-model travels longer than T₅ or T₆, or that nobody asked for."""
        tables, J = self.tables, self.deepest_cut
        up, down = upper[:, 2, None] * tables.fed_up_rate, upper[:, 3, None] * tables.fed_down_rate
        most_bits = np.minimum(up, down) * ROUNDING
        return (tables.submodel_bits[:J] > most_bits[:, :, None]) | ~self.asked.cuts[:, :J]

    def _server_rates(self) -> Floats:
        return np.array([self.tables.server_fed_up_rate, self.tables.server_fed_down_rate])
