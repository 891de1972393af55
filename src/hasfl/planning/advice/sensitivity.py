"""What a wrong constant costs: plan with it, and see what that plan takes under the constants as given.

Each constant in use is off by a factor; a plan is made with the wrong value; its *regret* is how much longer
it takes than the best plan, both by the given constants.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hasfl.errors import Infeasible, TargetUnreachable
from hasfl.plan import PlanReport
from hasfl.planning.exact.planner import best_plan
from hasfl.problem import Problem
from hasfl.theory.objective import evaluate

FACTORS = (0.1, 0.5, 2.0, 10.0)
NEVER, NO_PLAN = "never reaches the target", "no plan seems to reach the target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A constant that is off by a factor, and what comes of it; without a plan, `trouble` says why."""

    constant: str
    factor: float
    median_batch: float | None = None
    cuts: tuple[int, int] | None = None  # least and deepest
    predicted_seconds: float | None = None  # what the plan would take if the wrong value were right
    regret: float | None = None  # how much longer it takes than the best plan, 0.1 is 10 %
    trouble: str | None = None


def mistakes(best: PlanReport, problem: Problem, *, gap: float, time_limit: float) -> list[Mistake]:
    """What is lost for every constant and factor; `best` is the plan with the constants as given."""
    return [
        _mistake(best, problem, wrong, constant, factor, gap=gap, time_limit=time_limit)
        for constant, factor, wrong in wrong_problems(problem)
    ]


def wrong_problems(problem: Problem) -> Iterator[tuple[str, float, Problem]]:
    """Every constant in use, multiplied by every factor; a constant of 0 stays what it is."""
    for field, constant in problem.constants.symbols.items():
        value = getattr(problem.constants, field)
        for factor in FACTORS if np.any(value) else ():
            changed = {field: value * factor}
            yield constant, factor, replace(problem, constants=replace(problem.constants, **changed))
    if problem.target is not None:
        for factor in FACTORS:
            yield "ε", factor, replace(problem, target=problem.target * factor)


def _mistake(
    best: PlanReport,
    problem: Problem,
    wrong: Problem,
    constant: str,
    factor: float,
    *,
    gap: float,
    time_limit: float,
) -> Mistake:
    try:
        made = best_plan(wrong, gap=gap, time_limit=time_limit, start=best.plan)
    except Infeasible:
        return Mistake(constant=constant, factor=factor, trouble=NO_PLAN)
    cuts = made.plan.cuts
    seen = Mistake(
        constant=constant,
        factor=factor,
        median_batch=float(np.median(made.plan.batch_sizes)),
        cuts=(int(cuts.min()), int(cuts.max())),
        predicted_seconds=made.objective,
    )
    try:
        takes = evaluate(made.plan, problem).objective
    except TargetUnreachable:
        return replace(seen, trouble=NEVER)
    return replace(seen, regret=max(takes / best.objective - 1, 0.0) if best.objective > 0 else 0.0)


def in_words(found: Sequence[Mistake]) -> list[str]:
    """One sentence for each constant: the most that is lost if it is off by 2 × or by 10 ×, either way."""
    constants = dict.fromkeys(mistake.constant for mistake in found)
    return [_sentence(constant, found) for constant in constants]


def _sentence(constant: str, found: Sequence[Mistake]) -> str:
    by_two, by_ten = (
        [mistake for mistake in found if mistake.constant == constant and mistake.factor in factors]
        for factors in ((0.5, 2.0), (0.1, 10.0))
    )
    return f"If {constant} is off by 2 ×, {_worst(by_two)}; by 10 ×, {_worst(by_ten)}."


def _worst(found: Sequence[Mistake]) -> str:
    troubles = {mistake.trouble for mistake in found}
    if NEVER in troubles:
        return "the plan may never reach the target"
    loses = f"the plan loses at most {percent(max(mistake.regret or 0.0 for mistake in found))}"
    return f"{loses} or none seems to reach the target" if NO_PLAN in troubles else loses


def percent(share: float) -> str:
    """A share in per cent, with a digit after the point while it is small."""
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:,.0f} %"
