"""Θ, the seconds of training that a plan needs, and the margin of each constraint (Eqs. 41-43).

This is the only module that lists all laws of rounds.
"""

import numpy as np

from hasfl.arrays import FloatN
from hasfl.constants import BoundConstants, Constants
from hasfl.plan import Margins, Plan, PlanReport
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.theory.bound import Corollary1, Theorem1
from hasfl.theory.latency import aggregation_latency, mean_round_latency, split_training_latency
from hasfl.theory.rounds import MeasuredRounds, RoundsLaw


def law_of(problem: Problem) -> RoundsLaw:
    """The law of rounds of a problem.

    The law is Corollary 1 for the paper's constants, and the measured law for measured constants and guesses.
    """
    if isinstance(problem.constants, BoundConstants):
        return Corollary1.of(problem)
    return MeasuredRounds.of(problem)


def target_for_all(
    constants: Constants, profile: Profile, *, devices: int, learning_rate: float, interval: int
) -> float | None:
    """A target ε that every plan reaches; None where the law needs no target.

    The plan with batch size 1 and cut L on every device has the highest floor of all plans: S is largest for
    single samples, and the drift is largest for the deepest cut. An ε above this floor suits every plan.
    """
    if not isinstance(constants, BoundConstants):
        return None
    bound = Theorem1.of(constants, profile, devices=devices, learning_rate=learning_rate, interval=interval)
    return bound.default_target(Plan.uniform(devices, batch_size=1, cut=len(profile)))


def evaluate(plan: Plan, problem: Problem) -> PlanReport:
    """Compute Θ of a plan, its parts, and the margins of the constraints.

        Θ(b, μ) = R (T_S + T_A/I)                                                             Eq. (43)

    With Corollary 1, R = 2ϑ / (γ (ε − sampling − drift)). Raises TargetUnreachable if R is infinite.
    """
    problem.require_fits(plan)
    rounds = rounds_needed(plan, problem)
    split = split_training_latency(plan, problem.fleet, problem.profile).total
    aggregation = aggregation_latency(plan, problem.fleet, problem.profile).total
    seconds = mean_round_latency(split, aggregation, interval=problem.interval)
    return PlanReport(
        plan=plan,
        objective=rounds * seconds,  # Θ, (43)
        rounds=rounds,
        round_seconds=seconds,
        split_seconds=split,
        aggregation_seconds=aggregation,
        margins=margins(plan, problem),
    )


def rounds_needed(plan: Plan, problem: Problem) -> float:
    """The rounds R of a plan by the problem's law. Raises TargetUnreachable if R is infinite."""
    law = law_of(problem)
    law.require_reachable(plan)
    return float(law.rounds(plan.batch_sizes, plan.deepest_cut))


def margins(plan: Plan, problem: Problem) -> Margins:
    """The margins of C1, C4 and the batch size limits under a plan; negative where a limit is violated."""
    return Margins(
        target=law_of(problem).target_margin(plan),  # C1
        memory=problem.fleet.memory - memory_needed(plan, problem.profile),  # C4
        max_batch=problem.largest_batch - plan.batch_sizes,
        min_batch=(plan.batch_sizes - problem.smallest_batch_upto[plan.deepest_cut - 1]).astype(np.float64),
    )


def memory_needed(plan: Plan, profile: Profile) -> FloatN:
    """Bits of memory that each device needs, the left side of C4 in Eq. (41): b (ψ̃_j + χ̃_j) + ϑ̃_j + δ_j."""
    b, j = plan.batch_sizes, plan.cut_index
    per_sample = (profile.activation_bits_upto + profile.gradient_bits_upto)[j]
    return b * per_sample + (profile.optimizer_bits_upto + profile.param_bits_upto)[j]
