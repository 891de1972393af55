"""Plans for several guesses of the constants: in which times they are counted, and what a plan costs by each."""

from dataclasses import dataclass, replace

from hasfl.constants import Guess, Guesses
from hasfl.plan import Plan
from hasfl.planning.exact.planner import best_plan
from hasfl.problem import Problem
from hasfl.theory.objective import evaluate

# Gap of the best plan for a guess alone. It changes the weight of the guess by at most as much; chosen by hand.
LOOSE_GAP = 0.05
TIME_LIMIT = 2.0  # seconds for the best plan of one guess


def weighed(problem: Problem) -> Problem:
    """The problem with times counted in those of the best plan for each guess.

    Without guesses it is the same problem. One guess alone is no guess but the constants: they replace it.
    """
    constants = problem.constants
    if not isinstance(constants, Guesses):
        return problem
    if len(constants.each) == 1:
        return replace(problem, constants=constants.each[0].constants)
    each: list[Guess] = []
    plan = None
    for guess in constants.each:
        alone = replace(problem, constants=guess.constants)
        best = best_plan(alone, gap=LOOSE_GAP, time_limit=TIME_LIMIT, start=plan)
        assert best.lower_bound is not None, "the exact planner proves a lower bound"
        plan = best.plan
        each.append(replace(guess, seconds=best.objective, least_seconds=best.lower_bound))
    return replace(problem, constants=Guesses(tuple(each)))


@dataclass(frozen=True, slots=True)
class Ratio:
    """How much longer a plan takes than the best plan for one guess, if the guess is right."""

    guess: str
    weight: float
    found: float  # over the best plan that was found
    at_most: float  # over the lower bound; no plan for the guess is better by more


def ratios(plan: Plan, problem: Problem) -> list[Ratio]:
    """The ratio of a plan for each guess of a problem that was weighed; empty without guesses."""
    constants = problem.constants
    if not isinstance(constants, Guesses):
        return []
    found = []
    for guess in constants.each:
        seconds = evaluate(plan, replace(problem, constants=guess.constants)).objective
        found.append(Ratio(guess.says, guess.weight, seconds / guess.seconds, seconds / guess.least_seconds))
    return found
