"""The ratio of a plan for each guess of the constants, and the mean ratio that plans for guesses minimise.

The ratio of a plan for guess k is Θ_k/Θ_k*: its training time by this guess, over that of the best plan for
this guess alone. The best plan for several guesses has the least mean ratio Σ_k π_k Θ_k/Θ_k*. `weighed` finds
the best plan of every guess and its time Θ_k*. With these times, the mean ratio is one law of rounds
(`theory/rounds.py`), so every planner handles several guesses like one. The lower bound of the exact planner
is then about the mean ratio: no plan has a mean ratio that is smaller by more than the gap.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hasfl.constants import Guess, Guesses
from hasfl.plan import Plan
from hasfl.planning.exact.planner import best_plan, box_limit
from hasfl.problem import Problem
from hasfl.theory.objective import evaluate

# Gap of the best plan for one guess alone. An error of 1 % in Θ_k* changes the weight of the guess by 1 %.
# Chosen by hand.
LOOSE_GAP = 0.01
SECONDS_OF_A_GUESS = 1.0  # about how long the search for one guess may take, seconds; chosen by hand


def weighed(problem: Problem) -> Problem:
    """The problem in which each guess has the training time Θ_k* of its own best plan.

    A problem without guesses is returned unchanged. If there is only one guess, its constants become the
    constants of the problem.
    """
    constants = problem.constants
    if not isinstance(constants, Guesses):
        return problem
    if len(constants.each) == 1:
        return replace(problem, constants=constants.each[0].constants)
    limit = box_limit(SECONDS_OF_A_GUESS, devices=len(problem.fleet))
    each: list[Guess] = []
    start = None
    for guess in constants.each:
        alone = replace(problem, constants=guess.constants)
        best = best_plan(alone, gap=LOOSE_GAP, time_limit=math.inf, box_limit=limit, start=start)
        assert best.lower_bound is not None, "the exact planner proves a lower bound"
        start = best.plan
        each.append(replace(guess, best_seconds=best.objective, least_seconds=best.lower_bound))
    return replace(problem, constants=Guesses(tuple(each)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The training time of a plan over that of the best plan for one guess, if the guess is right."""

    guess: str  # the guess in words
    weight: float  # π_k, the weight of the guess
    ratio: float  # Θ of the plan over Θ of the best plan that was found for the guess
    at_most: float  # upper bound on the true ratio: Θ of the plan over the lower bound for the guess
    rounds: float  # rounds that the plan needs if the guess is right; divided by R∞ where R∞ is unknown


def ratios(plan: Plan, problem: Problem) -> list[Ratio]:
    """The ratio of a plan for each guess of a weighed problem; empty without guesses."""
    if not isinstance(problem.constants, Guesses):
        return []
    found = []
    for guess in problem.constants.each:
        alone = evaluate(plan, replace(problem, constants=guess.constants))
        found.append(
            Ratio(
                guess=guess.says,
                weight=guess.weight,
                ratio=alone.objective / guess.best_seconds,
                at_most=alone.objective / guess.least_seconds if guess.least_seconds > 0 else math.inf,
                rounds=alone.rounds,
            )
        )
    return found


def mean_ratio(found: Sequence[Ratio]) -> float:
    """The mean of the ratios, with the weights of the guesses."""
    return sum(each.weight * each.ratio for each in found)
