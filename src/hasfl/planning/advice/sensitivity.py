"""The cost of a wrong constant, for `hasfl plan --sensitivity`, and the range of a plan's training time.

Each constant is multiplied by each factor in turn, and a plan is made with the wrong constant. The *regret*
is the share by which this plan takes longer than the best plan, both with the right constants.
With several guesses, a constant is wrong in all of them, and the regret is that of the mean ratio.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hasfl.constants import Guesses, MeasuredConstants
from hasfl.errors import Infeasible, TargetUnreachable
from hasfl.plan import PlanReport
from hasfl.planning.exact.planner import best_plan
from hasfl.problem import Problem
from hasfl.theory.objective import evaluate, rounds_needed
from hasfl.units import format_share

# Factors by which a constant is wrong: two and ten times too small or too large. Chosen by hand: two for a
# constant that was measured, ten for a constant that was guessed.
BY_TWO, BY_TEN = (0.5, 2.0), (0.1, 10.0)
FACTORS = (BY_TEN[0], *BY_TWO, BY_TEN[1])
R_ENDLESS = MeasuredConstants.symbols["rounds"]
NEVER, NO_PLAN = "never reaches the target", "no plan seems to reach the target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """The plan that is made if one constant is wrong by a factor, and its regret."""

    constant: str
    factor: float
    median_batch: float | None = None  # None if there is no plan
    cuts: tuple[int, int] | None = None  # the smallest and the deepest cut of the plan
    predicted_seconds: float | None = None  # Θ of the plan under the wrong constants
    regret: float | None = None  # Θ of the plan over Θ of the best plan, minus 1, under the right constants
    trouble: str | None = None  # NEVER or NO_PLAN, where there is no regret


def mistakes(best: PlanReport, problem: Problem, *, gap: float, time_limit: float) -> list[Mistake]:
    """One `Mistake` for every constant and factor; `best` is the best plan under the right constants."""
    found = []
    for constant, factor, wrong in wrong_problems(problem):
        mistake = Mistake(constant=constant, factor=factor)
        try:
            misled = best_plan(wrong, gap=gap, time_limit=time_limit, start=best.plan)
        except Infeasible:
            found.append(replace(mistake, trouble=NO_PLAN))
            continue
        cuts = misled.plan.cuts
        mistake = replace(
            mistake,
            median_batch=float(np.median(misled.plan.batch_sizes)),
            cuts=(int(cuts.min()), int(cuts.max())),
            predicted_seconds=misled.objective,
        )
        try:
            seconds = evaluate(misled.plan, problem).objective  # with the right constants
        except TargetUnreachable:
            found.append(replace(mistake, trouble=NEVER))
            continue
        regret = max(seconds / best.objective - 1, 0.0) if best.objective > 0 else 0.0
        found.append(replace(mistake, regret=regret))
    return found


def without_rounds(found: Sequence[Mistake]) -> list[Mistake]:
    """The mistakes to show where R∞ is unknown: none in R∞ itself, and no forecast of seconds."""
    return [replace(mistake, predicted_seconds=None) for mistake in found if mistake.constant != R_ENDLESS]


def wrong_problems(problem: Problem) -> Iterator[tuple[str, float, Problem]]:
    """The problem with one constant multiplied by one factor, for every constant that is not 0, and for ε."""
    constants = problem.constants
    known = [guess.constants for guess in constants.each] if isinstance(constants, Guesses) else [constants]
    for field, constant in constants.symbols.items():
        for factor in FACTORS if any(np.any(getattr(each, field)) for each in known) else ():
            yield constant, factor, replace(problem, constants=constants.times(field, factor))
    if problem.target is not None:
        for factor in FACTORS:
            yield "ε", factor, replace(problem, target=problem.target * factor)


def in_words(mistakes: Sequence[Mistake]) -> list[str]:
    """One sentence for each constant: the largest regret if the constant is wrong by 2 × and by 10 ×."""
    sentences = []
    for constant in dict.fromkeys(mistake.constant for mistake in mistakes):
        own = [mistake for mistake in mistakes if mistake.constant == constant]
        by_two, by_ten = (
            _worst([mistake for mistake in own if mistake.factor in factors]) for factors in (BY_TWO, BY_TEN)
        )
        sentences.append(f"If {constant} is off by 2 ×, {by_two}; by 10 ×, {by_ten}.")
    return sentences


def _worst(mistakes: Sequence[Mistake]) -> str:
    """The worst outcome of several mistakes, as a clause of a sentence."""
    troubles = {mistake.trouble for mistake in mistakes}
    if NEVER in troubles:
        return "the plan may never reach the target"
    loses = f"the plan loses at most {format_share(max(mistake.regret or 0.0 for mistake in mistakes))}"
    return f"{loses} or none seems to reach the target" if NO_PLAN in troubles else loses


# ── the range of the training time ───────────────────────────────────────────────────────────────────────


def time_range(report: PlanReport, problem: Problem) -> tuple[float, float] | None:
    """The least and the most seconds of training; None if no constant has an error.

    With guesses, each guess gives one time, and the least and the largest time are returned. Otherwise each
    constant is taken too large and too small by its error, with the same plan. The constants err
    independently, so their parts of ln R are added in squares.
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
