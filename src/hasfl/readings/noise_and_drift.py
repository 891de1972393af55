"""A reading: how much noise, drift and skew cost a training, measured in the training (docs/constants.md).

**Noise.** At the mean model w̄, take two batches A and C that share no sample, about as large as the devices'
batches. Let Δ be the displacement that A's gradient causes. Moving by Δ takes back a part of the slope:

    overshoot = ⟨g_A(w̄) − g_A(w̄ − Δ), Δ⟩ / ⟨g_A, Δ⟩        as the samples of the step see it
    carried   = ⟨g_C(w̄) − g_C(w̄ − Δ), Δ⟩ / ⟨g_A, Δ⟩        as other samples see it

Training with a fixed learning rate settles where overshoot is about as large as it may be, and progresses as
fast as carried says. The smaller the batch, the larger the part of overshoot that only its own samples see.
So the number of rounds grows by the factor

    1 + noise · mean_i(1/b_i),     noise · mean_i(1/a_i) = min(overshoot, 1) · (overshoot / carried − 1)

where a_i is the number of device i's samples in A. Where overshoot is small, noise costs nothing. Both are
measured on a fraction of Δ and scaled up, because the slope is nearly straight that far.

**Drift.** Between aggregations, layers that a device holds for itself carry N times the noise of a common
layer. The cost is the loss that the drift δ_i = w_i − w̄ adds, relative to the loss that the noise of common
steps adds:

    drift = ⟨∇F_i(w_i) − ∇F_i(w̄), δ_i⟩ / 4   over   Σ_j ⟨noise_j, its displacement⟩ / (4 N b)

Drift is shared out over layers in proportion to their noise, which A and C give for every layer. Only the
part of the drift counts that falls with b: a random walk of I steps, whose squared length A and C predict.
The rest follows the devices' own data and grows with I². Its cost is the skew.

**Skew.** Where devices' data differ, a device's own layers follow its own samples. Its loss falls from L, the
loss of the mean model, to l, and the aggregation brings it back. If the loss falls by the same factor every
round, its mean is L (1 − e^−k)/k with k = ln(L/l). Gradients and progress shrink alike, so rounds grow by
k/(1 − e^−k), which is at most 1 + k. Noise makes l larger and hides a part of k, so the upper end is taken:
skew = k. A device's noise also falls with its loss, while a reading sees the noise at L. So only the share
l/L of the drift counts.

With clipping, displacements are scaled as A's gradient is clipped. Noise and drift are those of the round's
learning rate and of the devices that take part; `Conditions` says how they change with both.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import FloatL, IntN
from hasfl.plan import Order
from hasfl.readings.gradients import (
    Gradient,
    Samples,
    difference,
    gradient,
    moved,
    products,
    require_finite,
    weights_of,
)
from hasfl.readings.probe import Probe
from hasfl.state.layer_state import LayerState
from hasfl.state.precision import tensor_cores
from hasfl.state.updates import scaled

LEAST_HALF = 16  # samples of all devices together in A, and in C, if the devices hold that many
DRIFTED_DEVICES, DRIFT_SAMPLES = 2, 4  # devices whose drift is looked at, and samples of each
FRACTION = 0.2  # of Δ: far enough to be measured, short enough for the slope to be nearly straight
LEAST_OWN_LOSS = 1e-3  # of the mean model's loss: a device's own loss is taken to be no smaller
LEAST_CARRIED = 0.02  # of the overshoot: a smaller value cannot be told from noise


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What was measured just before one aggregation."""

    noise: float  # samples: the batch size at which the rounds double
    drift: float | None  # of the layers that are private now; None where nothing has drifted
    walked: float | None  # the random walk's share in the squared length of the drift
    share_of: FloatL  # each layer's share of the noise; the shares sum to 1
    loss: float  # of the mean model
    overshoot: float
    carried: float

    def undone(self, own_loss: float) -> float:
        """k = ln(L/l): how much of the devices' own progress the aggregation takes back."""
        return math.log(self.loss / max(own_loss, LEAST_OWN_LOSS * self.loss)) if self.loss > 0 else 0.0


def samples_beyond_training(order: Order) -> int:
    """How many samples a reading sends that training itself would not send.

    A and C are sent for two models. For one of the models, the next round's batch serves, where it can be
    halved. The samples for the drift come on top.
    """
    pairs = 2 * _half_sizes(order)
    fresh = np.maximum(pairs - order.batch_sizes, 0)
    return int((pairs + fresh).sum()) + 2 * DRIFTED_DEVICES * DRIFT_SAMPLES


def take_reading(probe: Probe, order: Order, interval: int) -> Reading:
    """Measure just before an aggregation, `interval` rounds after the last one. Training is left alone."""
    with tensor_cores(probe.data.x.device):
        return _take_reading(probe, order, interval)


