"""The law of rounds that goes with a problem: the one place that knows which laws there are."""

from hasfl.constants import BoundConstants, Constants, MeasuredConstants
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.theory.bound import Corollary1, Theorem1
from hasfl.theory.measured_rounds import MeasuredRounds
from hasfl.theory.rounds import RoundsLaw


def law_of(problem: Problem) -> RoundsLaw:
    """Corollary 1 with its ε for the paper's constants; the measured law for constants from training."""
    if isinstance(problem.constants, MeasuredConstants):
        return MeasuredRounds.of(problem)
    return Corollary1.of(problem)


def target_for_all(
    constants: Constants, profile: Profile, *, devices: int, learning_rate: float, interval: int
) -> float | None:
    """An ε that every plan reaches, where the law needs one: none is noisier than single samples at cut L."""
    if not isinstance(constants, BoundConstants):
        return None
    bound = Theorem1.of(constants, profile, devices=devices, learning_rate=learning_rate, interval=interval)
    return bound.default_target(Plan.uniform(devices, batch_size=1, cut=len(profile)))
