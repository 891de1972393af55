"""What a plan is worth: Θ, the seconds to the target, and what is left of each constraint (Eqs. 41-43)."""

import numpy as np

from hasfl.arrays import FloatN
from hasfl.plan import Margins, Plan, PlanReport
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.theory.latency import aggregation_latency, mean_round_latency, split_training_latency
from hasfl.theory.laws import law_of


def evaluate(plan: Plan, problem: Problem) -> PlanReport:
    """Work out what a plan costs and which constraints it keeps.

    Θ(b, μ) = R (T_S + T_A/I), with Corollary 1 2ϑ (T_S + T_A/I) / (γ (ε − sampling − drift))   Eq. (43)
    """
    problem.require_fits(plan)
    rounds = rounds_needed(plan, problem)
    split = split_training_latency(plan, problem.fleet, problem.profile).total
    aggregation = aggregation_latency(plan, problem.fleet, problem.profile).total
    seconds = mean_round_latency(split, aggregation, interval=problem.interval)
    return PlanReport(
        plan=plan,
        objective=rounds * seconds,
        rounds=rounds,
        round_seconds=seconds,
        split_seconds=split,
        aggregation_seconds=aggregation,
        margins=margins(plan, problem),
    )


def rounds_needed(plan: Plan, problem: Problem) -> float:
    """R; where the paper's bound does not reach the target, a TargetUnreachable that says why."""
    law = law_of(problem)
    law.require_reachable(plan)
    return float(law.rounds(plan.batch_sizes, plan.deepest_cut))


def margins(plan: Plan, problem: Problem) -> Margins:
    """What is left of C1, C4, and the least and largest batch size."""
    return Margins(
        target=law_of(problem).target_margin(plan),  # C1
        memory=problem.fleet.memory - memory_needed(plan, problem.profile),  # C4
        max_batch=problem.largest_batch - plan.batch_sizes,
        min_batch=(plan.batch_sizes - problem.smallest_batch_upto[plan.deepest_cut - 1]).astype(np.float64),
    )


def memory_needed(plan: Plan, profile: Profile) -> FloatN:
    """Bits that each device must hold, the left side of C4: b (ψ̃ + χ̃) + ϑ̃ + δ at its cut."""
    b, j = plan.batch_sizes, plan.cut_index
    per_sample = (profile.activation_bits_upto + profile.gradient_bits_upto)[j]
    return b * per_sample + (profile.optimizer_bits_upto + profile.param_bits_upto)[j]
