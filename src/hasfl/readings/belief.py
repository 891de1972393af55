"""What a training believes about noise, drift and skew; before the first reading it is a guess.

This file needs no torch, so that `hasfl plan` can plan with the same guess. docs/constants.md compares the
guesses and the errors here with trainings of many fixed plans ("the grids").
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from hasfl.arrays import FloatL
from hasfl.constants import DRIFT_OVER_INTERVALS, MeasuredConstants
from hasfl.profile import Profile
from hasfl.readings.tracking import LEAST, Measured, Tracked

# Guesses before the first reading, and by which factor a guess is wrong (one standard deviation).
# Noise of 20 devices, in samples, over the 0.4th power of the number of weights. The grids say 0.2 to 0.8
# samples for 23 thousand weights, 5 for 11 million, and 12 for 15 million.
GUESSED_NOISE, NOISE_POWER, NOISE_FACTOR = 0.01, 0.4, 4.0
# Drift of the whole model, divided by (N − 1) I^0.4. The grids say 0.15 for VGG-16 and for ResNet-18.
GUESSED_DRIFT, DRIFT_FACTOR = 0.15, 1.5
GUESSED_SKEW, SKEW_ERROR = 1.0, 1.0

# Errors of the ways of reading, beyond the scatter that a reading shows of itself (standard deviations).
NOISE_MODEL_ERROR = math.log(1.6)
DRIFT_MODEL_ERROR = math.log(2.5)
SKEW_MODEL_ERROR = 0.5

# Layers share drift and skew as the p-th powers of their numbers of weights. With p = 0.4 the grids of three
# networks give nearly the same drift of the whole model, whichever cut it is computed from.
SHARE_POWER = 0.4
BITS_OF_A_WEIGHT = 32
DEVICES_OF_GRIDS = 20
LEAST_PRIVATE = 0.01  # a smaller share in private layers says nothing of the other layers


@dataclass
class Belief:
    """Noise, drift and skew as far as they are known."""

    noise: Tracked  # ln noise
    drift: Tracked  # ln drift, of a model that devices hold whole
    skew: Tracked  # of a model that devices hold whole
    share_of: FloatL  # each layer's share of the drift and of the skew
    interval: int  # I
    devices: int  # N

    @classmethod
    def guessed(cls, profile: Profile, devices: int, interval: int) -> Self:
        """The guess before the first reading, for the learning rate of the grids: 0.05 without momentum."""
        bits = profile.param_bits_upto
        noise = GUESSED_NOISE * max(float(bits[-1]) / BITS_OF_A_WEIGHT, 1.0) ** NOISE_POWER
        noise *= DEVICES_OF_GRIDS / devices
        sizes = np.diff(bits, prepend=0.0) ** SHARE_POWER
        total = float(sizes.sum())
        shares = sizes / total if total > 0 else np.full(len(sizes), 1 / len(sizes))
        drift = max(GUESSED_DRIFT * (devices - 1) * interval**DRIFT_OVER_INTERVALS, LEAST)
        return cls(
            noise=_with_mean(noise, NOISE_FACTOR),
            drift=_with_mean(drift, DRIFT_FACTOR),
            skew=Tracked(GUESSED_SKEW, SKEW_ERROR**2),
            share_of=shares,
            interval=interval,
            devices=devices,
        )

    def take(self, *, noise: Measured, drift: Measured | None, skew: Measured | None, depth: int) -> None:
        """Take in what one reading saw: ln noise, ln drift and the skew of the first `depth` layers."""
        self.noise.read(noise, model_error=NOISE_MODEL_ERROR)
        private = float(self.share_of[:depth].sum())
        if private < LEAST_PRIVATE:
            return
        if drift is not None:
            whole = Measured(drift.value - math.log(private), drift.error)
            self.drift.read(whole, model_error=DRIFT_MODEL_ERROR)
        if skew is not None:
            self.skew.read(skew.times(1 / private), model_error=SKEW_MODEL_ERROR)

    def constants(self) -> MeasuredConstants:
        """The constants as they are known now.

        Training time is linear in noise and in drift, so the expected time needs their means. R∞ is unknown
        and scales all plans alike, so it is 1. With one device, or an aggregation after every
        round, private layers make no difference, so drift and skew are 0.

        A device whose own layers follow its own data has a smaller loss within an interval, by the factor
        e^−skew_J, and so smaller noise. The drift of the first J layers is reduced by the same factor.
        """
        drifts = self.interval > 1 and self.devices > 1
        private_share_of = self.share_of if drifts else np.zeros_like(self.share_of)
        skew_of = max(self.skew.level, 0.0) * private_share_of
        drift_upto = _mean(self.drift) * private_share_of.cumsum() * np.exp(-skew_of.cumsum())
        return MeasuredConstants(
            rounds=1.0,
            noise=_mean(self.noise),
            drift_of=np.diff(np.maximum.accumulate(drift_upto), prepend=0.0),
            skew_of=skew_of,
            noise_error=self.noise.error,
            drift_error=self.drift.error,
            skew_error=self.skew.error,
        )


def _with_mean(mean: float, factor: float) -> Tracked:
    """The logarithm of a number with this mean that is known to a factor."""
    variance = math.log(factor) ** 2
    return Tracked(math.log(mean) - variance / 2, variance)


def _mean(logarithm: Tracked) -> float:
    """The mean of a number whose logarithm is tracked (log-normal distribution)."""
    return math.exp(logarithm.level + logarithm.variance / 2)
