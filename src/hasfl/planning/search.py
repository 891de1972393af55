"""Branch and bound over the parts of a round: batch sizes, cuts and T together, with a proof.

For each deepest cut J there is a tree of boxes for (T₃, T₄, T₅, T₆, slope). A box is closed when
`relaxation` shows that no plan in it is better than the best one known by more than the gap. Fixing J
overestimates the drift and the server's share for plans that end earlier, but those are covered by a
smaller J, so the least over J is exact.

What is left of a box after its bound is known is cut down at once: a plan whose T₃ exceeds the box's lower
end by more than what is missing to close it cannot be better either. Where the price on what the server
exchanges gives away more than the T do, a box is split by the cut of one device instead.
"""

import heapq
import itertools
import time
from dataclasses import dataclass, field, replace

import numpy as np

from hasfl.plan import Plan
from hasfl.planning.feasibility import Asked
from hasfl.planning.relaxation import ROUNDING, ROUNDOFF, Bools, Choice, Choices, Ints, Relaxation
from hasfl.planning.tables import CostTables
from hasfl.theory.rounds import Floats, Lines, RoundsModel

ELEMENTS = 1 << 17  # boxes × devices × layers that are worked on at once
FIRST_STEPS, STEPS, DEVICE_STEPS = 16, 3, 12  # prices tried for a root, a box, and one split by device
SLOPE = 4  # its place among the sides of a box, after T₃ to T₆
SLOPE_WEIGHT = 2.0  # of what slopes give away against the widths of T₃ to T₆, of which a part is lost


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """Lower and upper corner, the price to start from, and the cuts that are excluded inside."""

    lower: Floats  # (5,) T₃, T₄, T₅, T₆, slope
    upper: Floats
    price: float = 0.0
    steps: int = STEPS
    forbidden: Bools | None = None  # (N, J)


@dataclass(frozen=True, slots=True)
class Found:
    """The best plan, and what no plan can beat."""

    plan: Plan
    lower_bound: float
    status: str  # optimal, or limit
    boxes: int


