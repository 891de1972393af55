"""Plans that do not flap: a new one must save time whatever the constants are, within their errors."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from hasfl.errors import TargetUnreachable
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.profile import MeasuredStats
from hasfl.theory.latency import Arrangement, aggregation_bits, aggregation_latency, exchange_latency
from hasfl.theory.objective import evaluate

LEAST_SAVING = 1e-3  # of a round: no plan is worth a change for less


def worth_changing(old: Plan, new: Plan, problem: Problem, *, rounds: int) -> bool:
    """Whether so many rounds are done sooner under the new plan, what it costs to move layers counted in.

    That must hold for the constants as they are known, and at every corner of their standard errors.
    """
    moving = _moving_seconds(old, new, problem)
    return all(rounds * _saved_seconds(old, new, each) > moving for each in _likely(problem))


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


def _likely(problem: Problem) -> Iterator[Problem]:
    """The problem with its constants as they are known, and a standard error off in every direction."""
    yield problem
    stats = problem.stats
    if not isinstance(stats, MeasuredStats) or stats.noise_error == stats.drift_error == 0:
        return
    for up, down in product((1, -1), repeat=2):
        noise = stats.noise * math.exp(up * stats.noise_error)
        drift = stats.drift_of * math.exp(down * stats.drift_error)
        yield replace(problem, stats=replace(stats, noise=noise, drift_of=drift))
