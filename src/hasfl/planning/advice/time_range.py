"""The range of a plan's training time, by the errors of the constants or by the guesses of them."""

import math
from dataclasses import replace

from hasfl.constants import Guesses
from hasfl.plan import PlanReport
from hasfl.problem import Problem
from hasfl.theory.objective import rounds_needed


def time_range(report: PlanReport, problem: Problem) -> tuple[float, float] | None:
    """The least and the most seconds of training; None if no constant has an error.

    With guesses, these are the times of the plan by the single guesses. Otherwise each constant is taken too
    large and too small by its error, with the same plan. The constants err independently, so their parts of
    ln R are added in squares.
    """
    if isinstance(problem.constants, Guesses):
        rounds = [
            rounds_needed(report.plan, replace(problem, constants=guess.constants))
            for guess in problem.constants.each
        ]
        return min(rounds) * report.round_seconds, max(rounds) * report.round_seconds
    less, more = [], []
    for both in problem.constants.an_error_off():
        parts = [
            math.log(rounds_needed(report.plan, replace(problem, constants=off)) / report.rounds)
            for off in both
        ]
        less.append(min(0.0, *parts))
        more.append(max(0.0, *parts))
    if not less:
        return None
    return report.objective * math.exp(-math.hypot(*less)), report.objective * math.exp(math.hypot(*more))
