"""Gradients beside training: of some samples, at some weights. Nothing of the training is changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import IntN
from hasfl.learning.batched.ragged import NormApart
from hasfl.learning.batched.rows import Rows
from hasfl.learning.randomness import drawn_for
from hasfl.learning.state import LayerState, Tensors, cloned, forward, trainable
from hasfl.learning.training_data import TrainingData
from hasfl.readings.probe import Probe

Gradient = list[Tensors]  # for each layer its tensors by name; also for displacements and weights


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Some samples of some devices, one device's after the other's."""

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
    losses = _losses(probe, copies, samples, round)
    leaves = [weight for state in copies for weight in state.weights.values()]
    gradients = iter(torch.autograd.grad(losses.mean(), leaves, materialize_grads=True))
    return [{name: next(gradients) for name in state.weights} for state in copies], losses.detach()


def _losses(probe: Probe, states: Sequence[LayerState], samples: Samples, round: int) -> Tensor:
    depth = probe.state.depth
    with drawn_for(probe.data.seeds, round, layer=0):
        with NormApart(samples.rows):
            x = forward(probe.layers[:depth], states[:depth], samples.x)
        outputs = forward(probe.layers[depth:], states[depth:], x)
    return samples.rows.means(probe.loss(outputs, samples.y))


def difference(minuend: Gradient, subtrahend: Gradient) -> Gradient:
    """The first minus the second."""
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
    """The same layers with weights minus a displacement."""
    weights = difference(weights_of(states), by)
    return [LayerState(layer, state.buffers, {}) for layer, state in zip(weights, states, strict=True)]
