"""The running mean of the aggregated models. By default it is the served model."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hasfl.state.layer_state import LayerState

DECAY = 8  # η: the mean covers about the last ninth of training (docs/decisions/0010)


@dataclass(slots=True)
class RunningMean:
    """A weighted mean m of all aggregated models, in which later models weigh more (Shamir and Zhang 2013).

        m ← m + a_k (w − m),   a_k = (η + 1)/(k + η)

    w is the k-th aggregated model. The weight a_k falls as k grows, so the mean always covers about the same
    fraction of training, and the length of training need not be known in advance.
    """

    count: int = 0  # k, the number of models so far
    states: list[LayerState] = field(default_factory=list)  # m, without slots; empty before the first model

    def take(self, aggregated: Sequence[LayerState]) -> None:
        """Include the model that an aggregation has just made."""
        self.count += 1
        if self.count == 1:
            self.states = [without_slots(state).map(Tensor.clone) for state in aggregated]
            return
        weight = (DECAY + 1) / (self.count + DECAY)  # a_k
        for mean, newest in zip(self.states, aggregated, strict=True):
            for tensor, other in zip(mean.tensors(), without_slots(newest).tensors(), strict=True):
                _move(tensor, other, weight)


def without_slots(state: LayerState) -> LayerState:
    """The same weights and buffers without the optimiser's slots. Nothing is copied."""
    return LayerState(state.weights, state.buffers, {})


def _move(mean: Tensor, newest: Tensor, weight: float) -> None:
    """Take one step of the running mean, in place. Integers and booleans take the newest value."""
    if mean.is_floating_point() or mean.is_complex():
        # Where both are equal the step is 0, so that inf − inf does not become NaN.
        mean += weight * torch.where(newest == mean, 0, newest - mean)
    else:
        mean.copy_(newest)
