"""What a plan is worth: Θ, the seconds to the target, and what is left of each constraint (Eqs. 41-43)."""

import numpy as np

from hasfl.arrays import FloatN
from hasfl.plan import Margins, Plan, PlanReport
from hasfl.problem import Problem
from hasfl.profile import MeasuredStats, Profile
from hasfl.theory.bound import bound_floor, rounds_to_target
from hasfl.theory.latency import aggregation_latency, mean_round_latency, split_training_latency
from hasfl.theory.measured_rounds import rounds_model


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
    if isinstance(problem.stats, MeasuredStats):
        noise = np.where(plan.batch_sizes == 1, problem.single_noise, 1 / plan.batch_sizes)
        return float(rounds_model(problem).rounds(noise.sum(), np.array(plan.deepest_cut)))
    stats, target = problem.bound_constants()
    return rounds_to_target(
        plan, stats, learning_rate=problem.learning_rate, interval=problem.interval, target=target
    )


def margins(plan: Plan, problem: Problem) -> Margins:
    """What is left of C1, C4 and the largest batch size."""
    return Margins(
        target=_target_margin(plan, problem),
        memory=problem.fleet.memory - memory_needed(plan, problem.profile),  # C4
        max_batch=problem.largest_batch - plan.batch_sizes,
    )


def _target_margin(plan: Plan, problem: Problem) -> float | None:
    """C1: ε minus the floor of the bound; measured rounds have neither."""
    if isinstance(problem.stats, MeasuredStats):
        return None
    stats, target = problem.bound_constants()
    floor = bound_floor(plan, stats, learning_rate=problem.learning_rate, interval=problem.interval)
    return target - floor.total


def memory_needed(plan: Plan, profile: Profile) -> FloatN:
    """Bits that each device must hold, the left side of C4: b (ψ̃ + χ̃) + ϑ̃ + δ at its cut."""
    b, j = plan.batch_sizes, plan.cut_index
    per_sample = (profile.activation_bits_upto + profile.gradient_bits_upto)[j]
    return b * per_sample + (profile.optimizer_bits_upto + profile.param_bits_upto)[j]
