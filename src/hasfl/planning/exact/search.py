"""Branch and bound over the parts of a round: batch sizes, cuts and T together, with a proof.

For each deepest cut J there is a tree of boxes for (T₃, T₄, T₅, T₆, slope). A box is closed when
`relaxation` shows that no plan in it is better than the best one known by more than the gap. Fixing J
overestimates the drift and the server's share for plans that end earlier, but those are covered by a
smaller J, so the least over J is exact.

What is left of an open box is first cut down: a plan whose T₃ exceeds the box's lower end by more than what
is missing to close the box cannot be better either. Then the box is divided where it gives away most:

- T₅, T₆ or the range of slopes: in two;
- T₃ and T₄: by a grid of cells, which are bounded all at once. The smallest rectangle around the cells that
  stay open is the next box;
- once all of these are narrow, what is missing is due to the price on what the server exchanges: one device
  takes an earlier cut or a later one.
"""

import heapq
import itertools
import time
from dataclasses import dataclass, field, replace

import numpy as np

from hasfl.plan import Plan
from hasfl.planning.exact.batch_grid import best_batches_on_grid
from hasfl.planning.exact.boxes import SLOPE, STEPS, Box, ClosingTest, corners, price_is_to_blame, share_left
from hasfl.planning.exact.cells import bounded_cells
from hasfl.planning.exact.fixed_cuts import FixedCuts
from hasfl.planning.exact.relaxation import ROUNDOFF, Choice, Choices, Relaxation
from hasfl.planning.feasibility import Asked
from hasfl.planning.tables import ROUNDING, CostTables, Ints
from hasfl.problem import Problem
from hasfl.theory.laws import law_of
from hasfl.theory.rounds import Floats, Lines, RoundsLaw

