"""The search for the best cuts and batch sizes: branch and bound over T₃, T₄, T₅, T₆ and the slope.

The search proves that no plan is better than the best plan so far by more than the gap.

A *box* is a range for each of T₃, T₄, T₅, T₆ and for the slope of the law of rounds, and a set of cuts that
are excluded inside. A box stands for all plans whose T₃ to T₆ and slope lie in the ranges. In a box, every
device chooses the cut and the batch size that cost least on its own (`relaxation.py`). This gives a plan, and
a lower bound for all plans of the box. The box is closed when its line (`theory/rounds.py`) proves Θ ≥ value
for all its plans, so that no plan of the box is better.

1. For each deepest cut J there is a queue of boxes. The first box, the root, holds all plans with deepest cut
   J. A box of J also holds plans whose cuts are all less than J. The line overestimates Θ of these plans, but
   a smaller J covers them. So the least lower bound over all J holds for all plans.
2. The search takes boxes from the queue, those with the least lower bound first, and bounds them. The plan
   that the devices choose in a box is a candidate for the best plan.
3. A box whose line reaches `needed` is closed. Other boxes are *cut down* and *divided*, and the parts go
   into the queue. The search ends when the queues are empty, or at a limit.

*Missing* seconds are the seconds by which the lower bound on the left side of the line lacks `needed`. Wide
sides *give away* seconds: the line counts T₃ at the lower end of the box, but limits batch sizes by the upper
end, so a box that is w seconds wide in T₃ may underestimate its plans by w seconds.

**Cutting down.** If `missing` seconds close a box, a plan more than `missing` seconds above the lower corner
cannot be better. So the upper corner moves to the lower corner plus `missing`. The example of
docs/decisions/0006 shows it: a box with T₃ and T₄ from 1.2 to 1.8 s reaches 4.87 of 5.0625, so 0.193 are
missing, and the upper ends become 1.393. The smaller box reaches 4.95, so 0.1125 are missing, and the upper
ends become 1.3125. This box reaches 5.0625 and is closed.

**Dividing.** A box is divided where it gives away most seconds:

- in two halves, if the widest side is T₅, T₆ or the slope;
- by a grid over T₃ and T₄ (`cells.py`). The rectangle around the cells that stay open is the next box;
- by device, if the price on M keeps the box open: one device takes an early cut in one part and a late cut in
  the other.
"""

import heapq
import itertools
import time
from dataclasses import dataclass, field, replace

import numpy as np

from hasfl.plan import Plan
from hasfl.planning.exact.cells import Cells, bounded_cells
from hasfl.planning.exact.fixed_cuts import FixedCuts, best_batches_on_grid
from hasfl.planning.exact.relaxation import ROUNDOFF, Choice, Choices, Relaxation
from hasfl.planning.feasibility import AllowedPlans
from hasfl.planning.tables import EXCHANGE_TIMES, ROUNDING, STEP_TIMES, TIMES, Bools, CostTables, Ints
from hasfl.problem import Problem
from hasfl.theory.objective import law_of
from hasfl.theory.rounds import Floats, Lines, RoundsLaw

# Two numbers such as "1.31, 1.08" at the end of a comment are measured: the planner takes 1.31 times as long
# with half the constant and 1.08 times as long with twice the constant (`python -m benchmarks.bench_planner
# --constants`, benchmarks/planner_search_2-core-x86_64_2026-11-16.md). Other constants were chosen by hand.
ELEMENTS = 1 << 15  # boxes × devices × layers that are bounded at once; 1.31, 1.08
FIRST_STEPS = 16  # prices tried for a root
DEVICE_STEPS = 8  # prices tried for a box that was split by device
# Weight of the seconds that slopes lose. A side loses only a part of its width, so slopes weigh more; 1.07,
# 1.04.
SLOPE_WEIGHT = 2.0
GRID_SHARE = 0.25  # a grid is used if no other side gives away more than this share of T₃ and T₄; 1.23, 1.04
ENOUGH = 0.5  # largest share of its area that a grid may leave open; otherwise the box is halved too
POLISH_EVERY = 50  # least number of boxes between two polishes: improvements of batch sizes at the best cuts
POLISH_GAP = 0.5  # gap of a polish, as a share of the gap of the search
LAST_POLISH = 0.5  # seconds for the last polish if the time is up
STEPS = 4  # prices tried for a box; 1.01, 1.06
DEVICE_SHARE = 0.5  # sides that give away less than this share of the missing seconds are narrow; 0.96, 1.02

