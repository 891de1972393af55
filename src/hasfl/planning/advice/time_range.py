"""The range of a plan's training time that follows from the standard errors of the measured constants."""

import math
from dataclasses import replace

from hasfl.plan import PlanReport
from hasfl.problem import Problem
from hasfl.theory.objective import rounds_needed


def time_range(report: PlanReport, problem: Problem) -> tuple[float, float] | None:
    """The least and the most seconds of training, one standard error off; None if no constant has an error.

    Each constant is taken too large and too small by its error, with the same plan. The constants err
    independently, so their parts of ln R are added in squares. R∞ is taken as it is.
    """
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
