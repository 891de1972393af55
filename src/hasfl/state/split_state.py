"""The model in training, split into private and common layers.

    layers 1 … depth        private: the client and middle parts, one replica per device
    layers depth+1 … L      common: one copy, stepped with the mean gradient

A CUDA graph (`together/graphs.py`) works on fixed memory addresses. So the replicas keep their memory from
interval to interval. Memory is allocated only when more devices or more private layers come than it was
made for; `moved` counts these allocations.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import IntN
from hasfl.networks import LayeredModel
from hasfl.state.layer_state import LayerState

# The weights and buffers of a whole model. Engines name them by layer, as in "conv1.0.weight". A simulation
# hands them out under their names in the model's `state_dict` (`networks/state_names.py`).
Weights = dict[str, Tensor]


@dataclass(slots=True)
class SplitState:
    """All tensors of a training."""

    names: tuple[str, ...]  # of the layers
    shared: list[LayerState]  # one copy of every layer; for private layers, that of the last aggregation
    depth: int = 0  # number of private layers
    devices: IntN = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # devices that have replicas
    moved: int = 0  # allocations of memory for replicas so far
    _replicas: list[LayerState] = field(default_factory=list)  # stacked states of the first layers
    _capacity: int = 0  # replicas that each state in `_replicas` can hold; the last ones may be unused

    @classmethod
    def of(cls, model: LayeredModel, slots: Callable[[Tensor], Weights]) -> "SplitState":
        """The state before the first round: the model's weights, and no private layers."""
        return cls(model.names, [LayerState.of(layer, slots) for layer in model.layers.values()])

    @property
    def private(self) -> list[LayerState]:
        """The private layers, each stacked over devices. The tensors are views."""
        devices = len(self.devices)
        return [state.map(lambda tensor: tensor[:devices]) for state in self._replicas[: self.depth]]

    @property
    def common(self) -> list[LayerState]:
        """The common layers."""
        return self.shared[self.depth :]

    def split(self, depth: int, devices: IntN) -> None:
        """Make the first `depth` layers private: each device gets a replica of them, slots included."""
        self._allocate(depth, len(devices))
        self.depth, self.devices = depth, devices
        for replicas, state in zip(self.private, self.shared, strict=False):
            replicas.take(state)

    def _allocate(self, depth: int, devices: int) -> None:
        """Provide memory for the replicas. If the capacity is too small, all of it is allocated anew."""
        if devices > self._capacity:
            self._replicas, self._capacity = [], devices
        if len(self._replicas) < depth:
            new = self.shared[len(self._replicas) : depth]
            self._replicas += [state.replicated(self._capacity) for state in new]
            self.moved += 1

    def keep(self, devices: IntN) -> None:
        """Drop the replicas of all devices but these. The others move up, so that no gaps remain."""
        if len(devices) == len(self.devices):
            return
        rows = torch.from_numpy(np.flatnonzero(np.isin(self.devices, devices)))
        kept = [state.rows(rows) for state in self.private]
        self.devices = devices
        for replicas, state in zip(self.private, kept, strict=True):
            replicas.take(state)

    def aggregate(self) -> None:
        """Replace the replicas of each private layer by their mean, Eq. (7). Then all layers are common."""
        for state, replicas in zip(self.shared, self.private, strict=False):
            state.take(replicas.mean())
        self.depth = 0

    def mean(self) -> list[LayerState]:
        """The model that an aggregation would make at this moment; nothing is changed."""
        return [state.mean() for state in self.private] + self.common

    def model_of(self, device: int) -> list[LayerState]:
        """The whole model of one device: its replicas, then the common layers."""
        i = int(np.flatnonzero(self.devices == device)[0]) if self.depth else 0
        return [state.row(i) for state in self.private] + self.common

    def saved(self) -> Weights:
        """Every tensor with a unique name, for `restore`. The tensors are not copied."""
        layers = zip(self.names, [*self.private, *self.common], strict=True)
        return {name: tensor for layer, state in layers for name, tensor in state.named(layer)}

    def restore(self, tensors: Mapping[str, Tensor], depth: int, devices: IntN) -> None:
        """Take over what `saved` returned when the first `depth` layers were private to these devices."""
        self.split(depth, devices)
        for layer, state in zip(self.names, [*self.private, *self.common], strict=True):
            state.take(state.filled(layer, tensors))


def whole_model(names: Sequence[str], states: Sequence[LayerState]) -> Weights:
    """The weights and buffers of a whole model, from the states of its layers."""
    return {
        f"{layer}.{name}": tensor
        for layer, state in zip(names, states, strict=True)
        for name, tensor in (state.weights | state.buffers).items()
    }
