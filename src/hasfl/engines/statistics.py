"""The constants of the convergence bound, estimated while training (after Wang et al. 2019).

At an aggregation a few devices take the gradient of some of their samples, in two halves, at their own
weights w_i and at the mean w̄:

    β     mean over devices of |∇F_i(w_i) − ∇F_i(w̄)| / |w_i − w̄|
    σ²_j  h/2 · |g_a − g_b|² of layer j, where g_a, g_b are the gradients of two halves of h samples:
          their difference has variance 2σ²/h
    G²_j  ⟨g_a, g_b⟩ + σ²_j/b of layer j: the square of the mean gradient, without the halves' own noise,
          and the noise that a batch of b samples has
    ϑ     the loss itself, since f* is at least 0

The sums are unbiased: the halves are independent, so that ⟨g_a, g_b⟩ estimates |∇f_i|².
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import FloatL, IntN
from hasfl.engines.api import Order
from hasfl.engines.layer_state import LayerState, forward
from hasfl.engines.local import LocalEngine, trainable
from hasfl.engines.randomness import drawn_for
from hasfl.errors import Diverged
from hasfl.profile import GradientStats

PROBED_DEVICES = 5
PROBE_SAMPLES = 32  # of each, in two halves
LEAST_GAP = 1e-6  # of a loss that has reached 0

Gradient = list[Tensor]  # of each layer, flat


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """What one device sees."""

    smoothness: float
    variance_of: FloatL
    square_of: FloatL  # of the mean gradient
    loss: float


def estimate_statistics(engine: LocalEngine, order: Order) -> GradientStats:
    """The constants as a few devices of a round see them, just before an aggregation."""
    seeds = engine.job.data.seeds
    able = order.devices[engine.job.data.sizes[order.devices] >= 2]
    some = seeds.stream("probed", order.round).permutation(able)[:PROBED_DEVICES]
    probes = [_probe(engine, int(device), order.round) for device in some]
    if not all(math.isfinite(probe.loss) and math.isfinite(probe.smoothness) for probe in probes):
        raise Diverged(
            f"the gradients are no finite numbers any more in round {order.round}: lower the learning rate, "
            "or choose a model with normalisation"
        )
    variance = np.mean([probe.variance_of for probe in probes], axis=0)
    square = np.mean([probe.square_of for probe in probes], axis=0)
    return GradientStats(
        smoothness=float(np.mean([probe.smoothness for probe in probes])),
        initial_gap=max(float(np.mean([probe.loss for probe in probes])), LEAST_GAP),
        variance_of=variance,
        moment_of=np.maximum(square + variance * (1 / order.batch_sizes).mean(), 0.0),
    )


def _probe(engine: LocalEngine, device: int, round: int) -> Probe:
    mean, own = engine.state.mean(), engine.state.model_of(device)
    halves = _halves(engine, device, round)
    at_mean = [_gradient(engine, mean, *half, round) for half in halves]
    (g_a, _), (g_b, _) = at_mean
    if engine.state.depth == 0 or _distance(own, mean) == 0:
        own = _stepped(engine, mean, g_a)
    at_own = [_gradient(engine, own, *half, round)[0] for half in halves]
    change = sum(
        float((l_a + l_b - m_a - m_b).square().sum()) / 4
        for l_a, l_b, m_a, m_b in zip(*at_own, g_a, g_b, strict=True)
    )
    size = len(halves[0][0])
    return Probe(
        smoothness=math.sqrt(change) / max(_distance(own, mean), 1e-30),
        variance_of=np.array(
            [size / 2 * float((a - b).square().sum()) for a, b in zip(g_a, g_b, strict=True)]
        ),
        square_of=np.array([float(torch.dot(a, b)) for a, b in zip(g_a, g_b, strict=True)]),
        loss=float(np.mean([loss for _, loss in at_mean])),
    )


def _halves(engine: LocalEngine, device: int, round: int) -> list[tuple[Tensor, Tensor]]:
    """Two equal sets of a device's samples that share none."""
    data = engine.job.data
    share: IntN = data.shares[device]
    size = min(PROBE_SAMPLES, len(share)) // 2
    picked = data.seeds.stream("probe", round, device).permutation(share)
    halves = torch.from_numpy(picked[: 2 * size]).to(data.x.device).split(size)
    return [(data.x[half], data.y[half]) for half in halves]


def _gradient(
    engine: LocalEngine, states: Sequence[LayerState], x: Tensor, y: Tensor, round: int
) -> tuple[Gradient, float]:
    """The gradient of the mean loss, layer by layer, and that loss; buffers are left as they are."""
    copies = [trainable(state.map(Tensor.clone)) for state in states]
    with drawn_for(engine.job.data.seeds, round, layer=0):
        loss = engine.job.sample_loss(forward(engine.layers, copies, x), y).mean()
    leaves = [weight for state in copies for weight in state.weights.values()]
    found = iter(torch.autograd.grad(loss, leaves, materialize_grads=True))
    gradients = [_flat([next(found) for _ in state.weights], x) for state in copies]
    return gradients, float(loss.detach())


def _flat(tensors: Sequence[Tensor], like: Tensor) -> Tensor:
    """One vector; a zero where a layer has no weights."""
    return torch.cat([tensor.flatten() for tensor in tensors]) if tensors else like.new_zeros(1)


def _distance(one: Sequence[LayerState], other: Sequence[LayerState]) -> float:
    squares = [
        float((state.weights[name] - weight).square().sum())
        for state, reference in zip(one, other, strict=True)
        for name, weight in reference.weights.items()
    ]
    return math.sqrt(sum(squares))


def _stepped(engine: LocalEngine, states: Sequence[LayerState], gradients: Gradient) -> list[LayerState]:
    """Weights one step further, where devices have not moved apart."""
    moved = []
    for state, gradient in zip(states, gradients, strict=True):
        parts = gradient.split([weight.numel() for weight in state.weights.values()] or len(gradient))
        weights = {
            name: weight - engine.job.optimizer.learning_rate * part.view_as(weight)
            for (name, weight), part in zip(state.weights.items(), parts, strict=False)
        }
        moved.append(LayerState(weights, state.buffers, {}))
    return moved
