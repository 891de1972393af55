"""Lower bounds of loose or stopped searches, against optima that are proved to a tight gap.

A search stops early because its gap is loose, or because it may bound few boxes. What it has proved then
rests on boxes that are still open, and on a plan that may be bad. Its lower bound must hold all the same.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.errors import Infeasible
from hasfl.plan import Plan
from hasfl.planning.exact import search
from hasfl.planning.exact.cells import bounded_cells
from hasfl.planning.exact.fixed_cuts import BatchLine, FixedCuts, Window, _Grid
from hasfl.planning.exact.planner import best_batches, best_cuts, best_plan
from hasfl.planning.exact.relaxation import Relaxation
from hasfl.planning.exact.search import Box, ClosingTest, Found, Search, corners
from hasfl.planning.exhaustive import objectives
from hasfl.planning.feasibility import AllowedPlans
from hasfl.planning.tables import STEP_TIMES, T3, T4, TIMES, CostTables, Ints
from hasfl.problem import Problem
from hasfl.theory.objective import law_of
from hasfl.theory.rounds import Floats, RoundsLaw
from tests.planning.random_problems import measured, random_problem

ROUNDOFF = 1 + 1e-9
TIGHT, SECONDS = 1e-7, 30.0
LAWS = ("paper", "measured", "paper with a price", "measured with a price")
GAPS = (0.01, 0.1, 0.5, 0.9)
BOXES = (0, 1, 2, 4, 8, 16, 32)
SERVER_LINKS = ("server_fed_up_rate", "server_fed_down_rate")
SEEDS = range(5000, 5008)  # of 5 to 20 devices; some have no plan


@cache
def problem_of(seed: int, law: str) -> Problem:
    """A problem under one of the laws. With an odd seed, the edge server has slow links to the fed server.

    Then T₅ and T₆ depend on the cuts of all devices (R6, R8).
    """
    problem = random_problem(seed, devices=(5, 20), layers=(2, 6), max_batch=32)
    if seed % 2:
        slow = {field: getattr(problem.fleet, field) / 30 for field in SERVER_LINKS}
        problem = replace(problem, fleet=replace(problem.fleet, **slow))
    if law.startswith("measured"):
        problem = measured(problem, seed)
    if law.endswith("price"):
        norms = np.random.default_rng(seed).random(len(problem.profile)) < 0.6
        problem = replace(
            problem,
            profile=replace(problem.profile, batch_norm_of=norms),
            constants=replace(problem.constants, single_noise=4.0),
        )
    return problem


@cache
def optimum(seed: int, law: str) -> tuple[Plan, float] | None:
    """The best plan and its Θ, of which nothing more than a share of TIGHT can be saved."""
    try:
        report = best_plan(problem_of(seed, law), gap=TIGHT, time_limit=SECONDS)
    except Infeasible:
        return None
    assert report.status == "optimal"
    return report.plan, report.objective


def solved(law: str) -> Iterator[tuple[int, Problem, Plan, float]]:
    """The problems that have a plan, with their optima."""
    found = [(seed, best) for seed in SEEDS if (best := optimum(seed, law)) is not None]
    assert len(found) >= 4
    for seed, (plan, least) in found:
        yield seed, problem_of(seed, law), plan, least


@pytest.mark.parametrize("law", LAWS)
def test_a_loose_gap_covers_what_could_be_saved(law: str) -> None:
    """Also of a search for batch sizes alone that begins with bad ones."""
    for seed, problem, plan, least in solved(law):
        bad = Plan(bad_batches(problem, plan, np.random.default_rng(seed)), plan.cuts)
        for gap in GAPS:
            for report in (
                best_plan(problem, gap=gap),
                best_batches(problem, plan.cuts, gap=gap),
                best_batches(problem, plan.cuts, gap=gap, start=bad),
                best_cuts(problem, plan.batch_sizes, gap=gap),
            ):
                assert report.status == "optimal"
                assert report.lower_bound <= least * ROUNDOFF, (seed, gap)
                assert least <= report.objective * ROUNDOFF * (1 + TIGHT), (seed, gap)
                assert 1 - least / report.objective <= report.gap + 1e-9 <= gap + 2e-9, (seed, gap)


def bad_batches(problem: Problem, plan: Plan, rng: np.random.Generator) -> Ints:
    """Of some batch sizes between 1 and those of a plan, the worst ones that reach the target."""
    tried = np.vstack([plan.batch_sizes, plan.batch_sizes * rng.random((100, 1)) ** 3]).astype(np.int64)
    tried = np.maximum(tried, 1)
    values = objectives(problem, tried, np.broadcast_to(plan.cuts, tried.shape))
    worst: Ints = tried[np.where(np.isfinite(values), values, 0.0).argmax()]
    return worst


def some_plans(
    problem: Problem, deepest_cut: int, count: int, rng: np.random.Generator
) -> tuple[Floats, Ints]:
    """(count, N) Random batch sizes and cuts that fit into memory, with exactly this deepest cut.

    The first one has the smallest batches and the deepest cuts.
    """
    tables = CostTables.of(problem)
    allowed = AllowedPlans.anything(problem)
    room, least = allowed.room(tables, deepest_cut), allowed.least(tables, deepest_cut)
    fits = room > 0
    if not fits.any(axis=1).all() or not fits[:, -1].any():
        return np.empty((0, len(room))), np.empty((0, len(room)), dtype=np.int64)
    cuts = np.where(fits, rng.random((count, *room.shape)), -1.0).argmax(axis=2) + 1
    cuts[np.arange(count), rng.choice(np.flatnonzero(fits[:, -1]), count)] = deepest_cut
    cuts[0] = deepest_cut - fits[:, ::-1].argmax(axis=1)
    most = np.take_along_axis(room, cuts.T - 1, axis=1).T
    share = rng.random((count, 1)) ** rng.choice([0.3, 1.0, 3.0], (count, 1))  # small, even and large ones
    spread = np.clip(share + 0.2 * rng.standard_normal(most.shape), 0, 1)
    spread[0] = 0
    return np.floor(least + spread * (most - least)), cuts


def stopped(problem: Problem, batch_sizes: Floats, cuts: Ints, gap: float, boxes: int) -> Found:
    """A search that begins with one plan, however bad, and does not improve its batch sizes first."""
    found = Search(problem, CostTables.of(problem), AllowedPlans.anything(problem), gap, SECONDS, boxes)
    found.consider(batch_sizes[None], cuts[None])
    found.polished = cuts
    return found.run()


@pytest.mark.parametrize("law", LAWS)
def test_a_search_that_was_stopped_proves_no_more_than_the_optimum(
    law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One box at a time, and from plans that are up to many times worse than the best one."""
    monkeypatch.setattr(search, "ELEMENTS", 1)
    limits, close = 0, 0
    for seed, problem, best, least in solved(law):
        rng = np.random.default_rng(seed)
        batch_sizes, cuts = some_plans(problem, best.deepest_cut, 400, rng)
        values = objectives(problem, batch_sizes.astype(np.int64), cuts)
        order = values.argsort()[: np.isfinite(values).sum()]
        for start in order[[0, len(order) // 2, -1]] if len(order) else ():
            for gap, boxes in itertools.product((0.01, 0.9), BOXES):
                found = stopped(problem, batch_sizes[start], cuts[start], gap, boxes)
                assert 0 <= found.lower_bound <= least * ROUNDOFF, (seed, values[start] / least, gap, boxes)
                limits += found.status == "limit"
                close += found.lower_bound >= least / 2
    assert limits >= 20
    assert close >= 20


def cheapest_plans(
    relaxation: Relaxation, law: RoundsLaw, batch_sizes: Floats, cuts: Ints
) -> tuple[Floats, Ints]:
    """The plans that devices choose where other plans are the upper corners: close to the lower bounds."""
    tables, deepest_cut, root = relaxation.tables, relaxation.deepest_cut, relaxation.root()
    assert root is not None
    seconds = tables.round_seconds(batch_sizes, cuts)
    noise = law.noise.total(batch_sizes, deepest_cut)
    values, slopes = law.rounds_at(noise, deepest_cut) * seconds, law.slope(seconds, noise, deepest_cut)
    if not np.isfinite(values).any():
        return batch_sizes[:0], cuts[:0]
    upper = tables.parts(batch_sizes, cuts)[TIMES].T
    lower = np.broadcast_to(root[0], upper.shape)
    lines = law.lines(float(np.median(values[np.isfinite(values)])), deepest_cut, slopes, slopes)
    choices = relaxation.choose((lower, upper), lines, np.zeros(len(upper)), steps=6, forbidden=None)
    found = np.isfinite(choices.least) & (choices.cuts.max(axis=1) == deepest_cut)
    return choices.batch_sizes[found], choices.cuts[found]


@pytest.mark.parametrize("law", LAWS)
def test_a_box_is_bounded_below_all_its_plans(law: str) -> None:
    """The line of a box, the proof that follows, what is cut off from the box, and the cells of its grid."""
    bounded = 0
    for seed in range(6000, 6100):
        rng, problem = np.random.default_rng(seed), problem_of(seed, law)
        tables, rounds = CostTables.of(problem), law_of(problem)
        deepest_cut = int(rng.integers(1, len(problem.profile) + 1))
        batch_sizes, cuts = some_plans(problem, deepest_cut, 12, rng)
        if not len(cuts):
            continue
        relaxation = Relaxation(tables, AllowedPlans.anything(problem), rounds.noise, deepest_cut)
        cheap = cheapest_plans(relaxation, rounds, batch_sizes, cuts)
        batch_sizes, cuts = np.vstack([batch_sizes, cheap[0]]), np.vstack([cuts, cheap[1]])
        noise = rounds.noise.total(batch_sizes, deepest_cut)
        seconds = tables.round_seconds(batch_sizes, cuts)
        values = rounds.rounds_at(noise, deepest_cut) * seconds
        if not np.isfinite(values).any():
            continue
        sides = np.vstack([tables.parts(batch_sizes, cuts)[TIMES], rounds.slope(seconds, noise, deepest_cut)])
        finite = values[np.isfinite(values)]
        root = relaxation.root()
        assert root is not None
        assert (root[0] <= sides[TIMES].min(axis=1) * ROUNDOFF).all()
        assert (root[1] * ROUNDOFF >= sides[TIMES].max(axis=1)).all()
        for _ in range(8):
            inside = rng.choice(len(values), int(rng.integers(1, 5)))
            lower, upper = sides[:, inside].min(axis=1), sides[:, inside].max(axis=1)
            widths = rng.choice([0.0, 0.1, 1.0], (2, 5))
            value = float(
                min(values[inside].min(), finite.max()) * 10 ** rng.uniform(-0.5, rng.choice([0.5, 1.5]))
            )
            box = Box(lower / (1 + widths[0]), upper * (1 + widths[1]))
            lines = rounds.lines(value, deepest_cut, *(corner[:, -1] for corner in corners([box])))
            test = ClosingTest(value, lines, relaxation, rounds)
            left = test.per_second * seconds[inside] + float(lines.per_noise[0]) * noise[inside]
            allowed = 1e-9 * (float(lines.whole[0]) + left)

            times = box.lower[None, TIMES], box.upper[None, TIMES]
            second = test.per_second / (tables.server_fed_up_rate * tables.interval)  # of one bit
            price = second * 10 ** rng.uniform(-1, 1, 1)
            steps = int(rng.integers(0, 6))
            forbidden = rng.random((len(problem.fleet), deepest_cut)) < rng.choice([0.0, 0.4])
            forbidden[np.arange(len(problem.fleet)), cuts[inside] - 1] = False
            choices = relaxation.choose(times, lines, price, steps=steps, forbidden=forbidden[None])
            reached = test.per_second * float(box.lower[TIMES] @ tables.weights) + float(choices.least[0])
            assert (reached <= left + allowed).all(), seed
            assert test.proved(box, reached) <= values[inside].min() * ROUNDOFF, seed

            least = float(box.lower[TIMES] @ tables.weights) + relaxation.least_server_seconds
            assert least <= seconds[inside].min() * ROUNDOFF, seed
            assert relaxation.least_noise(times[1])[0] <= noise[inside].min() * ROUNDOFF, seed

            choice = choices.of(0, test.per_second)
            reach = box.upper_in_reach(tables.weights, choice.unpriced, test.missing(reached))
            cut_off = (sides[TIMES][:, inside] > reach[TIMES, None] * ROUNDOFF).any(axis=0)
            assert (left + allowed >= lines.needed)[cut_off].all(), seed

            cells = bounded_cells(relaxation, (times[0][0], times[1][0]), lines, float(price[0]), forbidden)
            rows, columns = (
                np.clip(np.searchsorted(edges, sides[k, inside], side="right") - 1, 0, len(edges) - 2)
                for k, edges in ((T3, cells.up_edges), (T4, cells.down_edges))
            )
            assert (cells.bounds[rows, columns] <= left + allowed).all(), seed
            still_open = cells.bounds < test.needed
            if still_open.any():
                low, high = cells.rectangle(still_open)
                steps_of = sides[STEP_TIMES][:, inside].T
                cut_off = ((steps_of < low / ROUNDOFF) | (steps_of > high * ROUNDOFF)).any(axis=1)
                assert (left + allowed >= lines.needed)[cut_off].all(), seed
            bounded += 1
    assert bounded >= 100


SIDES = st.lists(st.floats(0, 1), min_size=5, max_size=5).map(np.array)


@given(SIDES, st.integers(0, 4), st.floats(0, 1))
def test_both_halves_of_a_box_together_hold_all_its_plans(plan: Floats, side: int, middle: float) -> None:
    halves = Box(np.zeros(5), np.ones(5)).halves(side, middle)
    assert any((half.lower <= plan).all() and (plan <= half.upper).all() for half in halves)
    assert sum(float(np.prod(half.upper - half.lower)) for half in halves) == pytest.approx(1)  # no overlap


@given(st.integers(1, 4), st.integers(2, 5), st.data())
def test_boxes_split_by_device_together_hold_all_cuts(devices: int, layers: int, data: st.DataObject) -> None:
    """Each cut of the device is in one box. All others are in both, unless they were excluded before."""
    before = np.array(
        data.draw(st.lists(st.booleans(), min_size=devices * layers, max_size=devices * layers))
    )
    before = before.reshape(devices, layers)
    device, cut = data.draw(st.integers(0, devices - 1)), data.draw(st.integers(1, layers - 1))
    parts = Box(np.zeros(5), np.ones(5), forbidden=before).split_by_device(device, cut, before.shape, 1)
    expected = np.where(before, 0, len(parts))
    expected[device] = ~before[device]
    held = np.sum([~part.forbidden for part in parts], axis=0)
    assert np.array_equal(held, expected)


def paying_plans(fixed: FixedCuts, plans: Floats, rng: np.random.Generator) -> list[Floats]:
    """The batch sizes that pay under limits on T₃ and T₄: close to the lower bounds."""
    values = [fixed.value(b) for b in plans]
    best = plans[int(np.argmin(values))]
    if not np.isfinite(min(values)):
        return []
    slope = np.array([fixed.slope(best)])
    line = BatchLine.at(fixed, min(values), slope, slope)
    corner = np.array([(best * each).max() for each in (fixed.up_seconds, fixed.down_seconds)])
    return [line.limit(corner * 10 ** rng.uniform(-0.5, 0.5, 2)) for _ in range(8)]


@pytest.mark.parametrize("law", LAWS)
def test_a_window_of_fixed_cuts_is_bounded_below_all_its_plans(law: str) -> None:
    """The line of a window, the cells of its grid, and what is cut off from the window."""
    bounded = 0
    for seed in range(6000, 6100):
        rng, problem = np.random.default_rng(seed), problem_of(seed, law)
        _, cuts = some_plans(problem, int(rng.integers(1, len(problem.profile) + 1)), 1, rng)
        if not len(cuts):
            continue
        fixed = FixedCuts.of(problem, cuts[0])
        few, many = fixed.smallest_batch, np.floor(fixed.largest_batch)
        plans = np.floor(few + rng.random((8, 1)) * rng.random((8, len(many))) * (many - few))
        plans = np.vstack([plans, *paying_plans(fixed, plans, rng)])
        values = np.array([fixed.value(b) for b in plans])
        plans, values = plans[np.isfinite(values)], values[np.isfinite(values)]
        if not len(plans):
            continue
        seconds = np.array([fixed.seconds(b) for b in plans])
        noise = np.array([fixed.noise(b) for b in plans])
        slopes = np.array([fixed.slope(b) for b in plans])
        low, high = (np.array([slope]) for slope in (slopes.min() * rng.uniform(0.3, 1), slopes.max()))
        line = BatchLine.at(fixed, float(values.min() * 10 ** rng.uniform(-0.3, 0.5)), low, high)
        left = line.per_second * seconds + line.y * noise
        allowed = 1e-9 * (line.whole + left)
        sides = np.array([(plans * each).max(axis=1) for each in (fixed.up_seconds, fixed.down_seconds)])
        window = Window(sides.min(axis=1) * rng.uniform(0.5, 1), sides.max(axis=1) * rng.uniform(1, 2))
        grid = _Grid.of(line, window)
        row, column = (
            np.maximum(np.searchsorted(edges, side, side="right") - 1, 0)
            for edges, side in zip((grid.up_edges, grid.down_edges), sides, strict=True)
        )
        assert (line.bound(window) <= left + allowed).all(), seed
        assert (grid.bounds[row, column] <= left + allowed).all(), seed
        for smaller in (
            line.reachable(window),
            line.narrowed(window, 0),
            line.narrowed(window, 1),
            grid.open_window(),
        ):
            cut_off = np.full(sides.shape, True)
            if smaller is not None:
                below = sides < smaller.low[:, None] / ROUNDOFF
                cut_off = below | (sides > smaller.high[:, None] * ROUNDOFF)
            assert (left + allowed >= line.needed)[cut_off.any(axis=0)].all(), seed
        bounded += 1
    assert bounded >= 15
