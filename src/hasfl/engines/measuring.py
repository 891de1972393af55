"""What noise and drift cost a training, read off the training itself (docs/constants.md).

At the mean model w̄, take two batches A and C that share no sample, as large as the devices' batches, and let
Δ be the displacement that A's gradient causes. A step takes back a part of the slope it was made for:

    overshoot = ⟨g_A(w̄) − g_A(w̄ − Δ), Δ⟩ / ⟨g_A, Δ⟩        seen by the samples of the step itself
    carried   = ⟨g_C(w̄) − g_C(w̄ − Δ), Δ⟩ / ⟨g_A, Δ⟩        seen by others

Training with a fixed step settles where the first is about as large as it may be, and moves on as fast as the
second is; the smaller the batch, the more of the first is the batch's own doing. So rounds grow by

    1 + noise · mean_i(1/b_i),     noise · mean_i(1/a_i) = overshoot · (overshoot / carried − 1)

where a_i are the samples of device i in A. Far from that limit, overshoot is small, and noise costs nothing.
Both are measured on a part of the step and scaled up, since the slope hardly bends that far.

Layers that a device holds for itself carry N times the noise of a common layer, until they are averaged. What
that costs more is the loss that the drift δ_i = w_i − w̄ adds, over what the noise of the common steps adds:

    drift = ⟨∇F_i(w_i) − ∇F_i(w̄), δ_i⟩ / 4   over   Σ_j ⟨noise_j, its displacement⟩ / (4 N b)

and drift grows with layers as their noise does, which the two batches tell for every layer. Of the drift only
the part counts that falls with b: a random walk of I steps, whose square the two batches predict. What is
beyond it follows the devices' own data, and grows with I²: what that costs is told by losses instead.

Where devices' data differ, a device's own layers follow its own samples, and its loss falls from L, that of
the mean model, to l until the aggregation brings it back. If it falls by the same factor every round, it is
L (1 − e^−k)/k on average, k = ln(L/l). So are gradients and progress, and rounds grow by k/(1 − e^−k), which
is at most 1 + k. Noise makes l larger and hides a part of k, so the upper end is taken: skew = k. A device's
noise falls with its loss as well, and that of a reading was seen at L: of the drift a share l/L counts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hasfl.arrays import FloatL, IntN
from hasfl.engines.api import Order
from hasfl.engines.gradients import Gradient, Samples, difference, gradient, moved, products, weights_of
from hasfl.engines.layer_state import LayerState
from hasfl.engines.local import LocalEngine
from hasfl.errors import Diverged

LEAST_HALF = 16  # samples in A and in C, in all, if the devices have them
DRIFTED_DEVICES, DRIFT_SAMPLES = 2, 4
FRACTION = 0.2  # of a step: short enough to be nearly straight
LEAST_OWN_LOSS = 1e-3  # of devices, in that of the mean model
LEAST_CARRIED = 0.02  # of the overshoot: below it, what others see of a step is lost in noise

NOT_FINITE = (
    "the gradients are no finite numbers any more in round {round}: lower the learning rate, or choose a "
    "model with normalisation"
)


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What was found just before one aggregation."""

    noise: float  # samples: see above
    drift: float | None  # of the layers that were private; None where nothing had drifted
    walked: float | None  # the random walk's share in the square of the drift
    share_of: FloatL  # of each layer in the noise; they sum to 1
    loss: float  # at the mean model
    overshoot: float
    carried: float

    def undone(self, loss: float) -> float:
        """ln of the mean model's loss over `loss`, the devices' own: what an aggregation brings back."""
        return math.log(self.loss / max(loss, LEAST_OWN_LOSS * self.loss)) if self.loss > 0 else 0.0


def samples_beyond_training(order: Order) -> int:
    """Samples that a reading sends beyond training's own.

    Both batches are sent for two models; for one of them they are the next round's batch, where that can be
    halved. What some devices use for the drift comes on top.
    """
    pairs = 2 * _half_sizes(order)
    fresh = np.maximum(pairs - order.batch_sizes, 0)
    return int((pairs + fresh).sum()) + 2 * DRIFTED_DEVICES * DRIFT_SAMPLES


