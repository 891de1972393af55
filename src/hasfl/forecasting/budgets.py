"""When the budgets of a goal end training, if it goes on as in its last round."""

import math
from typing import NamedTuple

from hasfl.goal import Goal
from hasfl.record import RoundRecord


class BudgetEnd(NamedTuple):
    """The budget that ends training first."""

    budget: str  # "rounds", "samples" or "seconds"
    rounds: int  # in all


def budget_end(goal: Goal, last: RoundRecord, round_seconds: float) -> BudgetEnd | None:
    """The end by the budgets, if every round takes so many seconds; None where nothing is limited.

    Readings to come are not foreseen: they use a small part of samples and seconds.
    """
    ends = []
    if goal.rounds is not None:
        ends.append(BudgetEnd("rounds", goal.rounds))
    if goal.samples is not None:
        left = (goal.samples - last.samples) // int(last.plan.batch_sizes.sum())
        ends.append(BudgetEnd("samples", last.round + max(left, 0)))
    if goal.seconds is not None and round_seconds > 0:
        left = math.ceil((goal.seconds - last.clock) / round_seconds)
        ends.append(BudgetEnd("seconds", last.round + max(left, 0)))
    return min(ends, key=lambda end: end.rounds, default=None)
