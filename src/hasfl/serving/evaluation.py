"""The accuracy and the loss of a model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from hasfl.networks import LayeredModel
from hasfl.state.layer_state import LayerState, forward
from hasfl.state.randomness import generators_kept

# Samples in one forward pass, to bound the memory of an evaluation. Chosen by hand.
SAMPLES_AT_ONCE = 1000


@contextmanager
def at_rest(model: LayeredModel) -> Iterator[None]:
    """Put the model into evaluation mode; on leaving, into training mode.

    Some layers draw random numbers even in evaluation mode, so torch's generators are restored too.
    """
    model.eval()
    try:
        with generators_kept():
            yield
    finally:
        model.train()


@torch.no_grad()
def evaluate(
    model: LayeredModel,
    states: Sequence[LayerState],
    test: tuple[Tensor, Tensor],
    sample_loss: Callable[[Tensor, Tensor], Tensor],
) -> tuple[float, float]:
    """The accuracy and the mean loss on samples with labels of a model with these tensors."""
    right, loss = torch.zeros((), device=test[0].device), torch.zeros((), device=test[0].device)
    with at_rest(model):
        for x, y in zip(*(part.split(SAMPLES_AT_ONCE) for part in test), strict=True):
            outputs = forward(model.layers.values(), states, x)
            right += (outputs.argmax(dim=1) == y).sum()
            loss += sample_loss(outputs, y).sum()
    return float(right) / len(test[0]), float(loss) / len(test[0])