# benchmarks/bench_planner.py --constants shows what half and double of each of these numbers costs.
ELEMENTS = 1 << 15  # boxes × devices × layers that are worked on at once
FIRST_STEPS, DEVICE_STEPS = 16, 8  # prices tried for a root, and for a box that was split by device
SLOPE_WEIGHT = 2.0  # of what slopes give away, against the widths of T₃ to T₆, of which only a part is lost
GRID_SHARE = 0.25  # a grid comes when no other side is wider than this share of T₃ and T₄ together
POLISH_EVERY = 50  # boxes, at least, between two searches for better batches at the best cuts
LAST_POLISH = 0.5  # seconds that the last such search may take when the time is up


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

    problem: Problem
    tables: CostTables
    asked: Asked
    gap: float
    time_limit: float
    box_limit: float = np.inf  # a limit that is the same on every machine
    best_value: float = np.inf
    best_plan: tuple[Floats, Ints] | None = None
    boxes: int = 0
    polished: Ints | None = None  # the cuts for which the best batches were last searched
    polished_at: int = 0  # boxes
    law: RoundsLaw = field(init=False)
    relaxations: dict[int, Relaxation] = field(default_factory=dict)
    queues: dict[int, list[tuple[float, int, Box]]] = field(default_factory=dict)
    ticket: "itertools.count[int]" = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.law = law_of(self.problem)

    def run(self) -> Found:
        """Search until everything is closed or a limit is met. A first plan must have been considered.

        The roots are bounded in any case, so that there is a bound however short the time is.
        """
        deadline = time.monotonic() + self.time_limit
        self._polish(deadline)
        for deepest_cut in range(1, len(self.tables.server_seconds) + 1) if self.gap < 1 else ():
            self._plant(deepest_cut)
            self._work(deepest_cut)
        while self.queues and time.monotonic() < deadline and self.boxes < self.box_limit:
            self._work(min(self.queues, key=lambda J: self.queues[J][0][:2]))
            if self.boxes >= self.polished_at + POLISH_EVERY:
                self._polish(deadline)
        self._polish(max(deadline, time.monotonic() + LAST_POLISH))
        return self._found()

    def consider(self, batch_sizes: Floats, cuts: Ints) -> None:
        """Work out Θ of K plans (K, N) and keep the best."""
        values = self.values(batch_sizes, cuts)
        k = int(values.argmin())
        if values[k] < self.best_value:
            self.best_value, self.best_plan = float(values[k]), (batch_sizes[k].copy(), cuts[k].copy())

    def values(self, batch_sizes: Floats, cuts: Ints) -> Floats:
        """Θ of K plans by the tables; infinite where the target is out of reach."""
        return self.law.rounds(batch_sizes, cuts.max(axis=1)) * self.tables.round_seconds(batch_sizes, cuts)

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
        proved = self.best_value if self.asked.leaves_one_plan(self.tables) else self.cutoff
        return Found(plan, min([proved, *bounds]), status, self.boxes)

    def _polish(self, deadline: float) -> None:
        """Find better batch sizes for the cuts of the best plan, unless that was done for these cuts."""
        assert self.best_plan is not None, "a first plan must have been considered"
        batch_sizes, cuts = self.best_plan
        if self.asked.batches_are_given or (
            self.polished is not None and np.array_equal(cuts, self.polished)
        ):
            return
        fixed = FixedCuts.of(self.problem, cuts)
        found = best_batches_on_grid(fixed, batch_sizes, max(self.gap / 2, ROUNDOFF), deadline)
        self.polished = cuts if found.lower_bound is not None else None
        self.polished_at = self.boxes
        self.consider(found.batch_sizes[None], cuts[None])

    def _plant(self, deepest_cut: int) -> None:
        """The root of one deepest cut, if there are plans with it."""
        relaxation = Relaxation(self.tables, self.asked, self.law.noise, deepest_cut)
        root = relaxation.root()
        if root is not None:
            self.relaxations[deepest_cut] = relaxation
            lower, upper = root
            most = self.asked.room(self.tables, deepest_cut).max(axis=1)
            low, high = self.law.slopes(
                self.cutoff,
                deepest_cut,
                least_seconds=lower @ self.weights,
                least_noise=self.law.noise.total(most, deepest_cut),
            )
            box = Box(np.append(lower, low), np.append(upper, high), steps=FIRST_STEPS)
            self._push(deepest_cut, 0.0, box)

    def _push(self, deepest_cut: int, proved: float, box: Box) -> None:
        heapq.heappush(self.queues.setdefault(deepest_cut, []), (proved, next(self.ticket), box))

    def _pop(self, deepest_cut: int) -> list[tuple[float, Box]]:
        """The most promising boxes of one deepest cut, as many as are worked on at once."""
        size = max(1, ELEMENTS // (len(self.tables.fed_up_rate) * deepest_cut))
        queue = self.queues.get(deepest_cut, [])
        popped = [heapq.heappop(queue) for _ in range(min(size, len(queue)))]
        if not queue:
            self.queues.pop(deepest_cut, None)
        return [(proved, box) for proved, _, box in popped if proved < self.cutoff * (1 - ROUNDOFF)]

    def _work(self, deepest_cut: int) -> None:
        """Bound some boxes of one deepest cut, and divide those that stay open."""
        cutoff, popped = self.cutoff, self._pop(deepest_cut)
        self.boxes += len(popped)
        popped = self._with_slopes_in_reach(cutoff, deepest_cut, popped)
        if not popped:
            return
        boxes = [box for _, box in popped]
        lower, upper = corners(boxes)
        lines = self.law.lines(cutoff, deepest_cut, lower[:, SLOPE], upper[:, SLOPE])
        choices = self._choose(boxes, deepest_cut, lines)
        reached = lines.per_second * (lower[:, :4] @ self.weights) + choices.least
        if (possible := np.isfinite(reached)).any():
            self.consider(choices.batch_sizes[possible], choices.cuts[possible])
        for k in np.flatnonzero(possible).tolist():
            test = ClosingTest(cutoff, lines.of(k), self.relaxations[deepest_cut])
            if reached[k] < test.needed:
                proved = max(popped[k][0], self._proved(test, boxes[k], float(reached[k])))
                self._divide(test, boxes[k], choices.of(k, test.per_second), float(reached[k]), proved)

    def _proved(self, test: ClosingTest, box: Box, reached: float) -> float:
        """The Θ that is proved inside a box where its line reaches this much."""
        seconds = float(box.lower[:4] @ self.weights) + self._idle(test.relaxation.deepest_cut)
        least = test.lines.per_second * seconds
        return float(self.law.proved(test.value, test.lines, reached=np.array([reached]), least=least)[0])

    def _idle(self, deepest_cut: int) -> float:
        """What the server takes at least, in seconds."""
        least = self.asked.least(self.tables, deepest_cut).sum()
        return float(least * self.tables.server_seconds[deepest_cut - 1])

    def _with_slopes_in_reach(
        self, value: float, deepest_cut: int, popped: list[tuple[float, Box]]
    ) -> list[tuple[float, Box]]:
        """Narrow each box to the slopes of plans with Θ below `value`; drop boxes without such slopes."""
        if all(box.lower[SLOPE] == box.upper[SLOPE] for _, box in popped):
            return popped
        lower, upper = corners([box for _, box in popped])
        low, high = self.law.slopes(
            value,
            deepest_cut,
            least_seconds=lower[:, :4] @ self.weights + self._idle(deepest_cut),
            least_noise=self.relaxations[deepest_cut].least_noise(upper),
        )
        lower[:, SLOPE] = np.maximum(low / ROUNDING, lower[:, SLOPE])
        upper[:, SLOPE] = np.minimum(high * ROUNDING, upper[:, SLOPE])
        possible = np.flatnonzero(lower[:, SLOPE] <= upper[:, SLOPE])
        return [(popped[k][0], replace(popped[k][1], lower=lower[k], upper=upper[k])) for k in possible]

    def _choose(self, boxes: list[Box], deepest_cut: int, lines: Lines) -> Choices:
        lower, upper = corners(boxes)
        forbidden = None
        if any(box.forbidden is not None for box in boxes):
            nothing = np.zeros((len(self.tables.fed_up_rate), deepest_cut), dtype=bool)
            forbidden = np.array([nothing if box.forbidden is None else box.forbidden for box in boxes])
        price = np.array([box.price for box in boxes])
        steps = max(box.steps for box in boxes)
        within = lower[:, :4], upper[:, :4]
        return self.relaxations[deepest_cut].choose(within, lines, price, steps=steps, forbidden=forbidden)

    def _divide(self, test: ClosingTest, box: Box, choice: Choice, reached: float, proved: float) -> None:
        """Cut off what cannot be better, then divide the box where it gives away most."""
        choice = self._with_slope(test, choice, box)
        missing = (float(test.lines.needed[0]) - reached) / test.per_second
        chosen_in, reach = box, self._within_reach(box, choice, missing)
        box = replace(box, upper=reach, price=choice.price, steps=STEPS)
        width, others = float((box.upper[:2] - box.lower[:2]).sum()), self._others(box, choice)
        given_away = width + float(others.sum())
        if price_is_to_blame(choice, given_away, missing, test.point):
            if self._split_by_device(test, box, choice, proved, chosen_in):
                return
            if np.isinf(choice.unpaid):
                return  # the only choices there are exchange too much
        if given_away <= test.point:
            return  # a single plan, which has been considered
        if others.max() > GRID_SHARE * width:
            self._halve(test, box, int(others.argmax()), choice, proved)
        else:
            self._divide_by_cells(test, box, choice, proved)

    def _within_reach(self, box: Box, choice: Choice, missing: float) -> Floats:
        """The upper corner without what is further from the lower one than `missing` seconds."""
        with np.errstate(divide="ignore"):
            furthest = box.lower[:4] + missing / (self.weights * choice.unpriced)
        return np.append(np.minimum(box.upper[:4], furthest), box.upper[SLOPE])

    def _others(self, box: Box, choice: Choice) -> Floats:
        """(5,) What the sides other than T₃ and T₄ give away, in seconds."""
        widths = (box.upper[2:4] - box.lower[2:4]) * self.weights[2:]
        return np.array([0.0, 0.0, *widths, SLOPE_WEIGHT * choice.slope_loss])

    def _halve(self, test: ClosingTest, box: Box, side: int, choice: Choice, proved: float) -> None:
        """Split one side in the middle; slopes at that of the choice, where both lines are then exact."""
        lower, upper = box.lower.copy(), box.upper.copy()
        middle = choice.slope if side == SLOPE else (lower[side] + upper[side]) / 2
        lower[side] = upper[side] = middle
        self._push(test.relaxation.deepest_cut, proved, replace(box, upper=upper))
        self._push(test.relaxation.deepest_cut, proved, replace(box, lower=lower))

    def _divide_by_cells(self, test: ClosingTest, box: Box, choice: Choice, proved: float) -> None:
        """Bound a grid over T₃ and T₄, and go on with the rectangle around the cells that stay open."""
        within = box.lower[:4], box.upper[:4]
        cells = bounded_cells(test.relaxation, within, test.lines, choice.price, box.forbidden)
        still_open = cells.bounds < test.needed
        if not still_open.any():
            return
        least = float(cells.bounds.min())
        missing = (float(test.lines.needed[0]) - least) / test.per_second
        upper = self._within_reach(box, choice, missing)  # of T₅ and T₆: cells differ in T₃ and T₄
        smaller = self._shrunk(replace(box, upper=upper), *cells.rectangle(still_open))
        inside = self._choose_in_cell(test, smaller, *cells.best())
        smaller = replace(smaller, price=choice.price if inside is None else inside.price)
        proved = max(proved, self._proved(test, box, least))
        others = self._others(smaller, choice)
        given_away = cells.width + float(others.sum())
        if (
            inside is not None
            and price_is_to_blame(inside, given_away, missing, test.point)
            and self._split_by_device(test, smaller, inside, proved, smaller)
        ):
            return
        if others.max() > cells.width:
            self._halve(test, smaller, int(others.argmax()), choice, proved)
        elif share_left(box, smaller) <= 0.5:
            self._push(test.relaxation.deepest_cut, proved, smaller)
        else:
            side = int((smaller.upper[:2] - smaller.lower[:2]).argmax())
            self._halve(test, smaller, side, choice, proved)

    def _choose_in_cell(self, test: ClosingTest, box: Box, lower: Floats, upper: Floats) -> Choice | None:
        """Choose in one cell and consider that plan; None if the cell holds no plan."""
        cell = self._shrunk(box, lower, upper)
        choices = self._choose([cell], test.relaxation.deepest_cut, test.lines)
        if not np.isfinite(choices.least[0]):
            return None
        self.consider(choices.batch_sizes, choices.cuts)
        return choices.of(0, test.per_second)

    def _shrunk(self, box: Box, lower: Floats, upper: Floats) -> Box:
        """The box with other ends of T₃ and T₄."""
        return replace(box, lower=np.append(lower, box.lower[2:]), upper=np.append(upper, box.upper[2:]))

    def _with_slope(self, test: ClosingTest, choice: Choice, box: Box) -> Choice:
        """A choice with its slope, and what the line for the box gives away there against the line for it.

        If its slope is not in the box, the middle is where to split.
        """
        low, high, J = box.lower[SLOPE:], box.upper[SLOPE:], test.relaxation.deepest_cut
        if low == high:
            return choice
        server = choice.batch_sizes @ self.tables.server_seconds[choice.cuts - 1]
        seconds = np.array([float(box.lower[:4] @ self.weights) + server])
        noise = self.law.noise.total(choice.batch_sizes[None], J)
        own = self.law.slope(seconds, noise, J)
        slope = np.where((low < own) & (own < high), own, np.sqrt(low * high))
        tight = self.law.lines(test.value, J, slope, slope)
        loss = (tight.excess(seconds, noise) - test.lines.excess(seconds, noise)) / test.per_second
        return replace(choice, slope=float(slope[0]), slope_loss=max(float(loss[0]), 0.0))

    def _split_by_device(
        self, test: ClosingTest, box: Box, choice: Choice, proved: float, chosen_in: Box
    ) -> bool:
        """One device takes an earlier cut, or a later one; False if no device has another cut to go to."""
        upper = chosen_in.upper[:4]
        device = test.relaxation.marginal_device(upper, test.lines, choice, box.forbidden)
        if device is None:
            return False
        (i, cut), deepest_cut = device, test.relaxation.deepest_cut
        layer = np.arange(1, deepest_cut + 1)
        for excluded in (layer > cut, layer <= cut):
            forbidden = np.zeros((len(self.tables.fed_up_rate), deepest_cut), dtype=bool)
            if box.forbidden is not None:
                forbidden |= box.forbidden
            forbidden[i] |= excluded
            self._push(deepest_cut, proved, replace(box, steps=DEVICE_STEPS, forbidden=forbidden))
        return True
