"""Whether a new plan is worth a change: it must save more time than the errors of the constants allow for."""

import math
from collections.abc import Iterator
from dataclasses import replace

from hasfl.errors import TargetUnreachable
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.theory.latency import aggregation_latency, exchange_latency
from hasfl.theory.objective import evaluate
from hasfl.theory.traffic import Arrangement, aggregation_bits

LEAST_SAVING = 1e-3  # share of a round: a plan is not changed for less


def worth_changing(old: Plan, new: Plan, problem: Problem, *, rounds: int) -> bool:
    """Whether `rounds` rounds end sooner under the new plan, the time to move layers included.

    The saving of a round must exceed its standard error. A constant contributes the part of the saving that
    is lost if the constant is off by its own error to the worse side. The constants err independently, so
    their parts are added in squares.
    """
    saved = _saved_seconds(old, new, problem)
    if math.isinf(saved):
        return True
    errors = (
        saved - min(saved, *(_saved_seconds(old, new, off) for off in both_sides))
        for both_sides in _a_standard_error_off(problem)
    )
    return rounds * (saved - math.hypot(*errors)) > _moving_seconds(old, new, problem)


def _saved_seconds(old: Plan, new: Plan, problem: Problem) -> float:
    """Seconds that the work of one old round takes less under the new plan; infinite if the old one fails."""
    try:
        before = evaluate(old, problem)
    except TargetUnreachable:
        return math.inf
    if not before.feasible:
        return math.inf
    saved = 1 - evaluate(new, problem).objective / before.objective
    return before.round_seconds * (saved - LEAST_SAVING)


def _moving_seconds(old: Plan, new: Plan, problem: Problem) -> float:
    """How much longer the one aggregation takes in which layers move between devices and servers."""
    fleet, profile = problem.fleet, problem.profile
    bits = aggregation_bits(Arrangement.of(old, fleet), Arrangement.of(new, fleet), profile)
    moved = exchange_latency(bits, fleet, fleet).total
    return max(moved - aggregation_latency(old, fleet, profile).total, 0.0)


def _a_standard_error_off(problem: Problem) -> Iterator[tuple[Problem, Problem]]:
    """For each constant with an error, the problem with that constant too large and too small by it."""
    constants = problem.constants
    for name, error in constants.log_errors.items():
        if error > 0:
            known, factor = getattr(constants, name), math.exp(error)
            more, less = (replace(constants, **{name: value}) for value in (known * factor, known / factor))
            yield replace(problem, constants=more), replace(problem, constants=less)
