"""Whether a new plan is worth a change: it must save more time than the errors of the constants allow for."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hasfl.errors import TargetUnreachable
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.theory.latency import aggregation_latency, exchange_latency
from hasfl.theory.objective import evaluate
from hasfl.theory.traffic import Arrangement, aggregation_bits

LEAST_SAVING = 1e-3  # share of a round: a plan is not changed for less
# How many standard errors of a saving are taken off. The new plan is the best bet, so a part of the error is
# enough.
CAUTION = 0.5


@dataclass(frozen=True, slots=True)
class Saving:
    """What a change from an old plan to a new one saves, and whether the change pays."""

    share: float  # of the old plan's time; infinite if the old plan cannot be used any more
    error: float  # standard error of `share`
    pays: bool


def saving(old: Plan, new: Plan, problem: Problem, *, rounds: int) -> Saving:
    """What the new plan saves. It pays if `rounds` rounds end sooner, the time to move layers included.

    The saving of a round must exceed half its standard error. A constant contributes the part of the saving
    that is lost if the constant is off by its own error to the worse side. The constants err independently,
    so their parts are added in squares.
    """
    share = _saved_share(old, new, problem)
    if math.isinf(share):
        return Saving(share, 0.0, pays=True)
    errors = (
        share - min(share, *(_saved_share(old, new, off) for off in both_sides))
        for both_sides in _a_standard_error_off(problem)
    )
    error = math.hypot(*errors)
    seconds = rounds * evaluate(old, problem).round_seconds
    pays = seconds * (share - LEAST_SAVING - CAUTION * error) > _moving_seconds(old, new, problem)
    return Saving(share, error, pays)


def _saved_share(old: Plan, new: Plan, problem: Problem) -> float:
    """The share of the old plan's time that the new plan saves; infinite if the old plan fails."""
    try:
        before = evaluate(old, problem)
    except TargetUnreachable:
        return math.inf
    return 1 - evaluate(new, problem).objective / before.objective if before.feasible else math.inf


def _moving_seconds(old: Plan, new: Plan, problem: Problem) -> float:
    """How much longer the one aggregation takes in which layers move between devices and servers."""
    fleet, profile = problem.fleet, problem.profile
    bits = aggregation_bits(Arrangement.of(old, fleet), Arrangement.of(new, fleet), profile)
    moved = exchange_latency(bits, fleet, fleet).total
    return max(moved - aggregation_latency(old, fleet, profile).total, 0.0)


def _a_standard_error_off(problem: Problem) -> Iterator[tuple[Problem, Problem]]:
    """For each constant with an error, the problem with that constant too large and too small by it."""
    for more, less in problem.constants.an_error_off():
        yield replace(problem, constants=more), replace(problem, constants=less)
