"""A reading: how much noise, drift and skew cost a training, measured in the training (docs/constants.md).

**Noise.** At the mean model w̄, take two batches A and C that share no sample. Let Δ be the displacement that
A's gradient causes. Moving by Δ takes back a part of the slope along Δ:

    overshoot = ⟨g_A(w̄) − g_A(w̄ − Δ), Δ⟩ / ⟨g_A, Δ⟩        as the samples of the step see it
    carried   = ⟨g_C(w̄) − g_C(w̄ − Δ), Δ⟩ / ⟨g_A, Δ⟩        as other samples see it

Training with a fixed learning rate settles where overshoot is about as large as it may be, and progresses as
fast as carried says. The smaller the batch, the larger the part of overshoot that only its own samples see.
So the number of rounds grows by the factor

    1 + noise · mean_i(1/b_i),        noise · mean_i(1/a_i) = overshoot / carried − 1

where a_i is the number of device i's samples in A. Far from the limit of stability noise costs nothing. So
the noise is reduced where training's own batches overshoot by less than `NEAR_THE_LIMIT`. Both numbers are
measured on a fraction of Δ and scaled up, because the slope is nearly straight that far.

**Drift.** Between aggregations, layers that a device holds for itself carry N times the noise of a common
layer. The cost is the loss that the drift δ_i = w_i − w̄ adds, relative to the loss that the noise of common
steps adds:

    drift = mean_i (F_i(w_i) − F_i(w̄) − ⟨∇F_i(w̄), δ_i⟩)   over   Σ_j ⟨noise_j, its displacement⟩ / (4 N b)

The linear term is left out: it is what a device gains on its own data. Only the part of the rest counts that
falls with b: a random walk of I steps, whose squared length A and C predict. Drift is read only where devices
do not gain on their own data.

**Skew.** Where devices' data differ, a device's own layers follow its own samples. Its loss falls from L, the
loss of the mean model, to l, and the aggregation brings it back. If the loss falls by the same factor every
round, its mean is L (1 − e^−k)/k with k = ln(L/l). Gradients and progress shrink alike, so rounds grow by
k/(1 − e^−k) = 1 + skew.

Every number is a sum over devices, and its error follows from their scatter. With clipping, displacements are
scaled as A's gradient is clipped. Noise and drift are those of the round's learning rate and of the devices
that take part; `Conditions` says how they change with both.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import FloatN, IntN
from hasfl.effort import Effort, Pass
from hasfl.plan import Order
from hasfl.readings.gradients import (
    Gradient,
    Samples,
    difference,
    gradients_of_blocks,
    moved,
    products,
    require_finite,
    summed,
)
from hasfl.readings.own_models import OwnModels, compared_devices, look_at_own_models
from hasfl.readings.probe import Probe
from hasfl.readings.tracking import Measured
from hasfl.state.layer_state import LayerState
from hasfl.state.precision import tensor_cores
from hasfl.state.updates import scaled

LEAST_HALF = 60  # samples of all devices together in A, and in C, if the devices hold that many
LEAST_OF_A_DEVICE = 2  # of them, because a batch norm over one sample is noisier than 1/b says
BLOCKS = 5  # of devices, whose scatter gives the errors of overshoot and carried
FRACTION = 0.2  # of Δ: far enough to be measured, short enough for the slope to be nearly straight
NEAR_THE_LIMIT = 0.25  # overshoot of training's own batches from which on noise costs all of its rounds


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What was measured just before one aggregation."""

    noise: Measured  # ln noise; noise is the batch size at which the rounds double
    own: OwnModels | None  # drift and skew of the layers that are private now; None where nothing has drifted
    overshoot: float
    carried: float


@dataclass(frozen=True, slots=True, eq=False)
class TakenBack:
    """The part of a slope that a step takes back, as samples of the step and other samples see it."""

    slope: float  # ⟨g_A, Δ⟩
    own: FloatN  # of each block of devices; the sum is overshoot · slope
    others: FloatN  # the sum is carried · slope

    @property
    def overshoot(self) -> float:
        """The share that the samples of the step see taken back."""
        return float(self.own.sum()) / self.slope if self.slope > 0 else 0.0

    @property
    def carried(self) -> float:
        """The share that other samples see taken back."""
        return float(self.others.sum()) / self.slope if self.slope > 0 else 0.0

    def noise(self, per_device: float, per_sample: float) -> Measured:
        """ln noise, where a device has `per_device` samples in A, and `per_sample` is mean_i(1/b_i).

        Both sums are divided by the larger one, because logarithms take the smallest numbers for larger ones.
        """
        most = max(abs(float(self.own.sum())), abs(float(self.others.sum())))
        if self.slope <= 0 or most == 0:
            return Measured(0.0, math.inf)
        excess = Measured.total(self.own - self.others).times(per_device / most)
        carried = Measured.total(self.others).times(1 / most)
        near = most / self.slope * (carried.value + excess.value * per_sample) / NEAR_THE_LIMIT
        return excess.times(min(max(near, 0.0), 1.0)).logarithm().over(carried.logarithm())


