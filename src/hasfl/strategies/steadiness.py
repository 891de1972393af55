"""Plans that do not flap: a new one must save more time than the constants' errors leave in doubt."""

import math
from collections.abc import Iterator
from dataclasses import replace

from hasfl.errors import TargetUnreachable
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.theory.latency import aggregation_latency, exchange_latency
from hasfl.theory.objective import evaluate
from hasfl.theory.traffic import Arrangement, aggregation_bits

LEAST_SAVING = 1e-3  # of a round: no plan is worth a change for less


def worth_changing(old: Plan, new: Plan, problem: Problem, *, rounds: int) -> bool:
    """Whether so many rounds are done sooner under the new plan, what it costs to move layers counted in.

    What is saved must exceed its own standard error: how much less it is if a constant is off by its error,
    to the worse side; and constants err independently.
    """
    saved = _saved_seconds(old, new, problem)
    if math.isinf(saved):
        return True
    errors = (
        saved - min(saved, *(_saved_seconds(old, new, off) for off in both))
        for both in _a_standard_error_off(problem)
    )
    return rounds * (saved - math.hypot(*errors)) > _moving_seconds(old, new, problem)


def _saved_seconds(old: Plan, new: Plan, problem: Problem) -> float:
    """What the work of a round of the old plan takes less under the new one; less than 1 ‰ is nothing."""
    try:
        before = evaluate(old, problem)
    except TargetUnreachable:
        return math.inf
    if not before.feasible:
        return math.inf
    saved = 1 - evaluate(new, problem).objective / before.objective
    return before.round_seconds * (saved - LEAST_SAVING)


def _moving_seconds(old: Plan, new: Plan, problem: Problem) -> float:
    """How much longer the aggregation takes in which layers change hands."""
    fleet, profile = problem.fleet, problem.profile
    bits = aggregation_bits(Arrangement.of(old, fleet), Arrangement.of(new, fleet), profile)
    moved = exchange_latency(bits, fleet, fleet).total
    return max(moved - aggregation_latency(old, fleet, profile).total, 0.0)


def _a_standard_error_off(problem: Problem) -> Iterator[tuple[Problem, Problem]]:
    """For each constant that has an error, the problem with more of it and with less."""
    constants = problem.constants
    for name, error in constants.log_errors.items():
        if error > 0:
            known, factor = getattr(constants, name), math.exp(error)
            more, less = (replace(constants, **{name: value}) for value in (known * factor, known / factor))
            yield replace(problem, constants=more), replace(problem, constants=less)
