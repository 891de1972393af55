"""The model during training: layers that each device has for itself, and layers that all share.

layers 1 … depth        private: client and middle parts, one replica per device
layers depth+1 … L      common: one copy, stepped with the mean gradient
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import IntN
from hasfl.engines.layer_state import LayerState
from hasfl.networks import LayeredModel

Weights = dict[str, Tensor]  # a whole model's weights and buffers, as its state has them


@dataclass(slots=True)
class SplitState:
    """All tensors of a training."""

    names: tuple[str, ...]  # of the layers
    shared: list[LayerState]  # of all layers; those of private layers are out of date until an aggregation
    private: list[LayerState] = field(default_factory=list)  # of the first layers, stacked over devices
    devices: IntN = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @classmethod
    def of(cls, model: LayeredModel, slots: Callable[[Tensor], Weights]) -> "SplitState":
        """The state before the first round, with a model's weights."""
        return cls(model.names, [LayerState.of(layer, slots) for layer in model.layers.values()])

    @property
    def depth(self) -> int:
        """How many layers are private."""
        return len(self.private)

    def split(self, depth: int, devices: IntN) -> None:
        """Give each of these devices its own copy of the first `depth` layers, the optimiser's slots too."""
        self.private = [state.replicated(len(devices)) for state in self.shared[:depth]]
        self.devices = devices

    def keep(self, devices: IntN) -> None:
        """Forget the replicas of devices that have left."""
        if len(devices) != len(self.devices):
            rows = torch.from_numpy(np.flatnonzero(np.isin(self.devices, devices)))
            self.private = [state.rows(rows.to(_device(state))) for state in self.private]
            self.devices = devices

    def aggregate(self) -> None:
        """Average the forged sub-models, Eq. (7); afterwards every layer is shared."""
        self.shared[: self.depth] = [state.mean() for state in self.private]
        self.private = []

    def mean(self) -> list[LayerState]:
        """The virtual mean model, as an aggregation at this moment would make it."""
        return [state.mean() for state in self.private] + self.shared[self.depth :]

    def model_of(self, device: int) -> list[LayerState]:
        """The whole model as one device sees it: its own layers, then the common ones."""
        i = int(np.flatnonzero(self.devices == device)[0]) if self.private else 0
        return [state.row(i) for state in self.private] + self.shared[self.depth :]

    def saved(self) -> Weights:
        """Every tensor under a name of its own, to be restored later."""
        layers = [*self.private, *self.shared[self.depth :]]
        return {
            name: tensor
            for layer, state in zip(self.names, layers, strict=True)
            for name, tensor in state.named(layer)
        }

    def restore(self, tensors: Mapping[str, Tensor], depth: int, devices: IntN) -> None:
        """Take back what `saved` gave when so many layers were private to these devices."""
        layers = [state.filled(layer, tensors) for layer, state in zip(self.names, self.shared, strict=True)]
        self.private, self.devices = layers[:depth], devices
        self.shared[depth:] = layers[depth:]


def _device(state: LayerState) -> torch.device | None:
    tensors = [*state.weights.values(), *state.buffers.values()]
    return tensors[0].device if tensors else None


def whole_model(names: Sequence[str], states: Sequence[LayerState]) -> Weights:
    """Weights and buffers of a whole model."""
    return {
        f"{layer}.{name}": tensor
        for layer, state in zip(names, states, strict=True)
        for name, tensor in (state.weights | state.buffers).items()
    }