SLOPE = 4  # index of the slope among the sides of a box, after T₃ to T₆


# ── boxes, and the test that closes one ──────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """Lower and upper corner, the first price to try, and the cuts that are excluded inside."""

    lower: Floats  # (5,) T₃, T₄, T₅, T₆, slope
    upper: Floats  # (5,) T₃, T₄, T₅, T₆, slope
    price: float = 0.0  # η, the first price to try (`relaxation.py`)
    steps: int = STEPS  # number of further prices to try
    forbidden: Bools | None = None  # (N, J) cuts that are excluded; None if none is

    def with_step_times(self, lower: Floats, upper: Floats) -> "Box":
        """The box with new lower and upper ends (2,) of T₃ and T₄."""
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
        while the bound counts the lower end. The same holds for T₄ to T₆, with their weights in a round. Of
        T₅ and T₆ only the unpriced share counts, because the bound has the priced share already
        (`relaxation.py`).
        """
        with np.errstate(divide="ignore"):
            furthest = self.lower[TIMES] + missing / (weights * unpriced)
        return np.append(np.minimum(self.upper[TIMES], furthest), self.upper[SLOPE])


@dataclass(frozen=True, slots=True, eq=False)
class ClosingTest:
    """The line of one box, which must reach `needed` to prove Θ ≥ value and close the box."""

    value: float
    lines: Lines  # the line of this box alone
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
        """The seconds below which sides give away so little that a box counts as a single point."""
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
    """Whether a box stays open because of the price on M, and not because its sides are wide.

    The choice costs `unpaid` seconds more than the lower bound, because of M. If that is less than what is
    missing, the chosen plan itself lies below `needed`, and only narrower sides can close the box. Otherwise
    the price is the reason in two cases: the sides give away little, or a single device that moves to another
    cut changes the left side by more than is missing (few devices, large layers). In a box that is a single
    point only the price can be the reason.

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


# ── the search ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Found:
    """The best plan, and a lower bound on Θ of all plans."""

    plan: Plan
    lower_bound: float
    status: str  # "optimal", or "limit" if a limit stopped the search
    boxes: int  # number of boxes that were bounded


