"""What the learning curve says of the noise that plans rest on.

Two plans with different batch sizes make the same training at different speeds. If the noise is taken for too
small, small batches are credited with too much progress, and the curve over progress bends where the plan
changes. For each factor m on the noise, the progress u_m follows, and the filter of `forecasting/curve.py`
says how likely the evaluations are. The curve does not care about the scale of u. So where the plan never
changed, all factors are equally likely, and nothing is learnt.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hasfl.forecasting.curve import Evaluated, Floats, Trend
from hasfl.forecasting.progress import Stretch, progress

REACH = 3.0  # factors up to so many standard errors of the noise are tried
FACTORS = 61  # that are tried
SHARE_DIGITS = 6  # after the point: shares of noise that agree so far are the same
LEAST_GAIN = 1e-6  # of the precision of the noise; less is no information
# A slope needs two evaluations, and a third one shows their scatter. So many must lie under each of two
# plans, or else the slow start of a training would be taken for noise.
LEAST_EVALUATIONS = 3


class Evidence(NamedTuple):
    """By how much the noise should be corrected, as a reading of it."""

    log: float = 0.0  # of the factor on the noise
    error: float = math.inf  # standard error of `log`; infinite where nothing is known

    @property
    def says_something(self) -> bool:
        """Whether there is information at all."""
        return math.isfinite(self.error)


def noise_evidence(
    stretches: Sequence[Stretch], evaluations: Sequence[Evaluated], noise_error: float
) -> Evidence:
    """The evidence of a learning curve, apart from what is believed of the noise with `noise_error`.

    The posterior of ln m under the prior N(0, noise_error²) has a mean and a variance. The evidence is the
    reading that turns the prior into this posterior.
    """
    if noise_error <= 0 or not _comparable(stretches, evaluations):
        return Evidence()
    logs = np.linspace(-REACH * noise_error, REACH * noise_error, FACTORS)
    prior = -((logs / noise_error) ** 2) / 2
    _, before = _moments(logs, prior)
    mean, after = _moments(logs, prior + _log_likelihoods(stretches, evaluations, np.exp(logs)))
    gain = 1 / after - 1 / before
    return Evidence(mean / after / gain, 1 / math.sqrt(gain)) if gain > LEAST_GAIN / before else Evidence()


def _comparable(stretches: Sequence[Stretch], evaluations: Sequence[Evaluated]) -> bool:
    """Whether two plans, with different shares of noise in their slowness, have enough evaluations each."""
    ends = np.cumsum([stretch.rounds for stretch in stretches])
    under = np.searchsorted(ends, [each.round for each in evaluations])  # the stretch of each evaluation
    shares = [stretch.slowness.noisy / stretch.slowness.whole for stretch in stretches]
    counts = Counter(round(shares[k], SHARE_DIGITS) for k in under)
    return sum(count >= LEAST_EVALUATIONS for count in counts.values()) > 1


def _log_likelihoods(
    stretches: Sequence[Stretch], evaluations: Sequence[Evaluated], factors: Floats
) -> Floats:
    """How likely the evaluations are for each factor on the noise."""
    rounds = np.array([each.round for each in evaluations], dtype=np.float64)
    xs = np.log(progress(stretches, rounds, factors))
    trend, total = Trend.begun(xs[0], evaluations[0].standing), np.zeros_like(factors)
    for x, each in zip(xs[1:], evaluations[1:], strict=True):
        trend = trend.at(x)
        total = total + trend.log_likelihood(each.standing)
        trend = trend.reading(each.standing)
    return total


def _moments(logs: Floats, log_density: Floats) -> tuple[float, float]:
    """The mean and the variance of a density on a grid."""
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    mean = float(density @ logs)
    return mean, float(density @ (logs - mean) ** 2)
