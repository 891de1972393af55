"""The running mean of the aggregated models, which is what is served by default."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hasfl.state.layer_state import LayerState

DECAY = 8  # η: the mean reaches back over about a ninth of training (docs/decisions/0010)


@dataclass(slots=True)
class RunningMean:
    """The mean of all aggregated models, the later the heavier (Shamir and Zhang 2013).

        m ← m + a_k (w − m),   a_k = (η + 1)/(k + η)

    for the k-th of them. It needs no horizon, and grows slower as training does.
    """

    count: int = 0  # k
    states: list[LayerState] = field(default_factory=list)  # without the optimiser's slots; none at first

    def take(self, aggregated: Sequence[LayerState]) -> None:
        """Move towards the model that an aggregation has just made."""
        self.count += 1
        if self.count == 1:
            self.states = [without_slots(state).map(Tensor.clone) for state in aggregated]
            return
        share = (DECAY + 1) / (self.count + DECAY)
        for mean, newest in zip(self.states, aggregated, strict=True):
            for tensor, other in zip(mean.tensors(), without_slots(newest).tensors(), strict=True):
                _move(tensor, other, share)


def without_slots(state: LayerState) -> LayerState:
    """What a model consists of: weights and buffers, the same tensors."""
    return LayerState(state.weights, state.buffers, {})


def _move(mean: Tensor, newest: Tensor, share: float) -> None:
    """One step of a running mean; what is counted or switched on and off is taken as it is."""
    if mean.is_floating_point() or mean.is_complex():
        mean += share * torch.where(newest == mean, 0, newest - mean)  # infinite ones stay
    else:
        mean.copy_(newest)
