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

from hasfl.arrays import FloatL, IntN
from hasfl.engines.api import Order
from hasfl.engines.gradients import Samples, difference, gradient, moved, products, weights_of
from hasfl.engines.layer_state import LayerState, Tensors
from hasfl.engines.local import LocalEngine
from hasfl.engines.measuring import NOT_FINITE
from hasfl.errors import Diverged
from hasfl.profile import GradientStats

PROBED_DEVICES = 5
PROBE_SAMPLES = 32  # of each, in two halves
LEAST_GAP = 1e-6  # of a loss that has reached 0


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
        raise Diverged(NOT_FINITE.format(round=order.round))
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
    (g_a, loss_a), (g_b, loss_b) = (gradient(engine, mean, half, round) for half in halves)
    if engine.state.depth == 0 or _distance(own, mean) == 0:
        own = moved(mean, [_step(layer, engine.job.optimizer.learning_rate) for layer in g_a])
    l_a, l_b = (gradient(engine, own, half, round)[0] for half in halves)
    changes = [difference(l_a, g_a), difference(l_b, g_b)]
    change = sum(float(products(one, other).sum()) for one in changes for other in changes) / 4
    size = len(halves[0].y)
    apart = difference(g_a, g_b)
    return Probe(
        smoothness=math.sqrt(change) / max(_distance(own, mean), 1e-30),
        variance_of=size / 2 * products(apart, apart).cpu().numpy(),
        square_of=products(g_a, g_b).cpu().numpy(),
        loss=float(loss_a + loss_b) / 2,
    )


def _halves(engine: LocalEngine, device: int, round: int) -> list[Samples]:
    """Two equal sets of a device's samples that share none."""
    data = engine.job.data
    share: IntN = data.shares[device]
    size = min(PROBE_SAMPLES, len(share)) // 2
    picked = data.seeds.stream("probe", round, device).permutation(share)
    return [Samples.of(data, [half]) for half in np.split(picked[: 2 * size], 2)]


def _distance(one: Sequence[LayerState], other: Sequence[LayerState]) -> float:
    apart = difference(weights_of(one), weights_of(other))
    return math.sqrt(float(products(apart, apart).sum()))


def _step(layer: Tensors, learning_rate: float) -> Tensors:
    """A plain step, where devices have not moved apart."""
    return {name: learning_rate * tensor for name, tensor in layer.items()}
