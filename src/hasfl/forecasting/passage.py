"""The evaluation that will be the first to reach a goal.

Training ends at the first evaluation that is good enough. Single evaluations scatter about the curve, so each
one that comes near the goal may be the one. If the curve is at z_k at the k-th evaluation ahead, then this
evaluation reaches the goal with the probability Φ((z_k − goal)/error). The forecast is the first k at which
the goal has been reached with a probability of one half.
"""

import math
from typing import NamedTuple

import numpy as np

from hasfl.arrays import IntN
from hasfl.forecasting.curve import Floats, Standing, Trend

HORIZON = 200.0  # a goal is out of sight if it needs more than so many times the rounds of before
MOST_EVALUATIONS = 2000  # that are looked at
# Standard deviations to either side. 1.28 would hold 80 % of curves that are as the filter assumes, and 2.0
# holds 95 % of them. Real curves differ: after a third of the way, 1.28 holds 67 % and 2.0 holds 86 % of the
# stored fixed plans (benchmarks/forecasts.py, served mean). Where curves flatten suddenly, it holds for 70 to
# 77 % of the forecasts (tests/training/test_forecaster.py).
SPREAD = 2.0
LOGISTIC = 1.702  # 1/(1 + e^(−1.702 v)) differs from Φ(v) by less than 0.01


class Course(NamedTuple):
    """Where a training stands, and how it goes on."""

    rounds: int  # so far
    progress: float  # u so far
    slowness: float  # B of the plan for the rounds to come
    evaluated: int  # the round of the last evaluation
    evaluate_every: int  # rounds


class Passage(NamedTuple):
    """Rounds in all until the goal is reached; infinite where it is out of sight."""

    rounds: float
    fewest: float  # from `fewest` to `most` is a range meant to hold 8 of 10 real curves
    most: float


def passage(trend: Trend, goal: Standing, course: Course) -> Passage:
    """When the curve reaches the goal, if the present plan stays."""
    rounds, counts = _evaluations_ahead(course)
    ahead = trend.at(np.log(course.progress + (rounds - course.rounds) / course.slowness))
    spread = SPREAD * np.sqrt(ahead.level_variance)
    return Passage(
        *(
            _first(rounds, counts, np.asarray(ahead.level + side * spread), goal)
            for side in (0.0, 1.0, -1.0)  # as forecast, faster, slower
        )
    )


def _evaluations_ahead(course: Course) -> tuple[IntN, IntN]:
    """The rounds of evaluations up to the horizon, and how many evaluations each of them stands for.

    The first hundreds are all there; further ones are the rarer, the farther they are.
    """
    passed = (course.rounds - course.evaluated) // course.evaluate_every  # evaluations of the same model
    count = max(math.ceil(HORIZON * course.rounds / course.evaluate_every), 1)
    ahead = np.unique(np.geomspace(1, count, MOST_EVALUATIONS).round().astype(np.int64))
    return course.evaluated + course.evaluate_every * (passed + ahead), np.diff(ahead, prepend=0)


def _first(rounds: IntN, counts: IntN, levels: Floats, goal: Standing) -> float:
    """The first of these rounds after which the goal has been reached with a probability of one half."""
    distance = LOGISTIC * (levels - goal.z) / goal.error
    log_missed = -counts * np.logaddexp(0.0, distance)  # ln(1 − Φ) of all evaluations that a round stands for
    (reached,) = np.nonzero(log_missed.cumsum() <= -math.log(2))
    return float(rounds[reached[0]]) if reached.size else math.inf
