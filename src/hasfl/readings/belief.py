"""What a training believes about noise, drift and skew; before the first reading it is a guess.

This file needs no torch, so that `hasfl plan` can plan with the same guess.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from hasfl.arrays import FloatL
from hasfl.constants import SINGLE_NOISE, MeasuredConstants
from hasfl.profile import Profile
from hasfl.readings.tracking import GUESS_ERROR, LEAST, Tracked

# Guesses before the first reading. Readings on digits and VGG-16 are in docs/constants.md.
GUESSED_NOISE = 0.5  # samples; a low guess gives short rounds, so little time is lost until the first reading
GUESSED_DRIFT = 0.015  # for each device and round of an interval
GUESSED_SKEW = 0.5
SINGLE_NOISE_UNREAD = 100.0  # until noise has been read, single samples under batch norm are ruled out


@dataclass
class Belief:
    """Noise, drift and skew as far as they are known."""

    noise: Tracked
    drift: Tracked  # of a model that devices hold whole
    share_of: FloatL  # each layer's share of the noise, and so of the drift and the skew
    interval: int  # I
    devices: int  # N
    skew: float = GUESSED_SKEW  # of a model that devices hold whole; readings below 0 count too

    @classmethod
    def guessed(cls, profile: Profile, devices: int, interval: int) -> Self:
        """The guess before the first reading: layers share the noise as they share the weights."""
        bits = np.diff(profile.param_bits_upto, prepend=0.0)
        total = float(bits.sum())
        shares = bits / total if total > 0 else np.full(len(bits), 1 / len(bits))
        drift = max(GUESSED_DRIFT * devices * interval, LEAST)
        return cls(Tracked(math.log(GUESSED_NOISE)), Tracked(math.log(drift)), shares, interval, devices)

    def constants(self) -> MeasuredConstants:
        """The constants as they are known now.

        R∞ is unknown and scales all plans alike, so it is 1. With one device, or an aggregation after every
        round, private layers make no difference, so drift and skew are 0.
        """
        drifts = self.interval > 1 and self.devices > 1
        private_share_of = self.share_of if drifts else np.zeros_like(self.share_of)
        return MeasuredConstants(
            rounds=1.0,
            noise=self.noise.value,
            drift_of=self.drift.value * private_share_of,
            skew_of=max(self.skew, 0.0) * private_share_of,
            noise_error=self.noise.error,
            drift_error=self.drift.error,
            single_noise=SINGLE_NOISE if self.noise.error < GUESS_ERROR else SINGLE_NOISE_UNREAD,
        )
