"""A reader in a simulation: it sees the layers, the samples and the gradients of all devices in one process.

The head of `readings/noise_and_drift.py` has the equations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hasfl.constants import BoundConstants
from hasfl.effort import Effort
from hasfl.plan import Order
from hasfl.readings.gradients import (
    Gradient,
    Samples,
    difference,
    displacement,
    gradient,
    gradients_of_blocks,
    losses_of,
    moved,
    products,
    summed,
    times,
    weights_of,
)
from hasfl.readings.noise_and_drift import Compared, Seen, TakenBack
from hasfl.readings.paper_estimates import effort_of_estimate, estimate_bound_constants
from hasfl.readings.probe import Probe
from hasfl.readings.reader import BLOCKS, FRACTION, Asked
from hasfl.schedule import RateSchedule
from hasfl.state.layer_state import LayerState
from hasfl.state.precision import tensor_cores


@dataclass(frozen=True, slots=True)
class InProcessReader:
    """Takes readings through a probe."""

    probe: Probe

    @property
    def depth(self) -> int:
        """The number of private layers."""
        return self.probe.state.depth

    @property
    def rates(self) -> RateSchedule:
        """The learning rates of the training."""
        return self.probe.updates.rates

    def able(self, order: Order) -> int:
        """How many devices have a sample for A and one for C."""
        return int((self.probe.data.sizes[order.devices] >= 2).sum())

    def effort(self, order: Order) -> Effort:
        """What devices and servers would do for a reading."""
        return _asked(self.probe, order).effort()

    def look(self, order: Order, interval: int) -> Seen:
        """Look at the models, `interval` rounds after the last aggregation."""
        with tensor_cores(self.probe.data.x.device):
            return _look(self.probe, order, interval)

    def effort_of_estimate(self, order: Order) -> Effort:
        """What devices and servers would do to estimate the constants of the paper's bound."""
        return effort_of_estimate(self.probe, order)

    def estimate(self, order: Order) -> BoundConstants:
        """The constants of the paper's bound, estimated by the paper's way."""
        return estimate_bound_constants(self.probe, order)


def _asked(probe: Probe, order: Order) -> Asked:
    return Asked.of(order, probe.data.sizes, probe.data.seeds, probe.state.depth)


def _look(probe: Probe, order: Order, interval: int) -> Seen:
    mean, asked = probe.state.mean(), _asked(probe, order)
    halves = _two_batches(probe, order, asked)
    blocks = [
        gradients_of_blocks(probe, mean, half, order.round, min(BLOCKS, len(half.rows)))[0] for half in halves
    ]
    first, second = map(summed, blocks)
    clip = probe.updates.clip_factor(products(first, first).sum())
    reach = displacement(probe.updates, mean, first, order.round, clip)
    per_sample = float((1 / order.batch_sizes).mean())
    apart = difference(first, second)
    jump = displacement(probe.updates, mean, apart, order.round, clip)
    power = float(products(apart, jump).sum()) * asked.per_device / 2
    compared = None
    if asked.private and power > 0:
        walk = float(products(jump, jump)[: probe.state.depth].sum()) * asked.per_device / 2
        walk = interval * (len(order.devices) - 1) * walk * per_sample
        compared = compare_own_models(probe, order, asked, mean, walk)
    return Seen(
        round=order.round,
        taken=_taken_back(probe, mean, halves, blocks, reach, order.round),
        per_device=asked.per_device,
        per_sample=per_sample,
        power=power,
        compared=compared,
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
    step = times(FRACTION, reach)
    after = moved(mean, step)
    lost = []
    for half, before in zip(halves, blocks, strict=True):
        now, _ = gradients_of_blocks(probe, after, half, round, len(before))
        changes = (difference(old, new) for old, new in zip(before, now, strict=True))
        lost.append(torch.stack([products(change, step).sum() for change in changes]).cpu().numpy())
    slope = float(products(summed(blocks[0]), step).sum())
    return TakenBack.by_part(FRACTION, slope, *lost)


def _two_batches(probe: Probe, order: Order, asked: Asked) -> list[Samples]:
    """A and C, of the devices that can give a sample to each."""
    first, second = [], []
    for device, half in zip(order.devices.tolist(), asked.sizes.tolist(), strict=True):
        if half:
            indices = probe.some_samples("read", device, order.round)
            first.append(indices[:half])
            second.append(indices[half : 2 * half])
    return [Samples.of(probe.data, indices) for indices in (first, second)]


def compare_own_models(
    probe: Probe, order: Order, asked: Asked, mean: Sequence[LayerState], walk: float
) -> Compared:
    """Compare own models with the mean model. `walk` is the squared length that a random walk would have."""
    devices = [(int(order.devices[i]), int(asked.sizes[i])) for i in asked.compared]
    seen = [_of_device(probe, device, half, mean, order.round) for device, half in devices]
    at_mean, at_own, linear = np.array(seen).T
    return Compared(at_mean, at_own, linear, apart=_squared_distance(probe, mean), walk=walk)


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


def _squared_distance(probe: Probe, mean: Sequence[LayerState]) -> float:
    """The mean over devices of |w_i − w̄|²."""
    total = 0.0
    for state, middle in zip(probe.state.private, mean, strict=False):
        for name, weights in state.weights.items():  # one by one, because replicas may fill the memory
            apart = weights - middle.weights[name]
            total += float(apart.square_().sum(dtype=torch.float64))
    return total / len(probe.state.devices)
