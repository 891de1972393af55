"""Gradients beside training, for those who measure: of some samples, at some weights; nothing is changed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hasfl.engines.layer_state import LayerState, Tensors, forward
from hasfl.engines.local import LocalEngine, trainable
from hasfl.engines.randomness import drawn_for

Gradient = list[Tensors]  # of each layer, or anything else that is shaped as its weights
Samples = tuple[Tensor, Tensor]


def gradient(
    engine: LocalEngine, states: Sequence[LayerState], samples: Samples, round: int
) -> tuple[Gradient, Tensor]:
    """The gradient of the mean loss, layer by layer, and that loss."""
    x, y = samples
    copies = [trainable(state.map(Tensor.clone)) for state in states]
    with drawn_for(engine.job.data.seeds, round, layer=0):
        loss = engine.job.sample_loss(forward(engine.layers, copies, x), y).mean()
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
