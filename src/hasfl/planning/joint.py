"""The exact planner: the least Θ over batch sizes and cuts, with a certificate (docs/decisions/0006)."""

import math
import time
from dataclasses import replace

import numpy as np

from hasfl.arrays import IntN
from hasfl.errors import Infeasible
from hasfl.plan import Plan, PlanReport
from hasfl.planning.relaxation import Asked
from hasfl.planning.search import Search
from hasfl.planning.tables import CostTables
from hasfl.problem import Problem
from hasfl.theory.objective import evaluate
from hasfl.theory.rounds import Corollary1

GAP = 1e-3


def best_plan(
    problem: Problem, *, gap: float = GAP, time_limit: float = math.inf, start: Plan | None = None
) -> PlanReport:
    """The best batch size and cut for every device, within `gap` of the optimum unless time runs out.

    `start` is a plan to begin with, such as the last one when rates have changed a little.
    """
    tables = CostTables.of(problem)
    largest = np.full(len(problem.fleet), float(problem.max_batch))
    asked = Asked(np.ones_like(largest), largest, np.ones(tables.up_seconds.shape, dtype=bool))
    return _solve(problem, tables, asked, gap, time_limit, start)


def best_batches(
    problem: Problem, cuts: IntN, *, gap: float = GAP, time_limit: float = math.inf, start: Plan | None = None
) -> PlanReport:
    """The best batch sizes for given cuts."""
    tables = CostTables.of(problem)
    largest = np.full(len(problem.fleet), float(problem.max_batch))
    layers = np.arange(1, len(problem.profile) + 1)
    asked = Asked(np.ones_like(largest), largest, layers == np.asarray(cuts)[:, None])
    return _solve(problem, tables, asked, gap, time_limit, start)


def best_cuts(
    problem: Problem,
    batch_sizes: IntN,
    *,
    gap: float = GAP,
    time_limit: float = math.inf,
    start: Plan | None = None,
) -> PlanReport:
    """The best cuts for given batch sizes."""
    tables = CostTables.of(problem)
    fixed = np.asarray(batch_sizes, dtype=float)
    asked = Asked(fixed, fixed, np.ones(tables.up_seconds.shape, dtype=bool))
    return _solve(problem, tables, asked, gap, time_limit, start)


def _solve(
    problem: Problem, tables: CostTables, asked: Asked, gap: float, time_limit: float, start: Plan | None
) -> PlanReport:
    began = time.monotonic()
    search = Search(tables, Corollary1.of(problem), asked, gap, time_limit)
    _consider_first_plans(search, start)
    if search.best_plan is None:
        raise Infeasible(why_infeasible(problem, tables, asked))
    found = search.run()
    assert found.plan is not None
    report = evaluate(found.plan, problem)
    return replace(
        report,
        status=found.status,
        lower_bound=min(found.lower_bound, report.objective),
        iterations=found.boxes,
        seconds=time.monotonic() - began,
    )


def _consider_first_plans(search: Search, start: Plan | None) -> None:
    """Plans to begin with; if any plan reaches the target, one of them does.

    For each deepest cut, every device takes the cut with the most room and as many samples as fit: no plan
    has less sampling noise. Then the same cut and batch size for all, as far as they fit.
    """
    tables, asked = search.tables, search.asked
    room = np.minimum(tables.largest_batch, asked.largest_batch[:, None])
    room = np.where((room >= asked.smallest_batch[:, None]) & asked.cuts, room, 0.0)
    for deepest_cut in range(1, room.shape[1] + 1):
        within = room[:, :deepest_cut]
        if not within.any(axis=1).all():
            continue
        deepest = deepest_cut - 1 - (within[:, ::-1] > 0).argmax(axis=1)
        for index in (within.argmax(axis=1), deepest):
            most = np.take_along_axis(within, index[:, None], axis=1)[:, 0]
            batches = np.array([most, *(np.clip(2.0**k, asked.smallest_batch, most) for k in range(7))])
            search.consider(batches, np.broadcast_to(index + 1, batches.shape))
    if start is not None:
        search.consider(start.batch_sizes[None].astype(float), start.cuts[None])


def why_infeasible(problem: Problem, tables: CostTables, asked: Asked) -> str:
    """Which constraint of which device forbids every plan."""
    fits = (tables.largest_batch >= asked.smallest_batch[:, None]) & asked.cuts
    if (stuck := np.flatnonzero(~fits.any(axis=1))).size:
        name = problem.fleet.names[stuck[0]]
        return (
            f"no plan fits the memory of device {name!r} (C4): even one sample at the smallest cut needs more "
            f"than its {problem.fleet.memory[stuck[0]]:.4g} bit: give it more memory or leave it out"
        )
    model = Corollary1.of(problem)
    room = np.where(fits, np.minimum(tables.largest_batch, asked.largest_batch[:, None]), 0.0)
    floors = [
        problem.target - model.margin_upto[j] + model.per_inverse_batch * (1 / room[:, : j + 1].max(axis=1)).sum()
        for j in range(room.shape[1])
        if room[:, : j + 1].any(axis=1).all()
    ]
    return (
        f"no plan reaches target {problem.target:.6g} (C1): with the largest batches that fit, the floor of the "
        f"bound is still {min(floors):.6g}: raise the target, lower the learning rate, or raise max_batch"
    )
