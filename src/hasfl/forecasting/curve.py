"""The learning curve of a training: a line in logarithms whose slope wanders.

    z = ln(q / (1 − q)),     x = ln u

q is the accuracy on held-out samples, or e^−loss, which is the probability of the right label of a typical
sample. u is the progress of training (`forecasting/progress.py`). Both z of an accuracy and z of a loss grow
nearly as a line in x, on data sets that are learnt in 50 rounds as well as on those that need 2,000. The
slope differs, and it changes while training goes on:

    dz = slope dx,     d slope = PULL (USUAL_SLOPE − slope) dx + WANDER dW

W is a Wiener process, so z is Gaussian, and a filter for two numbers gives z everywhere (Kalman 1960). The
level of z at the first evaluation is taken as it is read: a curve may begin anywhere.

Every evaluation is on the same held-out samples. So most of the error of sampling is common to all of them,
and it is the same for the goal: an accuracy that stays below the goal does not pass it by luck. Only a part
of the error, `ALONE`, makes evaluations scatter about the curve.

The numbers below were chosen on trained runs; benchmarks/forecasts.py shows how good the forecasts are.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

USUAL_SLOPE = 1.0  # to which slopes return; curves have 0.4 (VGG-16, two shards) to 2.5 (digits)
SLOPE_ERROR = 0.7  # standard deviation of the slope at the first evaluation
PULL = 0.3  # for each unit of x
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
        kept = np.exp(-PULL * way)  # of the slope's distance from the usual slope
        carried = -np.expm1(-PULL * way) / PULL  # by how much a unit of slope raises the level
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

    goal: Standing  # with the error of an evaluation about the curve
    rounds: list[int] = field(default_factory=list)  # after which the model was evaluated
    trend: Trend | None = None  # after these evaluations

    def read(self, round: int, standing: Standing, progress: float) -> None:
        """Take in an evaluation after a round, with the progress until then."""
        self.rounds.append(round)
        x = math.log(progress)
        before = self.trend
        self.trend = Trend.begun(x, standing) if before is None else before.at(x).reading(standing)
