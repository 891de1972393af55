"""The model during training: layers that each device has for itself, and layers that all share.

    layers 1 … depth        private: client and middle parts, one replica per device
    layers depth+1 … L      common: one copy, stepped with the mean gradient

Tensors stay where they are in memory from interval to interval, so that work prepared for them, such as a
captured CUDA graph, stays good; `moved` counts how often they had to be laid out anew.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import IntN
from hasfl.networks import LayeredModel
from hasfl.state.layer_state import LayerState

Weights = dict[str, Tensor]  # a whole model's weights and buffers, as its state has them


@dataclass(slots=True)
class SplitState:
    """All tensors of a training."""

    names: tuple[str, ...]  # of the layers
    shared: list[LayerState]  # of all layers; those of private layers are out of date until an aggregation
    depth: int = 0  # how many layers are private
    devices: IntN = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # that have replicas
    moved: int = 0
    _room: list[LayerState] = field(default_factory=list)  # replicas of the first layers, and spare ones
    _places: int = 0  # replicas that there is room for

    @classmethod
    def of(cls, model: LayeredModel, slots: Callable[[Tensor], Weights]) -> "SplitState":
        """The state before the first round, with a model's weights."""
        return cls(model.names, [LayerState.of(layer, slots) for layer in model.layers.values()])

    @property
    def private(self) -> list[LayerState]:
        """The private layers, stacked over devices."""
        devices = len(self.devices)
        return [state.map(lambda tensor: tensor[:devices]) for state in self._room[: self.depth]]

    @property
    def common(self) -> list[LayerState]:
        """The layers that all share."""
        return self.shared[self.depth :]

    def split(self, depth: int, devices: IntN) -> None:
        """Give each of these devices its own copy of the first `depth` layers, the optimiser's slots too."""
        self._make_room(depth, len(devices))
        self.depth, self.devices = depth, devices
        for replicas, state in zip(self.private, self.shared, strict=False):
            replicas.take(state)

    def _make_room(self, depth: int, devices: int) -> None:
        if devices > self._places:
            self._room, self._places = [], devices
        if len(self._room) < depth:
            self._room += [state.replicated(self._places) for state in self.shared[len(self._room) : depth]]
            self.moved += 1

    def keep(self, devices: IntN) -> None:
        """Forget the replicas of devices that have left."""
        if len(devices) == len(self.devices):
            return
        rows = torch.from_numpy(np.flatnonzero(np.isin(self.devices, devices)))
        kept = [state.rows(rows) for state in self.private]
        self.devices = devices
        for replicas, state in zip(self.private, kept, strict=True):
            replicas.take(state)

    def aggregate(self) -> None:
        """Average the forged sub-models, Eq. (7); afterwards every layer is shared."""
        for state, replicas in zip(self.shared, self.private, strict=False):
            state.take(replicas.mean())
        self.depth = 0

    def mean(self) -> list[LayerState]:
        """The virtual mean model, as an aggregation at this moment would make it."""
        return [state.mean() for state in self.private] + self.common

    def model_of(self, device: int) -> list[LayerState]:
        """The whole model as one device sees it: its own layers, then the common ones."""
        i = int(np.flatnonzero(self.devices == device)[0]) if self.depth else 0
        return [state.row(i) for state in self.private] + self.common

    def saved(self) -> Weights:
        """Every tensor under a name of its own, to be restored later."""
        layers = zip(self.names, [*self.private, *self.common], strict=True)
        return {name: tensor for layer, state in layers for name, tensor in state.named(layer)}

    def restore(self, tensors: Mapping[str, Tensor], depth: int, devices: IntN) -> None:
        """Take back what `saved` gave when so many layers were private to these devices."""
        self.split(depth, devices)
        for layer, state in zip(self.names, [*self.private, *self.common], strict=True):
            state.take(state.filled(layer, tensors))


def whole_model(names: Sequence[str], states: Sequence[LayerState]) -> Weights:
    """Weights and buffers of a whole model."""
    return {
        f"{layer}.{name}": tensor
        for layer, state in zip(names, states, strict=True)
        for name, tensor in (state.weights | state.buffers).items()
    }
