"""Algorithm 2, the paper's planner: improve batch sizes and cuts in turn, until Θ′ falls no more.

Algorithm 2 is a heuristic without a lower bound. The rounding of Proposition 1 may raise Θ′; the planner then
keeps the older plan. So the result is never worse than a start that satisfies the constraints.

**With constants that are measured in training** (docs/decisions/0020). Algorithm 2 needs rounds of
Corollary 1's form: a number over ε minus a term of the batch sizes minus a term of the deepest cut J. The
measured law (`theory/rounds.py`) has another form:

    R = R∞ (1 + x),     x = skew_J + w_J S + q_J S²,     w_J = u (1 + drift_J),     u = noise/N        (law)

S = Σ_i n(b_i), and q_J is 0 without curvature. v is q_J without drift.

So Algorithm 2 gets another problem, whose Corollary 1 *touches* the law at a reference plan: there both have
the same value, and the same derivatives by S, skew_J and drift_J. The index 0 means the reference plan.

1. The products of S and J are replaced by their terms of first order in S, w_J and q_J:

       w_J S → w_0 S + w_J S₀ − w_0 S₀,        q_J S² → 2 q_0 S₀ S + q_J S₀² − 2 q_0 S₀²

   Their sum with skew_J is y. Without curvature x − y = (w_J − w_0) (S − S₀).

2. 1 + y is replaced by (1 + x₀)² / (1 + 2 x₀ − y), which has the same value and derivative at y = x₀.
3. Corollary 1 says R = (2ϑ/γ) / (ε − drift term − w S). So

       2ϑ/γ = R∞ (1 + x₀)²,     w = w_0 + 2 q_0 S₀,     drift term = skew_J + (w_J − u) S₀ + (q_J − v) S₀²,
       ε = 1 + 2 x₀ + (w_0 − u) S₀ + (2 q_0 − v) S₀²                                           (touching)

(1 + y)(1 + 2 x₀ − y) = (1 + x₀)² − (y − x₀)², so the quotient of step 2 is never below 1 + y. Without
curvature, y = x by step 1 if S = S₀ or w_J = w_0. So with the S or the drift of the reference plan, Corollary
1 gives no fewer rounds than the law, and a plan that is better by Corollary 1 is better by the law. A plan
that differs in both may have x > y, and so may any plan with curvature. So every plan that Algorithm 2 finds
is evaluated with the law.

Example: R∞ = 100, noise = 4, one device with b = 4, and no drift or skew give S₀ = 1/4, x₀ = 1 and R = 200.
Corollary 1 has 2ϑ/γ = 400, w = 4 and ε = 3. For b = 4 it gives 400 / (3 − 1) = 200 rounds, as the law does.
For b = 8 it gives 400 / (3 − 0.5) = 160 rounds, and the law gives 150.
"""

import math
import time
from dataclasses import replace

import numpy as np

from hasfl.arrays import FloatN, IntN
from hasfl.constants import BoundConstants
from hasfl.errors import Infeasible
from hasfl.plan import Plan, PlanReport
from hasfl.planning.feasibility import AllowedPlans, why_infeasible
from hasfl.planning.paper.batches import BatchProblem, exhaustive_batches, proposition_1, stationary_batches
from hasfl.planning.paper.cuts import CutProgram
from hasfl.planning.tables import CostTables
from hasfl.problem import Problem
from hasfl.theory.bound import Corollary1
from hasfl.theory.objective import evaluate
from hasfl.theory.rounds import MeasuredRounds, RoundsLaw

TOLERANCE = 1e-6  # the ε of Algorithm 2, as a share of Θ′; the paper gives no number, chosen by hand
MAX_ITERATIONS = 30  # most iterations of Algorithm 2; chosen by hand, the tests settle in fewer
# Batch sizes of the first plan, in the order of trial. The paper does not say where Algorithm 2 starts: 16 is
# an ordinary batch size, larger ones have less noise, smaller ones need less memory. Chosen by hand.
FIRST_BATCH_SIZES = (16, 32, 64, 8, 4, 2, 1)
MOST_REFERENCES = 50  # most reference plans, one after the other; chosen by hand, the tests settle with fewer


def algorithm_2(problem: Problem, *, start: Plan | None = None, time_limit: float = math.inf) -> PlanReport:
    """Run Algorithm 2 with the constants of a problem, either the paper's or measured constants.

    Algorithm 2 starts at `start`, or at `first_plan` if `start` violates a constraint.
    """
    if isinstance(problem.constants, BoundConstants):
        return alternate(problem, start=start, time_limit=time_limit)
    return _alternate_by_touching(problem, start, time_limit)


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
        largest = tables.largest_batch[np.arange(len(start)), start.cut_index]
        smallest = tables.smallest_batch_upto[start.deepest_cut - 1]
        fits = (start.batch_sizes <= largest).all() and (start.batch_sizes >= smallest).all()  # C4
        if fits and math.isfinite(_value(tables, law, start)):  # C1
            return start
    return first_plan(problem, tables, law)


