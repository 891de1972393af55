"""Plans for several guesses of the constants: in which times they are counted, and what a plan costs by each.

A plan for several guesses has the least mean ratio Σ_k π_k Θ_k/Θ_k*. `weighed` finds the best plan of every
guess and its time Θ_k*. With these times, the mean ratio is one law of rounds (`theory/rounds.py`).
So every planner of this room plans for several guesses as for one. The certificate of the exact planner is
then about the mean ratio: no plan has a mean ratio that is smaller by more than the gap.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hasfl.constants import Guess, Guesses
from hasfl.plan import Plan
from hasfl.planning.exact.planner import best_plan, box_limit
from hasfl.problem import Problem
from hasfl.theory.objective import evaluate

# Gap of the best plan for a guess alone. It changes the weight of the guess by at most as much. Chosen by
# hand.
LOOSE_GAP = 0.01
SECONDS_OF_A_GUESS = 1.0  # about so long may the search for the best plan of a guess take; chosen by hand


def weighed(problem: Problem) -> Problem:
    """The problem with times counted in those of the best plan for each guess.

    Without guesses it is the same problem. One guess alone is no guess but the constants: they replace it.
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
    """How much longer a plan takes than the best plan for one guess, if the guess is right."""

    guess: str
    weight: float
    ratio: float  # over the best plan that was found
    at_most: float  # over the lower bound: no plan for the guess is better by more
    rounds: float  # that the plan needs, if the guess is right; over R∞ where R∞ is unknown


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
