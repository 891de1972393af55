"""The range of a plan's training time that follows from the standard errors of the measured constants."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, repeat

from hasfl.constants import Constants
from hasfl.plan import PlanReport
from hasfl.problem import Problem
from hasfl.theory.objective import rounds_needed


def time_range(
    report: PlanReport, problem: Problem, endless_off: Sequence[tuple[float, float]] = ()
) -> tuple[float, float] | None:
    """The least and the most seconds of training, one standard error off; None if no constant has an error.

    Each constant is taken too large and too small by its error, with the same plan. `endless_off` has the
    factors on R∞ that go with these errors, where R∞ follows from the rounds of a run. The constants err
    independently, so their parts of ln R are added in squares.
    """
    less, more = [], []
    off_by_an_error: Iterator[tuple[Constants, Constants]] = problem.constants.an_error_off()
    for both, factors in zip(off_by_an_error, chain(endless_off, repeat((1.0, 1.0))), strict=False):
        parts = [
            math.log(factor * rounds_needed(report.plan, replace(problem, constants=off)) / report.rounds)
            for off, factor in zip(both, factors, strict=True)
        ]
        less.append(min(0.0, *parts))
        more.append(max(0.0, *parts))
    if not less:
        return None
    return report.objective * math.exp(-math.hypot(*less)), report.objective * math.exp(math.hypot(*more))