@dataclass(slots=True, eq=False)
class Search:
    """One search for the least Θ among the plans that are allowed."""

    problem: Problem
    tables: CostTables
    allowed: AllowedPlans
    gap: float
    time_limit: float  # seconds of wall time
    box_limit: float = np.inf  # most boxes; unlike a time limit, it gives the same plan on every machine
    best_value: float = np.inf  # Θ of the best plan so far
    best_plan: tuple[Floats, Ints] | None = None  # batch sizes and cuts
    boxes: int = 0  # boxes bounded so far
    polished: Ints | None = None  # the cuts for which the best batch sizes are known already
    polished_at: int = 0  # the value of `boxes` at the last polish
    left_open: float = np.inf  # the least lower bound of boxes that cannot be divided any more
    law: RoundsLaw = field(init=False)
    relaxations: dict[int, Relaxation] = field(default_factory=dict)  # one for each deepest cut
    # Heaps of (lower bound on Θ, ticket, box), by deepest cut.
    queues: dict[int, list[tuple[float, int, Box]]] = field(default_factory=dict)
    ticket: "itertools.count[int]" = field(default_factory=itertools.count)  # orders boxes of equal bounds

    def __post_init__(self) -> None:
        self.law = law_of(self.problem)

    def run(self) -> Found:
        """Search until all boxes are closed or a limit is reached. Call `consider` with a plan first.

        The roots are bounded even if the time is up, so there always is a lower bound.
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
        return self._result()

    def consider(self, batch_sizes: Floats, cuts: Ints) -> None:
        """Compute Θ of K plans (K, N) and keep the best plan."""
        values = self.values(batch_sizes, cuts)
        k = int(values.argmin())
        if values[k] < self.best_value:
            self.best_value, self.best_plan = float(values[k]), (batch_sizes[k].copy(), cuts[k].copy())

    def values(self, batch_sizes: Floats, cuts: Ints) -> Floats:
        """(K,) The training times Θ of K plans, Eq. (43); infinite where the target is out of reach."""
        return self.law.rounds(batch_sizes, cuts.max(axis=1)) * self.tables.round_seconds(batch_sizes, cuts)

    @property
    def cutoff(self) -> float:
        """The Θ that must be proved for all plans of a box to close it: best Θ so far · (1 − gap)."""
        return self.best_value * (1 - self.gap)

    def _result(self) -> Found:
        """The best plan, and the least of the lower bounds of all boxes that are still open."""
        bounds = [self.left_open, *(queue[0][0] for queue in self.queues.values())]
        status = "limit" if any(bound < self.cutoff * (1 - ROUNDOFF) for bound in bounds) else "optimal"
        assert self.best_plan is not None, "`consider` must be given a plan before `run`"
        plan = Plan(self.best_plan[0].astype(np.int64), self.best_plan[1])
        proved = self.best_value if self.allowed.leaves_one_plan(self.tables) else self.cutoff
        return Found(plan, min([proved, *bounds]), status, self.boxes)

    def _polish(self, deadline: float) -> None:
        """Improve the batch sizes of the best plan for its own cuts, unless these cuts were polished."""
        assert self.best_plan is not None, "`consider` must be given a plan before `run`"
        batch_sizes, cuts = self.best_plan
        if self.allowed.batches_are_given or (
            self.polished is not None and np.array_equal(cuts, self.polished)
        ):
            return
        fixed = FixedCuts.of(self.problem, cuts)
        on_grid = best_batches_on_grid(fixed, batch_sizes, max(self.gap * POLISH_GAP, ROUNDOFF), deadline)
        self.polished = cuts if on_grid.lower_bound is not None else None
        self.polished_at = self.boxes
        self.consider(on_grid.batch_sizes[None], cuts[None])

    def _plant(self, deepest_cut: int) -> None:
        """Put the root box of one deepest cut into its queue, if any plan has this deepest cut."""
        relaxation = Relaxation(self.tables, self.allowed, self.law.noise, deepest_cut)
        root = relaxation.root()
        if root is not None:
            self.relaxations[deepest_cut] = relaxation
            lower, upper = root
            most = self.allowed.room(self.tables, deepest_cut).max(axis=1)
            low, high = self.law.slopes(
                self.cutoff,
                deepest_cut,
                least_seconds=lower @ self.tables.weights,
                least_noise=self.law.noise.total(most, deepest_cut),
            )
            box = Box(np.append(lower, low), np.append(upper, high), steps=FIRST_STEPS)
            self._push(deepest_cut, 0.0, box)

    def _push(self, deepest_cut: int, proved: float, *boxes: Box) -> None:
        """Put boxes into a queue; `proved` is a lower bound on Θ in all of them."""
        for box in boxes:
            heapq.heappush(self.queues.setdefault(deepest_cut, []), (proved, next(self.ticket), box))

    def _pop(self, deepest_cut: int) -> list[tuple[float, Box]]:
        """The boxes of one deepest cut with the least lower bounds, as many as are bounded at once."""
        size = max(1, ELEMENTS // (len(self.tables.fed_up_rate) * deepest_cut))
        queue = self.queues.get(deepest_cut, [])
        popped = [heapq.heappop(queue) for _ in range(min(size, len(queue)))]
        if not queue:
            self.queues.pop(deepest_cut, None)
        return [(proved, box) for proved, _, box in popped if proved < self.cutoff * (1 - ROUNDOFF)]

    def _work(self, deepest_cut: int) -> None:
        """Bound some boxes of one deepest cut, and divide the boxes that stay open."""
        cutoff, popped = self.cutoff, self._pop(deepest_cut)
        self.boxes += len(popped)
        popped = self._with_slopes_in_reach(cutoff, deepest_cut, popped)
        if not popped:
            return
        boxes = [box for _, box in popped]
        lower, upper = corners(boxes)
        lines = self.law.lines(cutoff, deepest_cut, lower[:, SLOPE], upper[:, SLOPE])
        choices = self._choose(boxes, deepest_cut, lines)
        # A lower bound on the left side of the line: T₃ to T₆ at the lower corner, plus the devices' costs.
        reached = lines.per_second * (lower[:, TIMES] @ self.tables.weights) + choices.least
        if (possible := np.isfinite(reached)).any():
            self.consider(choices.batch_sizes[possible], choices.cuts[possible])
        for k in np.flatnonzero(possible).tolist():
            test = ClosingTest(cutoff, lines.of(k), self.relaxations[deepest_cut], self.law)
            if reached[k] < test.needed:
                proved = max(popped[k][0], test.proved(boxes[k], float(reached[k])))
                self._divide(test, boxes[k], choices.of(k, test.per_second), float(reached[k]), proved)

    def _with_slopes_in_reach(
        self, value: float, deepest_cut: int, popped: list[tuple[float, Box]]
    ) -> list[tuple[float, Box]]:
        """Narrow each box to the slopes of plans with Θ < value, and drop boxes without such slopes."""
        if all(box.lower[SLOPE] == box.upper[SLOPE] for _, box in popped):
            return popped
        relaxation = self.relaxations[deepest_cut]
        lower, upper = corners([box for _, box in popped])
        low, high = self.law.slopes(
            value,
            deepest_cut,
            least_seconds=lower[:, TIMES] @ self.tables.weights + relaxation.least_server_seconds,
            least_noise=relaxation.least_noise(upper),
        )
        lower[:, SLOPE] = np.maximum(low / ROUNDING, lower[:, SLOPE])
        upper[:, SLOPE] = np.minimum(high * ROUNDING, upper[:, SLOPE])
        possible = np.flatnonzero(lower[:, SLOPE] <= upper[:, SLOPE])
        return [(popped[k][0], replace(popped[k][1], lower=lower[k], upper=upper[k])) for k in possible]

    def _choose(self, boxes: list[Box], deepest_cut: int, lines: Lines) -> Choices:
        """The choices of all devices in some boxes of one deepest cut."""
        lower, upper = corners(boxes)
        forbidden = None
        if any(box.forbidden is not None for box in boxes):
            none = np.zeros((len(self.tables.fed_up_rate), deepest_cut), dtype=bool)
            forbidden = np.array([none if box.forbidden is None else box.forbidden for box in boxes])
        price = np.array([box.price for box in boxes])
        steps = max(box.steps for box in boxes)
        times = lower[:, TIMES], upper[:, TIMES]
        return self.relaxations[deepest_cut].choose(times, lines, price, steps=steps, forbidden=forbidden)

    def _divide(self, test: ClosingTest, box: Box, choice: Choice, reached: float, proved: float) -> None:
        """Cut down an open box, then divide it where it gives away most seconds."""
        choice = test.with_slope(choice, box)
        missing, chosen_in = test.missing(reached), box
        upper = box.upper_in_reach(self.tables.weights, choice.unpriced, missing)
        box = replace(box, upper=upper, price=choice.price, steps=STEPS)
        width = float((box.upper[STEP_TIMES] - box.lower[STEP_TIMES]).sum())
        by_others = self._given_away_by_others(box, choice)
        given_away = width + float(by_others.sum())
        if price_is_to_blame(choice, given_away, missing, test.point):
            if self._split_by_device(test, box, choice, proved, chosen_in):
                return
            if np.isinf(choice.unpaid):
                return  # every plan of the box exceeds the M that its upper corner allows: no plan is left
        if given_away <= test.point:
            # The box holds a single plan, which has been considered, unless the law does not close boxes.
            if not self.law.closes(test.relaxation.deepest_cut):
                self.left_open = min(self.left_open, proved)
            return
        if by_others.max() > GRID_SHARE * width:
            self._halve(test, box, int(by_others.argmax()), choice, proved)
        else:
            self._divide_by_cells(test, box, choice, proved)

    def _given_away_by_others(self, box: Box, choice: Choice) -> Floats:
        """(5,) The seconds that T₅, T₆ and the slope give away; 0 for T₃ and T₄."""
        widths = box.upper[EXCHANGE_TIMES] - box.lower[EXCHANGE_TIMES]
        weighted = widths * self.tables.weights[EXCHANGE_TIMES]
        return np.array([0.0, 0.0, *weighted, SLOPE_WEIGHT * choice.slope_loss])

    def _halve(self, test: ClosingTest, box: Box, side: int, choice: Choice, proved: float) -> None:
        """Halve one side. The slopes are split at the slope of the choice, where both lines are exact."""
        middle = choice.slope if side == SLOPE else (box.lower[side] + box.upper[side]) / 2
        self._push(test.relaxation.deepest_cut, proved, *box.halves(side, middle))

    def _divide_by_cells(self, test: ClosingTest, box: Box, choice: Choice, proved: float) -> None:
        """Bound a grid over T₃ and T₄, and continue with the rectangle around the cells that stay open."""
        times = box.lower[TIMES], box.upper[TIMES]
        cells = bounded_cells(test.relaxation, times, test.lines, choice.price, box.forbidden)
        still_open = cells.bounds < test.needed
        if not still_open.any():
            return
        least = float(cells.bounds.min())
        missing = test.missing(least)
        upper = box.upper_in_reach(self.tables.weights, choice.unpriced, missing)  # cuts down T₅ and T₆
        smaller = replace(box, upper=upper).with_step_times(*cells.rectangle(still_open))
        inside = self._choose_in_cell(test, smaller, *cells.best())
        smaller = replace(smaller, price=choice.price if inside is None else inside.price)
        proved = max(proved, test.proved(box, least))
        given_away = cells.width + float(self._given_away_by_others(smaller, choice).sum())
        if (
            inside is not None
            and price_is_to_blame(inside, given_away, missing, test.point)
            and self._split_by_device(test, smaller, inside, proved, smaller)
        ):
            return
        self._push_after_grid(test, box, smaller, cells, choice, proved)

    def _push_after_grid(
        self, test: ClosingTest, box: Box, smaller: Box, cells: Cells, choice: Choice, proved: float
    ) -> None:
        """Put the rectangle that a grid leaves open into the queue, halved if the grid gained too little."""
        by_others = self._given_away_by_others(smaller, choice)
        if by_others.max() > cells.width:
            self._halve(test, smaller, int(by_others.argmax()), choice, proved)
        elif share_left(box, smaller) <= ENOUGH:
            self._push(test.relaxation.deepest_cut, proved, smaller)
        else:
            side = int((smaller.upper[STEP_TIMES] - smaller.lower[STEP_TIMES]).argmax())
            self._halve(test, smaller, side, choice, proved)

    def _choose_in_cell(self, test: ClosingTest, box: Box, lower: Floats, upper: Floats) -> Choice | None:
        """The choice in one cell of a box, also given to `consider`; None if the cell holds no plan."""
        cell = box.with_step_times(lower, upper)
        choices = self._choose([cell], test.relaxation.deepest_cut, test.lines)
        if not np.isfinite(choices.least[0]):
            return None
        self.consider(choices.batch_sizes, choices.cuts)
        return choices.of(0, test.per_second)

    def _split_by_device(
        self, test: ClosingTest, box: Box, choice: Choice, proved: float, chosen_in: Box
    ) -> bool:
        """Split a box between an early and a late cut of one device; False if no device has two cuts.

        `chosen_in` is the box in which the choice was made, before it was cut down.
        """
        upper, deepest_cut = chosen_in.upper[TIMES], test.relaxation.deepest_cut
        device = test.relaxation.marginal_device(upper, test.lines, choice, box.forbidden)
        if device is None:
            return False
        i, cut = device
        shape = len(self.tables.fed_up_rate), deepest_cut
        self._push(deepest_cut, proved, *box.split_by_device(i, cut, shape, DEVICE_STEPS))
        return True