def take_reading(engine: LocalEngine, order: Order, interval: int) -> Reading:
    """Measure just before an aggregation, `interval` rounds after the last; training is left alone."""
    mean = engine.state.mean()
    halves, per_device = _two_batches(engine, order)
    (first, loss), (second, other_loss) = (gradient(engine, mean, half, order.round) for half in halves)
    overshoot, carried = _taken_back(engine, mean, halves, (first, second), order.round)
    apart = difference(first, second)
    jump = displacement(engine, mean, apart)
    power = products(apart, jump) * per_device / 2  # of a sample's noise, over N
    drift, walked = None, None
    if engine.state.depth and len(order.devices) > 1 and float(power.sum()) > 0:
        walk = products(jump, jump)[: engine.state.depth].sum() * per_device / 2
        walked = _walked(engine, order, mean, float(walk), interval)
        drift = walked * _drift(engine, order, mean, float(power.sum()))
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
    engine: LocalEngine,
    mean: Sequence[LayerState],
    halves: Sequence[Samples],
    gradients: tuple[Gradient, Gradient],
    round: int,
) -> tuple[float, float]:
    """Overshoot and carried: what a step along the first gradient takes back of it, and of the second."""
    reach = displacement(engine, mean, gradients[0])
    step = [{name: FRACTION * tensor for name, tensor in layer.items()} for layer in reach]
    after = moved(mean, step)
    lost = [
        products(difference(before, gradient(engine, after, half, round)[0]), step)
        for before, half in zip(gradients, halves, strict=True)
    ]
    slope, own, others = torch.stack([each.sum() for each in (products(gradients[0], step), *lost)]).tolist()
    if not all(map(math.isfinite, (slope, own, others))):
        raise Diverged(NOT_FINITE.format(round=round))
    if slope <= 0:
        return 0.0, 0.0
    return max(own / slope, 0.0) / FRACTION, others / slope / FRACTION


def displacement(engine: LocalEngine, states: Sequence[LayerState], gradients: Gradient) -> Gradient:
    """How far gradients move weights, in the long run."""
    return [engine.job.optimizer.reach(state, layer) for state, layer in zip(states, gradients, strict=True)]


def _noise(overshoot: float, carried: float) -> float:
    """What a batch's own doing costs, for batches of this size."""
    if overshoot <= 0:
        return 0.0
    others = max(carried, LEAST_CARRIED * overshoot)
    return min(overshoot, 1.0) * max(overshoot / others - 1, 0.0)


def _walked(
    engine: LocalEngine, order: Order, mean: Sequence[LayerState], walk: float, interval: int
) -> float:
    """How much of the drift a random walk explains: I steps, each with the noise of a device's own batch."""
    devices = len(order.devices)
    private = [state.weights for state in engine.state.private]
    apart = difference(private, weights_of(mean[: len(private)]))
    squared = float(products(apart, apart).sum()) / devices
    expected = interval * (devices - 1) * walk * float((1 / order.batch_sizes).mean())
    return min(expected / squared, 1.0) if squared > 0 else 1.0


def _drift(engine: LocalEngine, order: Order, mean: Sequence[LayerState], power: float) -> float:
    """The loss that drift adds over what the noise of common steps adds, for the layers private now."""
    picked = engine.job.data.seeds.stream("drifted", order.round).permutation(order.devices)
    added = [_added_by_drift(engine, int(device), order.round, mean) for device in picked[:DRIFTED_DEVICES]]
    per_sample = float((1 / order.batch_sizes).mean())
    return max(float(np.mean(added)), 0.0) / (power * per_sample)


def _added_by_drift(engine: LocalEngine, device: int, round: int, mean: Sequence[LayerState]) -> float:
    """⟨∇F_i(w_i) − ∇F_i(w̄), w_i − w̄⟩ on a device's own samples."""
    own = engine.state.model_of(device)
    samples = Samples.of(engine.job.data, [_picked(engine, device, round)[:DRIFT_SAMPLES]])
    depth = engine.state.depth  # the others have not drifted
    at_own, at_mean = (gradient(engine, states, samples, round, upto=depth)[0] for states in (own, mean))
    drifted = difference(weights_of(own[:depth]), weights_of(mean[:depth]))
    return float(products(difference(at_own, at_mean), drifted).sum())


def _two_batches(engine: LocalEngine, order: Order) -> tuple[list[Samples], float]:
    """A and C, and the harmonic mean of what each device has in one of them."""
    first, second, sizes = [], [], []
    for device, wanted in zip(order.devices.tolist(), _half_sizes(order).tolist(), strict=True):
        picked = _picked(engine, device, order.round)
        half = min(wanted, len(picked) // 2)
        if half:
            first.append(picked[:half])
            second.append(picked[half : 2 * half])
            sizes.append(half)
    halves = [Samples.of(engine.job.data, picked) for picked in (first, second)]
    return halves, len(sizes) / sum(1 / size for size in sizes)


def _half_sizes(order: Order) -> IntN:
    """Samples of each device in A, and in C, if it has them."""
    least = math.ceil(LEAST_HALF / len(order.devices))
    sizes: IntN = np.maximum(order.batch_sizes // 2, least)
    return sizes


def _picked(engine: LocalEngine, device: int, round: int) -> IntN:
    """A device's samples in an order of their own."""
    picked: IntN = engine.job.data.seeds.stream("read", round, device).permutation(
        engine.job.data.shares[device]
    )
    return picked


def _shares(power: FloatL) -> FloatL:
    """Each layer's part of the noise; all alike where there is none."""
    power = np.maximum(power, 0.0)
    total = float(power.sum())
    shares: FloatL = power / total if total > 0 else np.full(len(power), 1 / len(power))
    return shares
