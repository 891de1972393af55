"""Gradients beside training: of some samples, at some weights. Nothing of the training is changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import IntN
from hasfl.readings.probe import Probe
from hasfl.state.layer_state import LayerState, Tensors, cloned, forward, trainable
from hasfl.state.randomness import drawn_for
from hasfl.state.training_data import TrainingData
from hasfl.state.updates import Updates, scaled
from hasfl.together.ragged import NormApart
from hasfl.together.rows import Rows

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
    probe: Probe, states: Sequence[LayerState], samples: Samples, round: int, *, upto: int | None = None
) -> tuple[Gradient, Tensor]:
    """The gradient of the mean over devices of their loss, and the loss of each device.

    With `upto`, only the gradients of the first `upto` layers are taken. In private layers a batch norm sees
    every device's samples apart, as in training.
    """
    (whole,), losses = gradients_of_blocks(probe, states, samples, round, 1, upto=upto)
    return whole, losses


def gradients_of_blocks(
    probe: Probe,
    states: Sequence[LayerState],
    samples: Samples,
    round: int,
    blocks: int,
    *,
    upto: int | None = None,
) -> tuple[list[Gradient], Tensor]:
    """What each block of devices contributes to the gradient, and the loss of each device.

    The devices are split into `blocks` blocks of about the same size. The contributions add up to the
    gradient of the mean over devices of their loss. All devices go through the common layers together.
    """
    copies = [LayerState(state.weights, cloned(state.buffers), {}) for state in states]
    wanted = copies[:upto] = [trainable(state) for state in copies[:upto]]
    losses = _losses(probe, copies, samples, round)
    leaves = [weight for state in wanted for weight in state.weights.values()]
    parts = [part.sum() / len(losses) for part in losses.tensor_split(blocks)]
    found = []
    for part in parts:
        gradients = iter(
            torch.autograd.grad(part, leaves, materialize_grads=True, retain_graph=part is not parts[-1])
            if leaves
            else ()
        )
        found.append([{name: next(gradients) for name in state.weights} for state in wanted])
    return found, losses.detach()


@torch.no_grad()
def losses_of(probe: Probe, states: Sequence[LayerState], samples: Samples, round: int) -> Tensor:
    """The loss of each device, without gradients."""
    return _losses(probe, [LayerState(s.weights, cloned(s.buffers), {}) for s in states], samples, round)


def _losses(probe: Probe, states: Sequence[LayerState], samples: Samples, round: int) -> Tensor:
    depth = probe.state.depth
    with drawn_for(probe.data.seeds, round, layer=0):
        with NormApart(samples.rows):
            x = forward(probe.layers[:depth], states[:depth], samples.x)
        outputs = forward(probe.layers[depth:], states[depth:], x)
    return samples.rows.means(probe.loss(outputs, samples.y))


def summed(parts: Sequence[Gradient]) -> Gradient:
    """The sum of gradients."""
    return [
        {name: torch.stack([part[j][name] for part in parts]).sum(0) for name in layer}
        for j, layer in enumerate(parts[0])
    ]


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


def times(factor: float, gradient: Gradient) -> Gradient:
    """The gradient times a number."""
    return [{name: factor * tensor for name, tensor in layer.items()} for layer in gradient]


def displacement(
    updates: Updates, states: Sequence[LayerState], gradients: Gradient, round: int, clip: Tensor
) -> Gradient:
    """How far gradients move weights in the long run, by the optimiser's rule, if they are clipped by `clip`.

    Weight decay is left out: it is the same for every batch, so it makes no noise.
    """
    pairs = zip(states, gradients, strict=True)
    return [scaled(updates.reach(state, layer, round), clip) for state, layer in pairs]


def moved(states: Sequence[LayerState], by: Gradient) -> list[LayerState]:
    """The same layers with weights minus a displacement."""
    weights = difference(weights_of(states), by)
    return [LayerState(layer, state.buffers, {}) for layer, state in zip(weights, states, strict=True)]
