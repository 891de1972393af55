"""Estimates the constants of the paper's bound during training (after Wang et al. 2019).

Just before an aggregation, a few devices take gradients of some of their samples, in two halves a and b of
h samples each, at their own weights w_i and at the mean w̄:

    β     mean over devices of |∇F_i(w_i) − ∇F_i(w̄)| / |w_i − w̄|
    σ²_j  h/2 · |g_a − g_b|² of layer j, because the difference of two such means has variance 2σ²/h
    G²_j  ⟨g_a, g_b⟩ + σ²_j/b of layer j: the squared mean gradient, plus the noise of a batch of b samples
    ϑ     the loss itself, because f* is at least 0

The halves are independent, so ⟨g_a, g_b⟩ estimates |∇f_i|² without bias. Devices get w̄ from the fed server.
While no layer is private, no device has weights of its own. Then w_i is w̄ after a step along the device's own
gradient, and nothing is sent. An estimate does not change the training.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from hasfl.arrays import FloatL, IntN
from hasfl.constants import BoundConstants
from hasfl.errors import Diverged
from hasfl.learning.batch_layout import Rows
from hasfl.learning.engine import tensor_cores
from hasfl.learning.many_devices import NormApart
from hasfl.learning.optimizers import Updates
from hasfl.learning.randomness import drawn_for
from hasfl.learning.state import LayerState, SplitState, Tensors, cloned, forward, trainable
from hasfl.learning.training_data import TrainingData
from hasfl.plan import Order
from hasfl.training.clock import Effort, Pass

# ── what an estimate may look at ─────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Probe:
    """A view of a training. An estimate takes gradients through it and changes nothing."""

    layers: Sequence[nn.Module]
    state: SplitState
    data: TrainingData
    updates: Updates
    loss: Callable[[Tensor, Tensor], Tensor]  # (outputs, labels) → one number for each sample

    def some_samples(self, purpose: str, device: int, round: int) -> IntN:
        """The indices of a device's samples, in a random order set by the seed, the purpose and the round."""
        stream = self.data.seeds.stream(purpose, round, device)
        order: IntN = stream.permutation(self.data.shares[device])
        return order


# ── gradients ────────────────────────────────────────────────────────────────────────────────────────────


