"""Which model is read out of a training for an evaluation or a user."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hasfl.engines.layer_state import LayerState, forward
from hasfl.engines.split_state import SplitState
from hasfl.networks import LayeredModel

SAMPLES_AT_ONCE = 1000


def served(state: SplitState) -> list[LayerState]:
    """The virtual mean of all parts as they are."""
    return state.mean()


@torch.no_grad()
def evaluate(
    model: LayeredModel,
    states: Sequence[LayerState],
    test: tuple[Tensor, Tensor],
    sample_loss: Callable[[Tensor, Tensor], Tensor],
) -> tuple[float, float]:
    """Accuracy and mean loss of a model with these tensors."""
    model.eval()
    right, loss = torch.zeros((), device=test[0].device), torch.zeros((), device=test[0].device)
    for x, y in zip(*(part.split(SAMPLES_AT_ONCE) for part in test), strict=True):
        outputs = forward(model.layers.values(), states, x)
        right += (outputs.argmax(dim=1) == y).sum()
        loss += sample_loss(outputs, y).sum()
    model.train()
    return float(right) / len(test[0]), float(loss) / len(test[0])
