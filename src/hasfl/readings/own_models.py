"""What the devices' own models show just before an aggregation: drift and skew (docs/constants.md).

The head of `readings/noise_and_drift.py` has the equations. Up to `MOST_DEVICES` devices compare their own
models w_i with the mean model w̄, each on samples of its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hasfl.arrays import FloatN, IntN
from hasfl.plan import Order
from hasfl.readings.gradients import (
    Samples,
    difference,
    gradient,
    losses_of,
    products,
    require_finite,
    weights_of,
)
from hasfl.readings.probe import Probe
from hasfl.readings.tracking import Measured
from hasfl.state.layer_state import LayerState

MOST_DEVICES = 40  # that compare their models; the scatter over so many is small
LEAST_OWN_LOSS = 1e-3  # of the mean model's loss: a device's own loss is taken to be no smaller


@dataclass(frozen=True, slots=True, eq=False)
class OwnModels:
    """How the devices' own models differ from the mean model."""

    drift: Measured  # ln drift of the layers that are private now
    skew: Measured  # of the layers that are private now
    walked: float  # the squared length of a random walk over that of the drift
    loss: float  # L, of the mean model
    own_loss: float  # l, of the devices' own models, each on its own samples


def compared_devices(probe: Probe, order: Order, sizes: IntN) -> IntN:
    """The places in the order of the devices that compare their models, if they give `sizes` samples."""
    (able,) = np.nonzero(sizes)
    drawn: IntN = probe.data.seeds.stream("own models", order.round).permutation(able)[:MOST_DEVICES]
    return drawn


def look_at_own_models(
    probe: Probe, order: Order, sizes: IntN, mean: Sequence[LayerState], *, floor: float, walk: float
) -> OwnModels:
    """Compare own models with the mean model.

    `floor` is the loss that the noise of common steps adds, and `walk` the squared length that a random walk
    would have. Where own models gain on their own samples, they follow their own data and do not walk at
    random. Then the skew is read, and the drift is not.
    """
    asked = compared_devices(probe, order, sizes)
    seen = [_of_device(probe, int(order.devices[i]), int(sizes[i]), mean, order.round) for i in asked]
    at_mean, at_own, linear = np.array(seen).T
    loss, own_loss = float(at_mean.mean()), float(at_own.mean())
    require_finite(order.round, loss, own_loss, float(linear.sum()))
    apart = _squared_distance(probe, mean)
    walked = walk / apart if apart > 0 else 1.0
    added = min(walked, 1.0) * (at_own - at_mean - linear)  # by the random walk, for each device
    drift = Measured.total(added).times(1 / len(asked) / floor).logarithm()
    skew = _skew(at_mean, at_own)
    return OwnModels(
        drift=drift if skew.value <= skew.error else Measured(0.0, math.inf),
        skew=skew,
        walked=walked,
        loss=loss,
        own_loss=own_loss,
    )


def _of_device(
    probe: Probe, device: int, half: int, mean: Sequence[LayerState], round: int
) -> tuple[float, float, float]:
    """F_i(w̄), F_i(w_i) and ⟨∇F_i(w̄), w_i − w̄⟩ on samples of one device."""
    own, depth = probe.state.model_of(device), probe.state.depth
    samples = Samples.of(probe.data, [probe.some_samples("read", device, round)[: 2 * half]])
    slope, at_mean = gradient(probe, mean, samples, round, upto=depth)
    drifted = difference(weights_of(own[:depth]), weights_of(mean[:depth]))
    at_own = losses_of(probe, own, samples, round)
    return float(at_mean), float(at_own), float(products(slope, drifted).sum())


def _skew(at_mean: FloatN, at_own: FloatN) -> Measured:
    """k/(1 − e^−k) − 1 with k = ln(L/l). It is below 0 where drift adds more than own data take away.

    The error of k follows from the scatter of F_i(w̄)/L − F_i(w_i)/l over devices. A loss of 0 or below says
    nothing.
    """
    loss = float(at_mean.mean())
    if loss <= 0:
        return Measured(0.0, math.inf)
    own = max(float(at_own.mean()), LEAST_OWN_LOSS * loss)
    k = math.log(loss / own)
    error = Measured.total(at_mean / loss - at_own / own).error / len(at_own)
    return Measured(k / -math.expm1(-k) - 1 if k else 0.0, error)


def _squared_distance(probe: Probe, mean: Sequence[LayerState]) -> float:
    """The mean over devices of |w_i − w̄|²."""
    total = 0.0
    for state, middle in zip(probe.state.private, mean, strict=False):
        for name, weights in state.weights.items():  # one by one, because replicas may fill the memory
            apart = weights - middle.weights[name]
            total += float(apart.square_().sum(dtype=torch.float64))
    return total / len(probe.state.devices)
