"""Gradients beside training, for those who measure: of some samples, at some weights; nothing is changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import IntN
from hasfl.engines.layer_state import LayerState, Tensors, cloned, forward
from hasfl.engines.local import LocalEngine, trainable
from hasfl.engines.ragged import NormApart
from hasfl.engines.randomness import drawn_for
from hasfl.engines.rows import Rows
from hasfl.engines.training_data import TrainingData

Gradient = list[Tensors]  # of each layer, or anything else that is shaped as its weights


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Some samples of some devices, one device's after the other's."""

    x: Tensor
    y: Tensor
    rows: Rows

    @classmethod
    def of(cls, data: TrainingData, picked: Sequence[IntN]) -> Self:
        """These of each device."""
        index = torch.from_numpy(np.concatenate(picked)).to(data.x.device)
        return cls(data.x[index], data.y[index], Rows([len(each) for each in picked], data.x.device))


def gradient(
    engine: LocalEngine,
    states: Sequence[LayerState],
    samples: Samples,
    round: int,
    *,
    upto: int | None = None,
) -> tuple[Gradient, Tensor]:
    """The gradient of the mean over devices of their loss, of each layer up to some, and that loss.

    In private layers a batch norm sees every device's samples apart, as in training.
    """
    depth = engine.state.depth
    copies = [LayerState(state.weights, cloned(state.buffers), {}) for state in states]
    wanted = copies[:upto] = [trainable(state) for state in copies[:upto]]
    with drawn_for(engine.job.data.seeds, round, layer=0):
        with NormApart(samples.rows):
            x = forward(engine.layers[:depth], copies[:depth], samples.x)
        outputs = forward(engine.layers[depth:], copies[depth:], x)
    loss = samples.rows.means(engine.job.sample_loss(outputs, samples.y)).mean()
    leaves = [weight for state in wanted for weight in state.weights.values()]
    found = iter(torch.autograd.grad(loss, leaves, materialize_grads=True) if leaves else ())
    return [{name: next(found) for name in state.weights} for state in wanted], loss.detach()


def difference(one: Gradient, other: Gradient) -> Gradient:
    """One less the other."""
    return [
        {name: layer[name] - less[name] for name in layer} for layer, less in zip(one, other, strict=True)
    ]


def products(one: Gradient, other: Gradient) -> Tensor:
    """⟨one, other⟩ of each layer; 0 where it has no weights. Few calls, since a GPU waits for each."""
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
    """The same layers with weights less a displacement."""
    weights = difference(weights_of(states), by)
    return [LayerState(layer, state.buffers, {}) for layer, state in zip(weights, states, strict=True)]