@dataclass(slots=True, eq=False)
class Search:
    """One search for the least Θ among the plans asked for."""

    tables: CostTables
    model: RoundsModel
    asked: Asked
    gap: float
    time_limit: float
    box_limit: float = np.inf  # a limit that is the same on every machine
    best_value: float = np.inf
    best_plan: tuple[Floats, Ints] | None = None
    boxes: int = 0
    relaxations: dict[int, Relaxation] = field(default_factory=dict)
    queues: dict[int, list[tuple[float, int, Box]]] = field(default_factory=dict)
    ticket: "itertools.count[int]" = field(default_factory=itertools.count)

    def run(self) -> Found:
        """Search until everything is closed or a limit is met. A first plan must have been considered."""
        deadline = time.monotonic() + self.time_limit
        for deepest_cut in range(1, len(self.tables.server_seconds) + 1):
            self._plant(deepest_cut)
        while self.queues and time.monotonic() < deadline and self.boxes < self.box_limit:
            self._work(min(self.queues, key=lambda J: self.queues[J][0][:2]))
        return self._found()

    def consider(self, batch_sizes: Floats, cuts: Ints) -> None:
        """Work out Θ of K plans (K, N) and keep the best."""
        values = self.values(batch_sizes, cuts)
        k = int(values.argmin())
        if values[k] < self.best_value:
            self.best_value, self.best_plan = float(values[k]), (batch_sizes[k].copy(), cuts[k].copy())

    def values(self, batch_sizes: Floats, cuts: Ints) -> Floats:
        """Θ of K plans by the tables; infinite where the target is out of reach."""
        rounds = self.model.rounds((1 / batch_sizes).sum(axis=1), cuts.max(axis=1))
        return rounds * self.tables.round_seconds(batch_sizes, cuts)

    @property
    def cutoff(self) -> float:
        """A box is closed when Θ is proved to be at least this inside."""
        return self.best_value * (1 - self.gap)

    @property
    def weights(self) -> Floats:
        """What T₃ to T₆ weigh in the seconds of a round."""
        return np.array([1.0, 1.0, 1 / self.tables.interval, 1 / self.tables.interval])

    def _found(self) -> Found:
        bounds = [queue[0][0] for queue in self.queues.values()]
        status = "limit" if any(bound < self.cutoff * (1 - ROUNDOFF) for bound in bounds) else "optimal"
        assert self.best_plan is not None, "a first plan must have been considered"
        plan = Plan(self.best_plan[0].astype(np.int64), self.best_plan[1])
        return Found(plan, min([self.cutoff, *bounds]), status, self.boxes)

    def _plant(self, deepest_cut: int) -> None:
        """The root of one deepest cut, if there are plans with it."""
        relaxation = Relaxation(self.tables, self.asked, deepest_cut)
        root = relaxation.root()
        if root is not None:
            self.relaxations[deepest_cut] = relaxation
            lower, upper = root
            least = lower @ self.weights
            most = self.asked.room(self.tables)[:, :deepest_cut].max(axis=1)
            low, high = self.model.slopes(
                self.cutoff, deepest_cut, least_seconds=least, least_inverse=(1 / most).sum()
            )
            self._push(
                deepest_cut, 0.0, Box(np.append(lower, low), np.append(upper, high), steps=FIRST_STEPS)
            )

    def _push(self, deepest_cut: int, proved: float, box: Box) -> None:
        heapq.heappush(self.queues.setdefault(deepest_cut, []), (proved, next(self.ticket), box))

    def _pop(self, deepest_cut: int) -> list[Box]:
        """The most promising boxes of one deepest cut, as many as are worked on at once."""
        size = max(1, ELEMENTS // (len(self.tables.fed_up_rate) * deepest_cut))
        queue = self.queues[deepest_cut]
        popped = [heapq.heappop(queue) for _ in range(min(size, len(queue)))]
        if not queue:
            del self.queues[deepest_cut]
        return [box for proved, _, box in popped if proved < self.cutoff * (1 - ROUNDOFF)]

    def _work(self, deepest_cut: int) -> None:
        """Bound some boxes of one deepest cut, and split those that stay open."""
        cutoff, boxes = self.cutoff, self._pop(deepest_cut)
        self.boxes += len(boxes)
        boxes = self._with_slopes_in_reach(cutoff, deepest_cut, boxes)
        if not boxes:
            return
        lower, upper = _corners(boxes)
        lines = self.model.lines(cutoff, deepest_cut, lower[:, SLOPE], upper[:, SLOPE])
        choices = self._choose(boxes, deepest_cut, (lower[:, :4], upper[:, :4]), lines)
        seconds = lower[:, :4] @ self.weights
        reached = lines.per_second * seconds + choices.least
        if (possible := np.isfinite(reached)).any():
            self.consider(choices.batch_sizes[possible], choices.cuts[possible])
        idle = self._idle(deepest_cut)
        proved = self.model.proved(
            cutoff,
            lines,
            reached=np.where(possible, reached, np.inf),
            least=lines.per_second * (seconds + idle),
        )
        roundoff = ROUNDOFF * lines.per_second * seconds
        for k in np.flatnonzero(reached < lines.needed - roundoff).tolist():
            scale = float(lines.per_second[k])
            missing = float(lines.needed[k] - reached[k]) / scale
            choice = self._with_slope(choices.of(k, scale), cutoff, deepest_cut, boxes[k], seconds[k])
            self._split(deepest_cut, boxes[k], choice, missing, float(proved[k]))

    def _idle(self, deepest_cut: int) -> float:
        """What the server takes at least, in seconds."""
        return float(self.asked.smallest_batch.sum() * self.tables.server_seconds[deepest_cut - 1])

    def _with_slopes_in_reach(self, value: float, deepest_cut: int, boxes: list[Box]) -> list[Box]:
        """The boxes with the slopes that plans with Θ below `value` can have inside, if there are any."""
        if all(box.lower[SLOPE] == box.upper[SLOPE] for box in boxes):
            return boxes
        lower, upper = _corners(boxes)
        low, high = self.model.slopes(
            value,
            deepest_cut,
            least_seconds=lower[:, :4] @ self.weights + self._idle(deepest_cut),
            least_inverse=self.relaxations[deepest_cut].least_inverse(upper),
        )
        lower[:, SLOPE] = np.maximum(low / ROUNDING, lower[:, SLOPE])
        upper[:, SLOPE] = np.minimum(high * ROUNDING, upper[:, SLOPE])
        possible = np.flatnonzero(lower[:, SLOPE] <= upper[:, SLOPE])
        return [replace(boxes[k], lower=lower[k], upper=upper[k]) for k in possible]

    def _choose(
        self, boxes: list[Box], deepest_cut: int, corners: tuple[Floats, Floats], lines: Lines
    ) -> Choices:
        forbidden = None
        if any(box.forbidden is not None for box in boxes):
            nothing = np.zeros((len(self.tables.fed_up_rate), deepest_cut), dtype=bool)
            forbidden = np.array([nothing if box.forbidden is None else box.forbidden for box in boxes])
        price = np.array([box.price for box in boxes])
        steps = max(box.steps for box in boxes)
        return self.relaxations[deepest_cut].choose(corners, lines, price, steps=steps, forbidden=forbidden)

    def _with_slope(self, choice: Choice, value: float, deepest_cut: int, box: Box, seconds: float) -> Choice:
        """A choice with its slope, and what the line for the box gives away there against the line for it.

        If its slope is not in the box, the middle is where to split.
        """
        low, high = box.lower[SLOPE:], box.upper[SLOPE:]
        if low == high:
            return choice
        server = choice.batch_sizes @ self.tables.server_seconds[choice.cuts - 1]
        at = np.array([seconds + server]), np.array([(1 / choice.batch_sizes).sum()])
        own = self.model.slope(*at, np.array(deepest_cut))
        slope = np.where((low < own) & (own < high), own, np.sqrt(low * high))
        tight, loose = (self.model.lines(value, deepest_cut, *ends) for ends in ((slope, slope), (low, high)))
        loss = (tight.excess(*at) - loose.excess(*at)) / loose.per_second
        return replace(choice, slope=float(slope[0]), slope_loss=max(float(loss[0]), 0.0))

    def _split(self, deepest_cut: int, box: Box, choice: Choice, missing: float, proved: float) -> None:
        """Cut off what cannot be better, then split the box where it gives away most."""
        with np.errstate(divide="ignore"):
            furthest = box.lower[:4] + missing / (self.weights * choice.unpriced)
        upper = np.append(np.minimum(box.upper[:4], furthest), box.upper[SLOPE])
        given_away = np.append((upper[:4] - box.lower[:4]) * self.weights, SLOPE_WEIGHT * choice.slope_loss)
        if choice.price_gap > given_away.sum():
            device = self._marginal_device(deepest_cut, box, choice)
            if device is not None:
                self._split_by_device(
                    deepest_cut, replace(box, upper=upper, price=choice.price), device, proved
                )
                return
            if np.isinf(choice.price_gap):
                return  # the only choices there are exchange too much
        if given_away.sum() <= ROUNDOFF * float(box.lower[:4] @ self.weights):
            return  # a single plan, which has been considered
        side = int(given_away.argmax())
        lower_half, upper_half = upper.copy(), box.lower.copy()
        middle = (box.lower[side] + upper[side]) / 2
        lower_half[side] = upper_half[side] = choice.slope if side == SLOPE else middle
        for lower, top in ((box.lower, lower_half), (upper_half, upper)):
            self._push(deepest_cut, proved, Box(lower, top, choice.price, STEPS, box.forbidden))

    def _marginal_device(self, deepest_cut: int, box: Box, choice: Choice) -> tuple[int, int] | None:
        lines = self.model.lines(self.cutoff, deepest_cut, box.lower[SLOPE:], box.upper[SLOPE:])
        return self.relaxations[deepest_cut].marginal_device(box.upper[:4], lines, choice, box.forbidden)

    def _split_by_device(self, deepest_cut: int, box: Box, device: tuple[int, int], proved: float) -> None:
        """What is left is due to the price on M: one device takes an earlier cut, or a later one."""
        i, cut = device
        layer = np.arange(1, deepest_cut + 1)
        for excluded in (layer > cut, layer <= cut):
            forbidden = np.zeros((len(self.tables.fed_up_rate), deepest_cut), dtype=bool)
            if box.forbidden is not None:
                forbidden |= box.forbidden
            forbidden[i] |= excluded
            self._push(deepest_cut, proved, replace(box, steps=DEVICE_STEPS, forbidden=forbidden))


def _corners(boxes: list[Box]) -> tuple[Floats, Floats]:
    return np.array([box.lower for box in boxes]), np.array([box.upper for box in boxes])
