"""The entry points of the exact planner: best plan, best cuts, best batch sizes (docs/decisions/0006)."""

import math
import time
from dataclasses import replace

import numpy as np

from hasfl.arrays import IntN
from hasfl.errors import Infeasible, InputError
from hasfl.plan import Plan, PlanReport
from hasfl.planning.exact.fixed_cuts import FixedCuts, best_batches_on_grid, first_batches
from hasfl.planning.exact.search import Search
from hasfl.planning.feasibility import AllowedPlans, why_infeasible
from hasfl.planning.tables import CostTables
from hasfl.problem import Problem
from hasfl.theory.objective import evaluate

# Default relative gap between Θ of the plan and the lower bound. The law of rounds itself misses the rounds
# of trainings by several percent (docs/constants.md), so a smaller gap would not make a better plan; chosen
# by hand.
GAP = 1e-3
# Default time limit of a search, seconds. Hard fleets of 20,000 devices take 5 to 45 s for a gap of 1 %
# (benchmarks/planner_search_2-core-x86_64_2026-11-16.md).
TIME_LIMIT = 60.0
# A box of N devices counts as N + WORK_OF_A_BOX units of work, and a machine with two cores as
# WORK_OF_A_SECOND units per second. Both are rough and set by hand: they must only be the same on every
# machine.
WORK_OF_A_SECOND, WORK_OF_A_BOX = 1.6e5, 50
# Batch sizes of the first plans of a search: powers of two up to the default of max_batch.
FIRST_BATCH_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def box_limit(seconds: float, *, devices: int) -> float:
    """The number of boxes that a search bounds in about `seconds` seconds.

    A search with a limit on boxes in place of seconds finds the same plan on every machine.
    """
    return seconds * WORK_OF_A_SECOND / (WORK_OF_A_BOX + devices)


def best_plan(
    problem: Problem,
    *,
    gap: float = GAP,
    time_limit: float = TIME_LIMIT,
    box_limit: float = math.inf,
    start: Plan | None = None,
) -> PlanReport:
    """The best batch size and cut for every device: Θ within `gap` of the optimum, unless a limit stops it.

    If `time_limit` (seconds) or `box_limit` (boxes of the search) stops the search, the report has the status
    "limit", the best plan so far and the gap that was proved so far. A limit on boxes gives the same plan on
    every machine. `start` is one of the first plans, such as the last plan when rates have changed a little.
    """
    return _search(problem, AllowedPlans.anything(problem), gap, time_limit, start, box_limit)


def best_cuts(
    problem: Problem,
    batch_sizes: IntN,
    *,
    gap: float = GAP,
    time_limit: float = TIME_LIMIT,
    start: Plan | None = None,
) -> PlanReport:
    """The best cuts for fixed batch sizes; the other parameters are those of `best_plan`."""
    problem.require_fits(Plan(batch_sizes, np.ones_like(batch_sizes)))
    return _search(problem, AllowedPlans.these_batches(problem, batch_sizes), gap, time_limit, start)


def best_batches(
    problem: Problem,
    cuts: IntN,
    *,
    gap: float = GAP,
    time_limit: float = TIME_LIMIT,
    start: Plan | None = None,
) -> PlanReport:
    """The best batch sizes for fixed cuts; the other parameters are those of `best_plan`.

    The grid of `fixed_cuts.py` solves the problem. If the grid does not close, the search solves it.
    """
    began = time.monotonic()
    problem.require_fits(Plan(np.ones_like(cuts), cuts))
    _check(problem, gap, start)
    fixed = FixedCuts.of(problem, cuts)
    if fixed.possible:
        first = first_batches(fixed) if start is None else fixed.within_limits(start.batch_sizes)
        if not math.isfinite(fixed.value(first)):
            first = first_batches(fixed)
        if math.isfinite(fixed.value(first)):
            on_grid = best_batches_on_grid(fixed, first, gap, began + time_limit)
            start = Plan(on_grid.batch_sizes.astype(np.int64), cuts)
            if on_grid.lower_bound is not None:
                return _report(start, problem, "optimal", on_grid.lower_bound, on_grid.passes, began)
    seconds_left = max(began + time_limit - time.monotonic(), 0.0)
    return _search(problem, AllowedPlans.these_cuts(problem, cuts), gap, seconds_left, start)


def _search(
    problem: Problem,
    allowed: AllowedPlans,
    gap: float,
    time_limit: float,
    start: Plan | None,
    box_limit: float = math.inf,
) -> PlanReport:
    """The best allowed plan, by the search. Raises Infeasible if no plan is allowed."""
    began = time.monotonic()
    _check(problem, gap, start)
    tables = CostTables.of(problem)
    search = Search(problem, tables, allowed, gap, time_limit, box_limit)
    _consider_first_plans(search, start)
    if search.best_plan is None:
        raise Infeasible(why_infeasible(problem, tables, allowed))
    result = search.run()
    return _report(result.plan, problem, result.status, result.lower_bound, result.boxes, began)


def _check(problem: Problem, gap: float, start: Plan | None) -> None:
    """Raise an error for a gap outside [0, 1] and for a first plan that does not fit the problem."""
    if not 0 <= gap <= 1:
        raise InputError(f"gap must lie between 0 and 1, got {gap!r}")
    if start is not None:
        problem.require_fits(start)


def _report(
    plan: Plan, problem: Problem, status: str, lower_bound: float, iterations: int, began: float
) -> PlanReport:
    """The report of a plan: its numbers by the formulas of `theory`, and the lower bound of the planner."""
    report = evaluate(plan, problem)
    return replace(
        report,
        status=status,
        lower_bound=min(lower_bound, report.objective),
        iterations=iterations,
        seconds=time.monotonic() - began,
    )


def _consider_first_plans(search: Search, start: Plan | None) -> None:
    """Give the search its first plans. If any plan reaches the target, one of the first plans does.

    For each deepest cut there are two choices of cuts: the cut that allows a device the largest batch, and
    the deepest possible cut. Each is combined with the largest batches that fit and with the same batch size
    for all devices, clipped to the limits of each device. The largest batches at the cuts that allow them
    have the least noise of all plans with this deepest cut.
    """
    allowed, tables = search.allowed, search.tables
    for deepest_cut in range(1, len(tables.server_seconds) + 1):
        smallest, largest = allowed.least(tables, deepest_cut), allowed.room(tables, deepest_cut)
        if not largest.any(axis=1).all():
            continue
        deepest = deepest_cut - 1 - (largest[:, ::-1] > 0).argmax(axis=1)
        for index in (largest.argmax(axis=1), deepest):
            most = np.take_along_axis(largest, index[:, None], axis=1)[:, 0]
            batches = np.array([most, *(np.clip(size, smallest, most) for size in FIRST_BATCH_SIZES)])
            search.consider(batches, np.broadcast_to(index + 1, batches.shape))
    if start is not None:
        most = allowed.room(tables, start.deepest_cut)[np.arange(len(start)), start.cut_index]
        smallest = allowed.least(tables, start.deepest_cut)
        if (most >= start.batch_sizes).all() and (start.batch_sizes >= smallest).all():
            search.consider(start.batch_sizes[None].astype(float), start.cuts[None])
