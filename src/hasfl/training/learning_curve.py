"""Follows the learning curve of a training, and forecasts the first evaluation that reaches a goal.

The curve is a line in logarithms whose slope wanders:

    z = ln(q / (1 − q)),     x = ln u

q is the accuracy on held-out samples, or e^−loss, which is the probability of the right label of a typical
sample. u is the progress of training (`training/forecaster.py`). Both z of an accuracy and z of a loss grow
nearly as a line in x, on data sets that are learnt in 50 rounds as well as on those that need 2,000. The
slope differs, and it changes while training goes on:

    dz = slope dx,     d slope = PULL (USUAL_SLOPE − slope) dx + WANDER dW

W is a Wiener process, so z is Gaussian, and a Kalman filter of two numbers, z and its slope, gives z at every
x (Kalman 1960). The filter begins with z of the first evaluation, because a curve may begin anywhere.

Every evaluation is on the same held-out samples. So most of the error of sampling is common to all
evaluations, and does not change when the goal is reached, which is judged on these samples too. Only a part
of the error, `ALONE`, makes evaluations scatter about the curve.

Training ends at the first evaluation that reaches the goal. Evaluations scatter about the curve, so an
evaluation may reach the goal before the curve does. If the curve is at z_k at the k-th evaluation from now,
this evaluation reaches the goal with the probability Φ((z_k − goal)/error). The forecast is the first k by
which the goal has been reached with a probability of one half.

The constants below were chosen on trained runs; benchmarks/forecasts.py shows how good the forecasts are.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import IntN

# ── the curve ────────────────────────────────────────────────────────────────────────────────────────────


Floats = NDArray[np.float64]

# The slope of z over x to which slopes return. Trained runs have 0.4 (VGG-16, two shards) to 2.5 (digits).
USUAL_SLOPE = 1.0
SLOPE_ERROR = 0.7  # standard deviation of the slope at the first evaluation
PULL = 0.3  # rate at which a slope returns to the usual slope, per unit of x
WANDER = 0.4  # standard deviation that the slope gains over a unit of x
EVALUATION_ERROR = 0.06  # standard deviation of z between two evaluations, with infinitely many samples
SAMPLING = 1.2  # standard deviation of an accuracy, as a multiple of that of independent draws
# The part of the standard deviation of sampling that differs between evaluations on the same held-out
# samples. Chosen by hand among numbers that forecast stored runs about equally well (docs/forecasts.md).
ALONE = 0.42
LEAST_LOSS = 1e-9  # smaller losses count as this loss; chosen by hand
LOSS_SPREAD = 2.0  # standard deviation of the loss of one sample, as a multiple of the mean loss


class Standing(NamedTuple):
    """The quality of a model as z, with the standard error of z."""

    z: float
    error: float


def of_accuracy(accuracy: float, samples: int, part: float = 1.0) -> Standing:
    """z of an accuracy on `samples` samples. Half a sample is added to the right and to the wrong ones.

    A score of a user's own metric may leave the range from 0 to 1; it then counts as 0 or 1. Only the share
    `part` of the error of sampling counts.
    """
    share = min(max(accuracy, 0.0), 1.0)
    right, wrong = samples * share + 0.5, samples * (1 - share) + 0.5
    drawn = (part * SAMPLING) ** 2 * (1 / right + 1 / wrong)
    return Standing(math.log(right / wrong), math.sqrt(EVALUATION_ERROR**2 + drawn))


def of_loss(loss: float, samples: int, part: float = 1.0) -> Standing:
    """z of a loss: −ln(e^loss − 1). Its derivative by the loss, −1/(1 − e^−loss), gives the error."""
    positive = max(loss, LEAST_LOSS)
    missed = -math.expm1(-positive)  # 1 − q
    drawn = (part * LOSS_SPREAD * positive / missed) ** 2 / samples
    return Standing(-positive - math.log(missed), math.sqrt(EVALUATION_ERROR**2 + drawn))


@dataclass(frozen=True, slots=True, eq=False)
class Trend:
    """The state of the filter at x: means and covariances of z and its slope. Arrays hold many states."""

    x: Floats
    level: Floats  # mean of z
    slope: Floats  # mean of the slope of z
    level_variance: Floats
    covariance: Floats  # covariance of z and its slope
    slope_variance: Floats

    @classmethod
    def begun(cls, x: float, first: Standing) -> Self:
        """The trend at the first evaluation."""
        return cls(
            x=np.asarray(x),
            level=np.asarray(first.z),
            slope=np.asarray(USUAL_SLOPE),
            level_variance=np.asarray(first.error**2),
            covariance=np.asarray(0.0),
            slope_variance=np.asarray(SLOPE_ERROR**2),
        )

    def at(self, x: Floats | float) -> "Trend":
        """The trend at a later x, without further evaluations."""
        way = np.asarray(x - self.x, dtype=np.float64)
        kept = np.exp(-PULL * way)  # share that is left of the slope's distance from the usual slope
        carried = -np.expm1(-PULL * way) / PULL  # increase of the level for each unit of this distance
        spread = way - 2 * carried - np.expm1(-2 * PULL * way) / (2 * PULL)
        return Trend(
            x=self.x + way,
            level=self.level + carried * self.slope + USUAL_SLOPE * (way - carried),
            slope=kept * self.slope + USUAL_SLOPE * (1 - kept),
            level_variance=self.level_variance
            + 2 * carried * self.covariance
            + carried**2 * self.slope_variance
            + np.maximum((WANDER / PULL) ** 2 * spread, 0.0),
            covariance=kept * (self.covariance + carried * self.slope_variance) + (WANDER * carried) ** 2 / 2,
            slope_variance=kept**2 * self.slope_variance - WANDER**2 * np.expm1(-2 * PULL * way) / (2 * PULL),
        )

    def reading(self, read: Standing) -> "Trend":
        """The trend after an evaluation at this x."""
        variance = self.level_variance + read.error**2
        surprise = (read.z - self.level) / variance
        return Trend(
            x=self.x,
            level=self.level + self.level_variance * surprise,
            slope=self.slope + self.covariance * surprise,
            level_variance=self.level_variance * read.error**2 / variance,
            covariance=self.covariance * read.error**2 / variance,
            slope_variance=self.slope_variance - self.covariance**2 / variance,
        )


@dataclass(slots=True)
class Curve:
    """The learning curve toward an accuracy or a loss."""

    goal: Standing  # z of the goal; the error is that by which evaluations scatter about the curve
    rounds: list[int] = field(default_factory=list)  # rounds after which the model was evaluated
    trend: Trend | None = None  # the trend at the last evaluation; None before the first

    def read(self, round: int, standing: Standing, progress: float) -> None:
        """Take in an evaluation after a round, with u, the progress up to this round."""
        self.rounds.append(round)
        x = math.log(progress)
        before = self.trend
        self.trend = Trend.begun(x, standing) if before is None else before.at(x).reading(standing)


# ── the first evaluation that reaches the goal ───────────────────────────────────────────────────────────


# A goal is out of sight if it needs more than this multiple of the rounds so far; chosen by hand.
HORIZON = 200.0
MOST_EVALUATIONS = 2000  # the most evaluations ahead for which a probability is computed; chosen by hand
# The half width of a forecast's range, in standard deviations of z. On curves that follow the filter's model,
# a range of 1.28 would hold 80 % of the ends, and one of 2.0 holds 95 %. Real curves differ: after a third of
# the way, 1.28 holds 67 % and 2.0 holds 86 % of the ends of stored fixed plans (benchmarks/forecasts.py,
# served mean). If curves flatten suddenly, 2.0 holds 70 to 77 % (tests/training/test_forecaster.py).
SPREAD = 2.0
LOGISTIC = 1.702  # 1/(1 + e^(−1.702 v)) differs from Φ(v) by less than 0.01


class Course(NamedTuple):
    """Where a training stands, and how its later rounds will be."""

    rounds: int  # number of rounds so far
    progress: float  # u, the progress so far
    slowness: float  # B of all later rounds
    evaluated: int  # the round of the last evaluation
    evaluate_every: int  # rounds between two evaluations


class Passage(NamedTuple):
    """The number of all rounds until the goal is reached; infinite if the goal is out of sight."""

    rounds: float  # the forecast
    fewest: float  # the range from `fewest` to `most` is meant to hold 8 of 10 real curves
    most: float


def passage(trend: Trend, goal: Standing, course: Course) -> Passage:
    """Forecast when the curve reaches the goal, if the present plan stays."""
    rounds, counts = _evaluations_ahead(course)
    ahead = trend.at(np.log(course.progress + (rounds - course.rounds) / course.slowness))
    spread = SPREAD * np.sqrt(ahead.level_variance)
    return Passage(
        *(
            _first(rounds, counts, np.asarray(ahead.level + side * spread), goal)
            for side in (0.0, 1.0, -1.0)  # the forecast, then the fewest and the most rounds
        )
    )


def _evaluations_ahead(course: Course) -> tuple[IntN, IntN]:
    """The rounds of evaluations up to the horizon, and how many evaluations each of them stands for.

    The rounds are spaced evenly in logarithms: the next evaluations are all there, and of later evaluations,
    one in ever more.
    """
    # Evaluations that were due since the last one and are left out, because the model had not changed.
    passed = (course.rounds - course.evaluated) // course.evaluate_every
    count = max(math.ceil(HORIZON * course.rounds / course.evaluate_every), 1)
    ahead = np.unique(np.geomspace(1, count, MOST_EVALUATIONS).round().astype(np.int64))
    return course.evaluated + course.evaluate_every * (passed + ahead), np.diff(ahead, prepend=0)


def _first(rounds: IntN, counts: IntN, levels: Floats, goal: Standing) -> float:
    """The first of these rounds by which the goal has been reached with a probability of one half."""
    distance = LOGISTIC * (levels - goal.z) / goal.error
    log_missed = -counts * np.logaddexp(0.0, distance)  # log probability that all of them miss the goal
    (reached,) = np.nonzero(log_missed.cumsum() <= -math.log(2))
    return float(rounds[reached[0]]) if reached.size else math.inf
