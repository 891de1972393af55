"""The law of rounds of a problem. This is the only module that lists all laws."""

from hasfl.constants import BoundConstants, Constants
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.theory.bound import Corollary1, Theorem1
from hasfl.theory.measured_rounds import MeasuredRounds
from hasfl.theory.rounds import RoundsLaw


def law_of(problem: Problem) -> RoundsLaw:
    """Corollary 1 for the paper's constants; the measured law for measured constants and for guesses."""
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