def first_plan(problem: Problem, tables: CostTables, law: RoundsLaw) -> Plan:
    """A plan that reaches the target, with one cut and, where memory allows it, one batch size for all.

    A plan that cuts after the first layer has the least drift and the most memory for samples. So if that
    plan does not reach the target with the largest batch sizes, no plan does.
    """
    devices, layers = tables.up_seconds.shape
    for batch_size in (*FIRST_BATCH_SIZES, problem.max_batch):
        for cut in range(1, layers + 1):
            b = np.minimum(batch_size, tables.largest_batch[:, cut - 1])
            if (b >= tables.smallest_batch_upto[cut - 1]).all() and np.isfinite(law.rounds(b, cut)):
                return Plan(b.astype(np.int64), np.full(devices, cut))
    raise Infeasible(why_infeasible(problem, tables, AllowedPlans.anything(problem)))


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
    """The training time Θ′, Eq. (45), with the smallest T₁ to T₆ that R1 to R8 allow; Θ′ then equals Θ."""
    b = plan.batch_sizes.astype(float)
    return float(law.rounds(b, plan.deepest_cut) * tables.round_seconds(b, plan.cuts))


def _better(tables: CostTables, law: Corollary1, old: Plan, new: Plan) -> Plan:
    """The plan with the smaller Θ′; the new one if both are equal."""
    return new if _value(tables, law, new) <= _value(tables, law, old) else old


# ── Algorithm 2 with measured constants ──────────────────────────────────────────────────────────────────


def _alternate_by_touching(problem: Problem, start: Plan | None, time_limit: float) -> PlanReport:
    """Run Algorithm 2 on touching problems until the measured law no longer gives a smaller Θ.

    Each better plan is the next reference plan. `path` has Θ of the reference plans, by the measured law.
    """
    began = time.monotonic()
    first = feasible_start(problem, CostTables.of(problem), MeasuredRounds.of(problem), start)
    best, status, iterations, residual = evaluate(first, problem), "limit", 0, 0.0
    path = [best.objective]
    while status == "limit" and len(path) <= MOST_REFERENCES:
        left = began + time_limit - time.monotonic()
        if left <= 0:
            break
        found = alternate(corollary_1_at(problem, best.plan), start=best.plan, time_limit=left)
        iterations, residual = iterations + found.iterations, found.residual
        new = evaluate(found.plan, problem)
        best = new if new.objective < best.objective else best
        path.append(best.objective)
        if found.status == "settled" and path[-2] - path[-1] <= TOLERANCE * path[-1]:
            status = "settled"
    return replace(
        best,
        status=status,
        iterations=iterations,
        residual=residual,
        path=tuple(path),
        seconds=time.monotonic() - began,
    )


def corollary_1_at(problem: Problem, plan: Plan) -> Problem:
    """The same problem with the paper's constants and the target that touch the measured law at a plan.

    Corollary 1 has products of its constants only, so (touching) leaves a choice: β = 1/γ, because Theorem 1
    requires γβ ≤ 1, and an equal σ²_j for every layer.
    """
    law, j0 = MeasuredRounds.of(problem), plan.deepest_cut - 1
    layers, devices = len(problem.profile), len(problem.fleet)
    noise = float(law.noise.total(plan.batch_sizes, plan.deepest_cut))  # S₀
    square = float(law.per_square_upto[j0])  # q_0
    per_noise = float(law.per_noise_upto[j0]) + 2 * square * noise  # w
    factor = float(law.fixed_upto[j0]) + float(law.per_noise_upto[j0]) * noise + square * noise**2  # 1 + x₀
    by_drift = (law.per_noise_upto - law.sampling) * noise
    by_drift = by_drift + (law.per_square_upto - law.sampling_square) * noise**2
    drift_term = law.fixed_upto - 1 + by_drift
    constants = BoundConstants(
        smoothness=1 / problem.learning_rate,
        initial_gap=law.endless * factor**2 * problem.learning_rate / 2,
        variance_of=np.full(layers, per_noise * devices**2 / layers),
        moment_of=np.diff(drift_term, prepend=0.0) / (2 * problem.interval) ** 2,
        single_noise=float(law.noise.single_upto[-1]),
    )
    return replace(
        problem, constants=constants, target=2 * factor - 1 + float(by_drift[j0]) + square * noise**2
    )
