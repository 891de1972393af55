"""The learning curve of a training, and the evaluation that will be the first to reach a goal.

The curve is a line in logarithms whose slope wanders:

    z = ln(q / (1 − q)),     x = ln u

q is the accuracy on held-out samples, or e^−loss, which is the probability of the right label of a typical
sample. u is the progress of training (`training/forecaster.py`). Both z of an accuracy and z of a loss grow
nearly as a line in x, on data sets that are learnt in 50 rounds as well as on those that need 2,000. The
slope differs, and it changes while training goes on:

    dz = slope dx,     d slope = PULL (USUAL_SLOPE − slope) dx + WANDER dW

W is a Wiener process, so z is Gaussian, and a filter for two numbers gives z everywhere (Kalman 1960). The
level of z at the first evaluation is taken as it is read: a curve may begin anywhere.

Every evaluation is on the same held-out samples. So most of the error of sampling is common to all of them,
and it is the same for the goal: an accuracy that stays below the goal does not pass it by luck. Only a part
of the error, `ALONE`, makes evaluations scatter about the curve.

Training ends at the first evaluation that is good enough. Single evaluations scatter about the curve, so each
one that comes near the goal may be the one. If the curve is at z_k at the k-th evaluation ahead, then this
evaluation reaches the goal with the probability Φ((z_k − goal)/error). The forecast is the first k at which
the goal has been reached with a probability of one half.

The numbers below were chosen on trained runs; benchmarks/forecasts.py shows how good the forecasts are.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import IntN

# ── the curve ────────────────────────────────────────────────────────────────────────────────────────────


Floats = NDArray[np.float64]

USUAL_SLOPE = 1.0  # slopes return to it; curves have 0.4 (VGG-16, two shards) to 2.5 (digits)
SLOPE_ERROR = 0.7  # standard deviation of the slope at the first evaluation
PULL = 0.3  # how fast they return, for each unit of x
WANDER = 0.4  # standard deviation that the slope gains over a unit of x
EVALUATION_ERROR = 0.06  # standard deviation of z from one evaluation to the next, however many samples
SAMPLING = 1.2  # the standard deviation of an accuracy, in those of independent draws
# The part of this standard deviation that is not common to all evaluations of the same held-out samples;
# chosen by hand among numbers that forecast stored runs about equally well.
ALONE = 0.42
LEAST_LOSS = 1e-9  # smaller losses count as this
LOSS_SPREAD = 2.0  # the standard deviation of the loss of a sample, over the mean loss


class Standing(NamedTuple):
    """How good a model is: z, and the standard error of z."""

    z: float
    error: float


def of_accuracy(accuracy: float, samples: int, part: float = 1.0) -> Standing:
    """z of an accuracy on so many samples. Half a sample is added to the right and to the wrong ones.

    A model's own score may leave the range from 0 to 1; it then counts as 0 or 1. Only a `part` of the error
    of sampling counts.
    """
    share = min(max(accuracy, 0.0), 1.0)
    right, wrong = samples * share + 0.5, samples * (1 - share) + 0.5
    drawn = (part * SAMPLING) ** 2 * (1 / right + 1 / wrong)
    return Standing(math.log(right / wrong), math.sqrt(EVALUATION_ERROR**2 + drawn))


def of_loss(loss: float, samples: int, part: float = 1.0) -> Standing:
    """z of a loss: −ln(e^loss − 1). The derivative by the loss is −1 / (1 − e^−loss)."""
    positive = max(loss, LEAST_LOSS)
    missed = -math.expm1(-positive)  # 1 − q
    drawn = (part * LOSS_SPREAD * positive / missed) ** 2 / samples
    return Standing(-positive - math.log(missed), math.sqrt(EVALUATION_ERROR**2 + drawn))


@dataclass(frozen=True, slots=True, eq=False)
class Trend:
    """What is known of z and its slope at x: means and covariances. Arrays stand for many trends at once."""

    x: Floats
    level: Floats  # the mean of z
    slope: Floats
    level_variance: Floats
    covariance: Floats
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
        """The trend further on, where nothing more is read."""
        way = np.asarray(x - self.x, dtype=np.float64)
        kept = np.exp(-PULL * way)  # what is left of the slope's distance from the usual slope
        carried = -np.expm1(-PULL * way) / PULL  # what a unit of slope adds to the level
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
        """The trend after an evaluation here."""
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

    goal: Standing  # its error is that of an evaluation about the curve
    rounds: list[int] = field(default_factory=list)  # those after which the model was evaluated
    trend: Trend | None = None  # what these evaluations say

    def read(self, round: int, standing: Standing, progress: float) -> None:
        """Take in an evaluation after a round, with the progress until then."""
        self.rounds.append(round)
        x = math.log(progress)
        before = self.trend
        self.trend = Trend.begun(x, standing) if before is None else before.at(x).reading(standing)


# ── the first evaluation that reaches the goal ───────────────────────────────────────────────────────────


HORIZON = 200.0  # a goal is out of sight if it needs more than so many times the rounds of before
MOST_EVALUATIONS = 2000  # no more are looked at
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
