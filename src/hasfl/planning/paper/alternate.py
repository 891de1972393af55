"""Algorithm 2, the paper's planner: improve batch sizes and cuts in turn, until Θ′ settles.

Algorithm 2 is a heuristic without a lower bound. The rounding of Proposition 1 may raise Θ′; the planner then
keeps the older plan. So the result is never worse than a start that satisfies the constraints.
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
from hasfl.theory.rounds import RoundsLaw

TOLERANCE = 1e-6  # the ε of Algorithm 2, relative to Θ′; the paper gives no number, chosen by hand
MAX_ITERATIONS = 30  # iterations of Algorithm 2; chosen by hand, the tests settle in fewer
# Batch sizes of the first plan, in the order of trial. The paper does not say where Algorithm 2 starts: 16 is
# an ordinary batch size, larger ones have less noise, smaller ones need less memory. Chosen by hand.
FIRST_BATCH_SIZES = (16, 32, 64, 8, 4, 2, 1)


def alternate(
    problem: Problem, *, start: Plan | None = None, time_limit: float = math.inf, exhaustive: bool = False
) -> PlanReport:
    """Run Algorithm 2 from `start`, or from `first_plan` if `start` violates a constraint.

    With `exhaustive`, the batch sizes come from the exhaustive search of the paper's Remark instead of
    rounding.
    """
    began = time.monotonic()
    tables, law = CostTables.of(problem), Corollary1.of(problem)
    plan = feasible_start(problem, tables, law, start)
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


def feasible_start(problem: Problem, tables: CostTables, law: RoundsLaw, start: Plan | None) -> Plan:
    """`start`, or `first_plan` if there is no start or if it violates a constraint."""
    if start is not None:
        problem.require_fits(start)
        if _satisfies_constraints(start, tables, law):
            return start
    return first_plan(problem, tables, law)


def _satisfies_constraints(plan: Plan, tables: CostTables, law: RoundsLaw) -> bool:
    """True if a plan satisfies C1, C4 and the limits of the batch sizes."""
    largest = tables.largest_batch[np.arange(len(plan)), plan.cut_index]
    smallest = tables.smallest_batch_upto[plan.deepest_cut - 1]
    fits = (plan.batch_sizes <= largest).all() and (plan.batch_sizes >= smallest).all()
    return bool(fits) and math.isfinite(_value(tables, law, plan))


def first_plan(problem: Problem, tables: CostTables, law: RoundsLaw) -> Plan:
    """A plan that reaches the target: one cut for all devices, and one batch size as far as memory allows.

    A plan that cuts after the first layer has the least drift and the most memory for samples. So if that
    plan does not reach the target with the largest batch sizes, no plan does.
    """
    devices, layers = tables.up_seconds.shape
    for batch_size in (*FIRST_BATCH_SIZES, problem.max_batch):
        for cut in range(1, layers + 1):
            b = np.minimum(batch_size, tables.largest_batch[:, cut - 1])
            if (b >= tables.smallest_batch_upto[cut - 1]).all() and np.isfinite(law.rounds(b, cut)):
                return Plan(b.astype(np.int64), np.full(devices, cut))
    raise Infeasible(why_infeasible(problem, tables, Asked.anything(problem)))


def _next_batches(tables: CostTables, law: Corollary1, plan: Plan, *, exhaustive: bool) -> tuple[IntN, float]:
    """The solution of P1, Eq. (46), for the cuts and T of a plan, and the residual of Newton-Jacobi."""
    b = plan.batch_sizes.astype(float)
    up, down, fed_up, fed_down, _ = tables.parts(b, plan.cuts)
    aggregation = (fed_up + fed_down) / tables.interval
    problem = BatchProblem.of(tables, law, plan.cuts, up=up, down=down, aggregation=aggregation)
    stationary = stationary_batches(problem, b)
    rounded = (exhaustive_batches if exhaustive else proposition_1)(problem, stationary.batch_sizes)
    return rounded.astype(np.int64), stationary.residual


def _next_cuts(tables: CostTables, law: Corollary1, plan: Plan, deadline: float) -> IntN:
    """The solution of P2, Eq. (53), for the batch sizes of a plan."""
    b: FloatN = plan.batch_sizes.astype(float)
    ratio = _value(tables, law, plan) / law.bound.scale  # Θ′ without the factor 2ϑ/γ
    return CutProgram(tables, law, b, deadline).solve(ratio).argmin


def _value(tables: CostTables, law: RoundsLaw, plan: Plan) -> float:
    """Θ′, Eq. (45), with the smallest T₁ to T₆ that R1 to R8 allow; Θ′ then equals Θ."""
    b = plan.batch_sizes.astype(float)
    return float(law.rounds(b, plan.deepest_cut) * tables.round_seconds(b, plan.cuts))


def _better(tables: CostTables, law: Corollary1, old: Plan, new: Plan) -> Plan:
    """The plan with the smaller Θ′; the new one if both are equal."""
    return new if _value(tables, law, new) <= _value(tables, law, old) else old
