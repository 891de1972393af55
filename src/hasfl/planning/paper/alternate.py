"""Algorithm 2, the paper's planner: batch sizes and cuts in turn, until Θ′ settles.

A heuristic. It never returns anything worse than a start that keeps the constraints: the rounding of
Proposition 1 may raise Θ′, and then the older plan is kept.
"""

import math
import time
from dataclasses import replace

import numpy as np

from hasfl.arrays import FloatN, IntN
from hasfl.errors import Infeasible
from hasfl.plan import Plan, PlanReport
from hasfl.planning.feasibility import Asked, why_infeasible
from hasfl.planning.paper.batches import BatchProblem, exhaustive_batches, proposition_1, stationary_batches
from hasfl.planning.paper.cuts import CutProgram
from hasfl.planning.tables import CostTables
from hasfl.problem import Problem
from hasfl.theory.bound import Corollary1
from hasfl.theory.objective import evaluate

TOLERANCE = 1e-6  # the paper's ε of Algorithm 2, relative
MAX_ITERATIONS = 30


def alternate(
    problem: Problem, *, start: Plan | None = None, time_limit: float = math.inf, exhaustive: bool = False
) -> PlanReport:
    """Run Algorithm 2 from a start; `exhaustive` searches the Remark's combinations instead of rounding."""
    began = time.monotonic()
    tables, law = CostTables.of(problem), Corollary1.of(problem)
    plan = start or first_plan(problem, tables, law)
    problem.require_fits(plan)
    if not _usable(plan, tables, law):
        plan = first_plan(problem, tables, law)
    path, residual, status = [_value(tables, law, plan)], 0.0, "limit"
    while status == "limit" and len(path) <= MAX_ITERATIONS:
        batch_sizes, residual = _next_batches(tables, law, plan, exhaustive=exhaustive)
        plan = _better(tables, law, plan, Plan(batch_sizes, plan.cuts))
        try:
            cuts = _next_cuts(tables, law, plan, began + time_limit)
        except TimeoutError:
            break
        plan = _better(tables, law, plan, Plan(plan.batch_sizes, cuts))
        path.append(_value(tables, law, plan))
        status = "settled" if path[-2] - path[-1] <= TOLERANCE * path[-1] else "limit"
    return replace(
        evaluate(plan, problem),
        status=status,
        iterations=len(path) - 1,
        residual=residual,
        path=tuple(path),
        seconds=time.monotonic() - began,
    )


def _usable(start: Plan, tables: CostTables, law: Corollary1) -> bool:
    """Whether a start keeps the constraints."""
    room = tables.largest_batch[np.arange(len(start)), start.cut_index]
    fewest = tables.smallest_batch_upto[start.deepest_cut - 1]
    fits = (start.batch_sizes <= room).all() and (start.batch_sizes >= fewest).all()
    return bool(fits) and math.isfinite(_value(tables, law, start))


def first_plan(problem: Problem, tables: CostTables, law: Corollary1) -> Plan:
    """A start that reaches the target: the same for all, as far as memory allows.

    No plan has less drift or more room for samples than one that cuts after the first layer, so if that
    does not reach the target with the largest batches, nothing does.
    """
    devices, layers = tables.up_seconds.shape
    for batch_size in (16, 32, 64, 8, 4, 2, 1, problem.max_batch):
        for cut in range(1, layers + 1):
            b = np.minimum(batch_size, tables.largest_batch[:, cut - 1])
            if (b >= tables.smallest_batch_upto[cut - 1]).all() and np.isfinite(law.rounds(b, cut)):
                return Plan(b.astype(np.int64), np.full(devices, cut))
    raise Infeasible(why_infeasible(problem, tables, Asked.anything(problem)))


def _next_batches(tables: CostTables, law: Corollary1, plan: Plan, *, exhaustive: bool) -> tuple[IntN, float]:
    """P1 with the cuts and T of a plan, and how far from stationary Newton-Jacobi ended."""
    b = plan.batch_sizes.astype(float)
    up, down, fed_up, fed_down, _ = tables.parts(b, plan.cuts)
    aggregation = (fed_up + fed_down) / tables.interval
    problem = BatchProblem.of(tables, law, plan.cuts, up=up, down=down, aggregation=aggregation)
    stationary = stationary_batches(problem, b)
    rounded = (exhaustive_batches if exhaustive else proposition_1)(problem, stationary.batch_sizes)
    return rounded.astype(np.int64), stationary.residual


def _next_cuts(tables: CostTables, law: Corollary1, plan: Plan, deadline: float) -> IntN:
    """P2 with the batch sizes of a plan."""
    b: FloatN = plan.batch_sizes.astype(float)
    ratio = _value(tables, law, plan) / law.bound.scale
    return CutProgram(tables, law, b, deadline).solve(ratio).argmin


def _value(tables: CostTables, law: Corollary1, plan: Plan) -> float:
    """Θ′ with T tight, which is Θ."""
    b = plan.batch_sizes.astype(float)
    return float(law.rounds(b, plan.deepest_cut) * tables.round_seconds(b, plan.cuts))


def _better(tables: CostTables, law: Corollary1, old: Plan, new: Plan) -> Plan:
    return new if _value(tables, law, new) <= _value(tables, law, old) else old
