"""Guesses the constants of a training before its first round: six guesses, each with a weight.

This file needs no torch, so that `hasfl plan` and `hasfl train` use the same guesses. docs/constants.md
compares the guesses with trainings of many fixed plans, which are called "the grids" there and here.
"""

import numpy as np

from hasfl.constants import DRIFT_OVER_INTERVALS, Guess, Guesses, MeasuredConstants
from hasfl.profile import Profile

# The noise of 20 devices, in samples, is NOISE times the 0.4th power of the number of weights. On the grids,
# it is 0.2 to 0.8 samples for 23 thousand weights, 5 for 11 million, and 12 for 15 million.
NOISE, NOISE_POWER, DEVICES_OF_GRIDS = 0.01, 0.4, 20
BITS_OF_A_WEIGHT = 32
# Noise is proportional to the learning rate of plain SGD. This was measured for rates from RATES[0] to
# RATES[1]; a rate outside counts as the nearer one of the two.
RATE_OF_GRIDS, RATES = 0.05, (0.0125, 0.1)
# The factors by which the noise may differ from NOISE, one for each guess. Chosen by hand: the true noise may
# be several times smaller or larger, about four times for a small transformer.
NOISES = {"little noise": 0.25, "middling noise": 1.0, "much noise": 4.0}
# The drift of the whole model over (N − 1) I^0.4, and the curvature, if all devices learn one task: then
# replicas drift apart. If devices have unlike labels, replicas may serve their own device's labels
# (OWN_…): then they drift less, but small batches cost more.
DRIFT, CURVATURE = 0.075, 0.05
OWN_DRIFT, OWN_CURVATURE = 0.025, 0.3
SKEW = 1.0  # the skew of the whole model
# Layers share drift and skew as the p-th powers of their numbers of weights. With p = 0.4 the grids of three
# networks give nearly the same drift of the whole model, whichever cut it is computed from.
SHARE_POWER = 0.4
# The weight of the guesses "own labels" if no two devices share a label, or if labels are unknown.
MOST_OF_OWN = 0.5


def guesses(
    profile: Profile, *, devices: int, interval: int, unlikeness: float | None, learning_rate: float | None
) -> Guesses:
    """The guesses for a model, N devices, an interval I and labels of some unlikeness.

    `unlikeness` is 0 if all devices have the same shares of labels, 1 if they have no label in common, and
    None if it is unknown (`data/partition.py`). None counts as 1, because a plan for unlike labels does
    little harm if labels are alike, but with a plan for alike labels training may fail on unlike labels.

    `learning_rate` is that of plain SGD; with another optimiser it is None, and the noise is that of the
    grids. R∞ is unknown and scales all plans alike, so it is 1.
    """
    bits = profile.param_bits_upto
    noise = NOISE * max(float(bits[-1]) / BITS_OF_A_WEIGHT, 1.0) ** NOISE_POWER * DEVICES_OF_GRIDS / devices
    if learning_rate is not None:
        noise *= float(np.clip(learning_rate, *RATES)) / RATE_OF_GRIDS
    sizes = np.diff(bits, prepend=0.0) ** SHARE_POWER
    total = float(sizes.sum())
    share_of = sizes / total if total > 0 else np.full(len(sizes), 1 / len(sizes))
    walks = (devices - 1) * interval**DRIFT_OVER_INTERVALS
    own = MOST_OF_OWN * (1.0 if unlikeness is None else unlikeness)
    ways = (
        ("one task", 1 - own, DRIFT, CURVATURE),
        ("own labels", own, OWN_DRIFT, OWN_CURVATURE),
    )
    return Guesses(
        tuple(
            Guess(
                says=f"{way}, {how_much}",
                weight=weight,
                constants=MeasuredConstants(
                    rounds=1.0,
                    noise=factor * noise,
                    drift_of=drift * walks * share_of,
                    skew_of=SKEW * share_of if devices > 1 else None,
                    curvature=curvature,
                ),
            )
            for way, weight, drift, curvature in ways
            for how_much, factor in NOISES.items()
            if weight > 0
        )
    )
