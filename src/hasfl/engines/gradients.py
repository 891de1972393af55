"""Gradients beside training, for those who measure: of some samples, at some weights; nothing is changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import IntN
from hasfl.engines.layer_state import LayerState, Tensors, forward
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
    engine: LocalEngine, states: Sequence[LayerState], samples: Samples, round: int
) -> tuple[Gradient, Tensor]:
    """The gradient of the mean over devices of their loss, layer by layer, and that loss.

    In private layers a batch norm sees every device's samples apart, as in training.
    """
    depth = engine.state.depth
    copies = [trainable(state.map(Tensor.clone)) for state in states]
    with drawn_for(engine.job.data.seeds, round, layer=0):
        with NormApart(samples.rows):
            x = forward(engine.layers[:depth], copies[:depth], samples.x)
        outputs = forward(engine.layers[depth:], copies[depth:], x)
    loss = samples.rows.means(engine.job.sample_loss(outputs, samples.y)).mean()
    leaves = [weight for state in copies for weight in state.weights.values()]
    found = iter(torch.autograd.grad(loss, leaves, materialize_grads=True))
    return [{name: next(found) for name in state.weights} for state in copies], loss.detach()


def difference(one: Gradient, other: Gradient) -> Gradient:
    """One less the other."""
    return [
        {name: layer[name] - less[name] for name in layer} for layer, less in zip(one, other, strict=True)
    ]


def products(one: Gradient, other: Gradient) -> Tensor:
    """⟨one, other⟩ of each layer; 0 where it has no weights."""
    pairs = zip(one, other, strict=True)
    terms = [[(layer[name] * by[name]).sum(dtype=torch.float64) for name in layer] for layer, by in pairs]
    like = next((term for layer in terms for term in layer), torch.zeros((), dtype=torch.float64))
    return torch.stack([torch.stack(layer).sum() if layer else torch.zeros_like(like) for layer in terms])


def weights_of(states: Sequence[LayerState]) -> Gradient:
    """The weights of each layer."""
    return [state.weights for state in states]


def moved(states: Sequence[LayerState], by: Gradient) -> list[LayerState]:
    """The same layers with weights less a displacement."""
    weights = difference(weights_of(states), by)
    return [LayerState(layer, state.buffers, {}) for layer, state in zip(weights, states, strict=True)]