def _take_reading(probe: Probe, order: Order, interval: int) -> Reading:
    mean = probe.state.mean()
    halves, per_device = _two_batches(probe, order)
    (first, loss), (second, other_loss) = (gradient(probe, mean, half, order.round) for half in halves)
    clip = probe.updates.clip_factor(products(first, first).sum())
    reach = displacement(probe, mean, first, order.round, clip)
    overshoot, carried = _taken_back(probe, mean, halves, (first, second), reach, order.round)
    apart = difference(first, second)
    jump = displacement(probe, mean, apart, order.round, clip)
    power = products(apart, jump) * per_device / 2  # of one sample's noise, divided by N
    drift, walked = None, None
    if probe.state.depth and len(order.devices) > 1 and float(power.sum()) > 0:
        walk = products(jump, jump)[: probe.state.depth].sum() * per_device / 2
        walked = _walked(probe, order, mean, float(walk), interval)
        drift = walked * _drift(probe, order, mean, float(power.sum()))
    return Reading(
        noise=_noise(overshoot, carried) * per_device,
        drift=drift,
        walked=walked,
        share_of=_shares(power.cpu().numpy()),
        loss=float(loss + other_loss) / 2,
        overshoot=overshoot,
        carried=carried,
    )


def _taken_back(
    probe: Probe,
    mean: Sequence[LayerState],
    halves: Sequence[Samples],
    gradients: tuple[Gradient, Gradient],
    reach: Gradient,
    round: int,
) -> tuple[float, float]:
    """Overshoot and carried: the part of each slope that `reach`, the first gradient's step, takes back."""
    step = [{name: FRACTION * tensor for name, tensor in layer.items()} for layer in reach]
    after = moved(mean, step)
    lost = [
        products(difference(before, gradient(probe, after, half, round)[0]), step)
        for before, half in zip(gradients, halves, strict=True)
    ]
    totals = [per_layer.sum() for per_layer in (products(gradients[0], step), *lost)]
    slope, own, others = torch.stack(totals).tolist()
    require_finite(round, slope, own, others)
    if slope <= 0:
        return 0.0, 0.0
    return max(own / slope, 0.0) / FRACTION, others / slope / FRACTION


def displacement(
    probe: Probe, states: Sequence[LayerState], gradients: Gradient, round: int, clip: Tensor
) -> Gradient:
    """How far gradients move weights in the long run, by the optimiser's rule, if they are clipped by `clip`.

    Weight decay is left out: it is the same for every batch, so it makes no noise.
    """
    pairs = zip(states, gradients, strict=True)
    return [scaled(probe.updates.reach(state, layer, round), clip) for state, layer in pairs]


def _noise(overshoot: float, carried: float) -> float:
    """The noise of batches as large as A, in units of 1/a."""
    if overshoot <= 0:
        return 0.0
    others = max(carried, LEAST_CARRIED * overshoot)
    return min(overshoot, 1.0) * max(overshoot / others - 1, 0.0)


def _walked(probe: Probe, order: Order, mean: Sequence[LayerState], walk: float, interval: int) -> float:
    """The share of the drift that a random walk explains: I steps with the noise of a device's own batch."""
    devices = len(order.devices)
    private = [state.weights for state in probe.state.private]
    apart = difference(private, weights_of(mean[: len(private)]))
    squared = float(products(apart, apart).sum()) / devices
    expected = interval * (devices - 1) * walk * float((1 / order.batch_sizes).mean())
    return min(expected / squared, 1.0) if squared > 0 else 1.0


def _drift(probe: Probe, order: Order, mean: Sequence[LayerState], power: float) -> float:
    """The loss that drift adds over the loss that the noise of common steps adds, for layers private now."""
    devices = probe.data.seeds.stream("drifted", order.round).permutation(order.devices)[:DRIFTED_DEVICES]
    added = [_added_by_drift(probe, int(device), order.round, mean) for device in devices]
    per_sample = float((1 / order.batch_sizes).mean())
    return max(float(np.mean(added)), 0.0) / (power * per_sample)


def _added_by_drift(probe: Probe, device: int, round: int, mean: Sequence[LayerState]) -> float:
    """⟨∇F_i(w_i) − ∇F_i(w̄), w_i − w̄⟩ on a device's own samples."""
    own = probe.state.model_of(device)
    samples = Samples.of(probe.data, [probe.some_samples("read", device, round)[:DRIFT_SAMPLES]])
    depth = probe.state.depth  # deeper layers are common and have not drifted
    at_own, at_mean = (gradient(probe, states, samples, round, upto=depth)[0] for states in (own, mean))
    drifted = difference(weights_of(own[:depth]), weights_of(mean[:depth]))
    return float(products(difference(at_own, at_mean), drifted).sum())


def _two_batches(probe: Probe, order: Order) -> tuple[list[Samples], float]:
    """A and C, and the harmonic mean of the numbers of samples that devices have in A."""
    first, second, sizes = [], [], []
    for device, wanted in zip(order.devices.tolist(), _half_sizes(order).tolist(), strict=True):
        indices = probe.some_samples("read", device, order.round)
        half = min(wanted, len(indices) // 2)
        if half:
            first.append(indices[:half])
            second.append(indices[half : 2 * half])
            sizes.append(half)
    halves = [Samples.of(probe.data, indices) for indices in (first, second)]
    return halves, len(sizes) / sum(1 / size for size in sizes)


def _half_sizes(order: Order) -> IntN:
    """How many samples of each device are wanted in A, and as many in C."""
    least = math.ceil(LEAST_HALF / len(order.devices))
    sizes: IntN = np.maximum(order.batch_sizes // 2, least)
    return sizes


def _shares(power: FloatL) -> FloatL:
    """Each layer's share of the noise; equal shares where there is no noise."""
    power = np.maximum(power, 0.0)
    total = float(power.sum())
    shares: FloatL = power / total if total > 0 else np.full(len(power), 1 / len(power))
    return shares
