"""The exact planner: the least Θ over batch sizes and cuts, with a certificate (docs/decisions/0006)."""

import math
import time
from dataclasses import replace

import numpy as np

from hasfl.arrays import IntN
from hasfl.errors import Infeasible, InputError
from hasfl.plan import Plan, PlanReport
from hasfl.planning.exact.batch_grid import best_batches_on_grid, first_batches
from hasfl.planning.exact.fixed_cuts import FixedCuts
from hasfl.planning.exact.search import Search
from hasfl.planning.feasibility import Asked, why_infeasible
from hasfl.planning.tables import CostTables
from hasfl.problem import Problem
from hasfl.theory.objective import evaluate

GAP = 1e-3
TIME_LIMIT = 60.0  # seconds


def best_plan(
    problem: Problem,
    *,
    gap: float = GAP,
    time_limit: float = TIME_LIMIT,
    box_limit: float = math.inf,
    start: Plan | None = None,
) -> PlanReport:
    """The best batch size and cut for every device, within `gap` of the optimum unless a limit is met.

    When a limit is met, the report's status is "limit", its plan is the best one found, and its gap is what
    was proved. A limit on boxes, the steps of the search, gives the same plan on every machine. `start` is a
    plan to begin with, such as the last one when rates have changed a little.
    """
    return _search(problem, Asked.anything(problem), gap, time_limit, start, box_limit)


def best_cuts(
    problem: Problem,
    batch_sizes: IntN,
    *,
    gap: float = GAP,
    time_limit: float = TIME_LIMIT,
    start: Plan | None = None,
) -> PlanReport:
    """The best cuts for given batch sizes."""
    problem.require_fits(Plan(batch_sizes, np.ones_like(batch_sizes)))
    return _search(problem, Asked.these_batches(problem, batch_sizes), gap, time_limit, start)


def best_batches(
    problem: Problem,
    cuts: IntN,
    *,
    gap: float = GAP,
    time_limit: float = TIME_LIMIT,
    start: Plan | None = None,
) -> PlanReport:
    """The best batch sizes for given cuts: on a grid, or by the search where the grid does not close."""
    began = time.monotonic()
    problem.require_fits(Plan(np.ones_like(cuts), cuts))
    _check(problem, gap, start)
    fixed = FixedCuts.of(problem, cuts)
    if fixed.possible:
        first = first_batches(fixed) if start is None else fixed.within_limits(start.batch_sizes)
        if not math.isfinite(fixed.value(first)):
            first = first_batches(fixed)
        if math.isfinite(fixed.value(first)):
            found = best_batches_on_grid(fixed, first, gap, began + time_limit)
            start = Plan(found.batch_sizes.astype(np.int64), cuts)
            if found.lower_bound is not None:
                return _report(start, problem, "optimal", found.lower_bound, found.passes, began)
    left = max(began + time_limit - time.monotonic(), 0.0)
    return _search(problem, Asked.these_cuts(problem, cuts), gap, left, start)


def _search(
    problem: Problem,
    asked: Asked,
    gap: float,
    time_limit: float,
    start: Plan | None,
    box_limit: float = math.inf,
) -> PlanReport:
    began = time.monotonic()
    _check(problem, gap, start)
    tables = CostTables.of(problem)
    search = Search(problem, tables, asked, gap, time_limit, box_limit)
    _consider_first_plans(search, start)
    if search.best_plan is None:
        raise Infeasible(why_infeasible(problem, tables, asked))
    found = search.run()
    return _report(found.plan, problem, found.status, found.lower_bound, found.boxes, began)


def _check(problem: Problem, gap: float, start: Plan | None) -> None:
    if not 0 <= gap <= 1:
        raise InputError(f"gap must lie between 0 and 1, got {gap!r}")
    if start is not None:
        problem.require_fits(start)


def _report(
    plan: Plan, problem: Problem, status: str, lower_bound: float, iterations: int, began: float
) -> PlanReport:
    """What the formulas themselves say of a plan that was found, with its certificate."""
    report = evaluate(plan, problem)
    return replace(
        report,
        status=status,
        lower_bound=min(lower_bound, report.objective),
        iterations=iterations,
        seconds=time.monotonic() - began,
    )


def _consider_first_plans(search: Search, start: Plan | None) -> None:
    """Plans to begin with; if any plan reaches the target, one of them does.

    For each deepest cut, every device takes the cut with the most room and as many samples as fit: no plan
    has less sampling noise. Then the same batch size for all, at that cut or the deepest, as far as they fit.
    """
    asked, tables = search.asked, search.tables
    for deepest_cut in range(1, len(tables.server_seconds) + 1):
        smallest, within = asked.least(tables, deepest_cut), asked.room(tables, deepest_cut)
        if not within.any(axis=1).all():
            continue
        deepest = deepest_cut - 1 - (within[:, ::-1] > 0).argmax(axis=1)
        for index in (within.argmax(axis=1), deepest):
            most = np.take_along_axis(within, index[:, None], axis=1)[:, 0]
            batches = np.array([most, *(np.clip(2.0**k, smallest, most) for k in range(7))])
            search.consider(batches, np.broadcast_to(index + 1, batches.shape))
    if start is not None:
        room = asked.room(tables, start.deepest_cut)[np.arange(len(start)), start.cut_index]
        smallest = asked.least(tables, start.deepest_cut)
        if (room >= start.batch_sizes).all() and (start.batch_sizes >= smallest).all():
            search.consider(start.batch_sizes[None].astype(float), start.cuts[None])