Gradient = list[Tensors]  # for each layer, its tensors by name; weights and displacements have this form too


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Some samples of some devices, with the samples of each device next to one another."""

    x: Tensor
    y: Tensor
    rows: Rows

    @classmethod
    def of(cls, data: TrainingData, indices: Sequence[IntN]) -> Self:
        """The samples with these indices; one array of indices for each device."""
        index = torch.from_numpy(np.concatenate(indices)).to(data.x.device)
        return cls(data.x[index], data.y[index], Rows([len(own) for own in indices], data.x.device))


def gradient(
    probe: Probe, states: Sequence[LayerState], samples: Samples, round: int
) -> tuple[Gradient, Tensor]:
    """The gradient of the mean over devices of their loss, and the loss of each device.

    In private layers a batch norm sees every device's samples apart, as in training.
    """
    copies = [trainable(LayerState(state.weights, cloned(state.buffers), {})) for state in states]
    depth = probe.state.depth
    with drawn_for(probe.data.seeds, round, layer=0):
        with NormApart(samples.rows):
            x = forward(probe.layers[:depth], copies[:depth], samples.x)
        outputs = forward(probe.layers[depth:], copies[depth:], x)
    losses = samples.rows.means(probe.loss(outputs, samples.y))

    leaves = [weight for state in copies for weight in state.weights.values()]
    gradients = iter(torch.autograd.grad(losses.mean(), leaves, materialize_grads=True))
    return [{name: next(gradients) for name in state.weights} for state in copies], losses.detach()


def difference(minuend: Gradient, subtrahend: Gradient) -> Gradient:
    """The difference of two gradients: `minuend` minus `subtrahend`."""
    pairs = zip(minuend, subtrahend, strict=True)
    return [{name: layer[name] - other[name] for name in layer} for layer, other in pairs]


def products(one: Gradient, other: Gradient) -> Tensor:
    """The inner product ⟨one, other⟩ of each layer; 0 for a layer without weights.

    All layers are multiplied in one call, because a GPU waits for each call.
    """
    sizes = [sum(tensor.numel() for tensor in layer.values()) for layer in one]
    if not any(sizes):
        return torch.zeros(len(one), dtype=torch.float64)
    product = _flat(one) * _flat(other)
    return torch.stack([part.sum(dtype=torch.float64) for part in product.split(sizes)])


def _flat(gradient: Gradient) -> Tensor:
    return torch.cat([tensor.reshape(-1) for layer in gradient for tensor in layer.values()])


def weights_of(states: Sequence[LayerState]) -> Gradient:
    """The weights of each layer."""
    return [state.weights for state in states]


def moved(states: Sequence[LayerState], by: Gradient) -> list[LayerState]:
    """The layers with a displacement subtracted from their weights."""
    weights = difference(weights_of(states), by)
    return [LayerState(layer, state.buffers, {}) for layer, state in zip(weights, states, strict=True)]


# ── the estimates ────────────────────────────────────────────────────────────────────────────────────────


DEVICES = 5  # the most devices that take gradients for an estimate; chosen by hand
SAMPLES = 8  # samples of each such device, in two halves; few, because an estimate takes time (docs/clock.md)
LEAST_GAP = 1e-6  # the least ϑ, for a loss that has reached 0, because ϑ must be positive; chosen by hand
LEAST_DISTANCE = 1e-30  # the least |w_i − w̄|, so that a division by it stays finite; chosen by hand


@dataclass(frozen=True, slots=True, eq=False)
class DeviceEstimate:
    """The estimates of one device."""

    smoothness: float  # β of the loss
    variance_of: FloatL  # σ²_j, variance of the gradient of one sample
    square_of: FloatL  # ⟨g_a, g_b⟩ of layer j, an estimate of the squared mean gradient
    loss: float  # the device's loss, which stands for ϑ


def estimate_bound_constants(probe: Probe, order: Order) -> BoundConstants:
    """Estimate the constants with a few devices of a round, just before an aggregation."""
    with tensor_cores(probe.data.x.device):
        estimates = [_estimate(probe, device, order.round) for device in _asked(probe, order).tolist()]
    if not all(math.isfinite(each.loss) and math.isfinite(each.smoothness) for each in estimates):
        raise Diverged(
            f"the gradients are not finite numbers any more in round {order.round}: lower the learning "
            "rate, or choose a model with normalisation"
        )
    variance = np.mean([estimate.variance_of for estimate in estimates], axis=0)
    square = np.mean([estimate.square_of for estimate in estimates], axis=0)
    return BoundConstants(
        smoothness=float(np.mean([estimate.smoothness for estimate in estimates])),
        initial_gap=max(float(np.mean([estimate.loss for estimate in estimates])), LEAST_GAP),
        variance_of=variance,
        moment_of=np.maximum(square + variance * (1 / order.batch_sizes).mean(), 0.0),
    )


def effort_of_estimate(probe: Probe, order: Order) -> Effort:
    """The effort of an estimate: passes at w̄ and at w_i, and a download of w̄ if layers are private."""
    sizes = np.minimum(SAMPLES, probe.data.sizes[order.devices]) // 2 * 2
    samples = np.where(np.isin(order.devices, _asked(probe, order)), sizes, 0)
    return Effort(passes=(Pass(samples), Pass(samples)), downloads=int(probe.state.depth > 0))


def _asked(probe: Probe, order: Order) -> IntN:
    """The devices that take gradients: at most `DEVICES`, drawn from those with at least two samples."""
    able = order.devices[probe.data.sizes[order.devices] >= 2]
    asked: IntN = probe.data.seeds.stream("probed", order.round).permutation(able)[:DEVICES]
    return asked


def _estimate(probe: Probe, device: int, round: int) -> DeviceEstimate:
    mean, own = probe.state.mean(), probe.state.model_of(device)
    halves = _halves(probe, device, round)
    (mean_a, loss_a), (mean_b, loss_b) = (gradient(probe, mean, half, round) for half in halves)
    if probe.state.depth == 0 or _distance(own, mean) == 0:
        rate = probe.updates.rates.at(round)  # of one plain gradient step
        own = moved(mean, [{name: rate * tensor for name, tensor in layer.items()} for layer in mean_a])
    own_a, own_b = (gradient(probe, own, half, round)[0] for half in halves)
    changes = [difference(own_a, mean_a), difference(own_b, mean_b)]
    change = sum(float(products(one, other).sum()) for one in changes for other in changes) / 4
    apart = difference(mean_a, mean_b)
    return DeviceEstimate(
        smoothness=math.sqrt(change) / max(_distance(own, mean), LEAST_DISTANCE),
        variance_of=len(halves[0].y) / 2 * products(apart, apart).cpu().numpy(),
        square_of=products(mean_a, mean_b).cpu().numpy(),
        loss=float(loss_a + loss_b) / 2,
    )


def _halves(probe: Probe, device: int, round: int) -> list[Samples]:
    """Two sets of a device's samples, of equal size and without a common sample."""
    indices = probe.some_samples("probe", device, round)
    size = min(SAMPLES, len(indices)) // 2
    return [Samples.of(probe.data, [half]) for half in np.split(indices[: 2 * size], 2)]


def _distance(one: Sequence[LayerState], other: Sequence[LayerState]) -> float:
    apart = difference(weights_of(one), weights_of(other))
    return math.sqrt(float(products(apart, apart).sum()))