def effort_of_reading(probe: Probe, order: Order) -> Effort:
    """What devices and servers do for a reading.

    Each device sends A and C through the mean model and through the displaced one; some devices also send
    them through their own layers (losses only). Before, devices receive the mean model. Then their parts of
    A's gradient go up to be averaged, and their parts of the displacement come down. A device alone has the
    mean model.
    """
    sizes = _half_sizes(probe, order)
    both, private = Pass(2 * sizes), probe.state.depth > 0 and len(order.devices) > 1
    compared = np.isin(np.arange(len(sizes)), compared_devices(probe, order, sizes))
    own = (Pass(np.where(compared, both.samples, 0), backward=False),) if private else ()
    return Effort(passes=(*own, both, both), uploads=int(private), downloads=2 * int(private))


def take_reading(probe: Probe, order: Order, interval: int) -> Reading:
    """Measure just before an aggregation, `interval` rounds after the last one. Training is left alone."""
    with tensor_cores(probe.data.x.device):
        return _take_reading(probe, order, interval)


def _take_reading(probe: Probe, order: Order, interval: int) -> Reading:
    mean, sizes = probe.state.mean(), _half_sizes(probe, order)
    halves = _two_batches(probe, order, sizes)
    blocks = [
        gradients_of_blocks(probe, mean, half, order.round, min(BLOCKS, len(half.rows)))[0] for half in halves
    ]
    first, second = map(summed, blocks)
    clip = probe.updates.clip_factor(products(first, first).sum())
    reach = displacement(probe, mean, first, order.round, clip)
    taken = _taken_back(probe, mean, halves, blocks, reach, order.round)
    asked = sizes[sizes > 0]
    per_device = len(asked) / float((1 / asked).sum())  # the harmonic mean of the a_i
    per_sample = float((1 / order.batch_sizes).mean())
    apart = difference(first, second)
    jump = displacement(probe, mean, apart, order.round, clip)
    power = float(products(apart, jump).sum()) * per_device / 2  # of one sample's noise, divided by N
    own = None
    if probe.state.depth and len(order.devices) > 1 and power > 0:
        walk = float(products(jump, jump)[: probe.state.depth].sum()) * per_device / 2
        own = look_at_own_models(
            probe,
            order,
            sizes,
            mean,
            floor=power * per_sample / 4,
            walk=interval * (len(order.devices) - 1) * walk * per_sample,
        )
    return Reading(
        noise=taken.noise(per_device, per_sample),
        own=own,
        overshoot=taken.overshoot,
        carried=taken.carried,
    )


def _taken_back(
    probe: Probe,
    mean: Sequence[LayerState],
    halves: Sequence[Samples],
    blocks: Sequence[list[Gradient]],
    reach: Gradient,
    round: int,
) -> TakenBack:
    """What `reach`, the step of the first half's gradient, takes back, by blocks of devices."""
    step = [{name: FRACTION * tensor for name, tensor in layer.items()} for layer in reach]
    after = moved(mean, step)
    lost = []
    for half, before in zip(halves, blocks, strict=True):
        now, _ = gradients_of_blocks(probe, after, half, round, len(before))
        changes = (difference(old, new) for old, new in zip(before, now, strict=True))
        lost.append(torch.stack([products(change, step).sum() for change in changes]).cpu().numpy())
    slope = float(products(summed(blocks[0]), step).sum())
    require_finite(round, slope, *lost[0], *lost[1])
    own, others = (each / FRACTION**2 for each in lost)
    return TakenBack(slope / FRACTION, own, others)


def displacement(
    probe: Probe, states: Sequence[LayerState], gradients: Gradient, round: int, clip: Tensor
) -> Gradient:
    """How far gradients move weights in the long run, by the optimiser's rule, if they are clipped by `clip`.

    Weight decay is left out: it is the same for every batch, so it makes no noise.
    """
    pairs = zip(states, gradients, strict=True)
    return [scaled(probe.updates.reach(state, layer, round), clip) for state, layer in pairs]


def _two_batches(probe: Probe, order: Order, sizes: IntN) -> list[Samples]:
    """A and C, of the devices that can give a sample to each."""
    first, second = [], []
    for device, half in zip(order.devices.tolist(), sizes.tolist(), strict=True):
        if half:
            indices = probe.some_samples("read", device, order.round)
            first.append(indices[:half])
            second.append(indices[half : 2 * half])
    return [Samples.of(probe.data, indices) for indices in (first, second)]


def _half_sizes(probe: Probe, order: Order) -> IntN:
    """a_i: how many samples each device has in A, and as many in C.

    They are in proportion to the batch sizes, so that a slow device with a small batch has little to do.
    """
    batches = order.batch_sizes
    wanted = np.maximum(np.ceil(LEAST_HALF / batches.sum() * batches), LEAST_OF_A_DEVICE).astype(np.int64)
    sizes: IntN = np.minimum(probe.data.sizes[order.devices] // 2, wanted)
    return sizes
