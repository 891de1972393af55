"""The state of a training: the tensors of each layer, and the split into private and common layers.

A layer has weights, buffers, and the optimiser's slots for each weight. All three are copied and saved in the
same way. A cut divides the layers:

    layers 1 … depth        private: the client and middle parts, one replica per device
    layers depth+1 … L      common: one copy, stepped with the mean gradient

A CUDA graph (`learning/cuda_graphs.py`) works on fixed memory addresses. So the replicas keep their memory
from interval to interval. New memory is allocated only if an interval has more devices or more private layers
than the memory can hold; `moved` counts these allocations.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from hasfl.arrays import IntN
from hasfl.errors import InputError, OneValueError
from hasfl.learning.aggregation import Rule, equal_mean, mean_of
from hasfl.models.layered_model import LayeredModel

# ── one layer ────────────────────────────────────────────────────────────────────────────────────────────


Tensors = dict[str, Tensor]
# torch has no exception type of its own for a batch norm with one value per channel. The text of its
# ValueError is the only way to recognise it.
TORCH_ON_ONE_VALUE = "more than 1 value per channel"
IMAGE_AXES = 4  # torch.channels_last exists only for tensors with four axes, such as (N, C, H, W)


@dataclass(frozen=True, slots=True)
class LayerState:
    """The tensors of one layer, by name.

    A stacked state holds the replicas of many devices: every tensor has one more axis, the first, over
    devices.
    """

    weights: Tensors
    buffers: Tensors
    slots: dict[str, Tensors]  # the optimiser's slots: by name of the weight, then by name of the slot

    @classmethod
    def of(cls, layer: nn.Module, slots: Callable[[Tensor], Tensors]) -> Self:
        """Copy the tensors of a module. Weights that are not trained become buffers.

        `slots` returns the optimiser's slots for a weight before the first step.
        """
        weights = {name: _channels_last(weight.detach().clone()) for name, weight in layer.named_parameters()}
        trained = [name for name, weight in layer.named_parameters() if weight.requires_grad]
        buffers = {name: buffer.detach().clone() for name, buffer in layer.named_buffers()}
        return cls(
            weights={name: weights[name] for name in trained},
            buffers=buffers | {name: weight for name, weight in weights.items() if name not in trained},
            slots={name: slots(weights[name]) for name in trained},
        )

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Apply a function to every tensor."""
        return type(self)(
            weights={name: function(tensor) for name, tensor in self.weights.items()},
            buffers={name: function(tensor) for name, tensor in self.buffers.items()},
            slots={
                name: {slot: function(tensor) for slot, tensor in slots.items()}
                for name, slots in self.slots.items()
            },
        )

    def tensors(self) -> list[Tensor]:
        """All tensors. Two states of the same layer list them in the same order."""
        slots = (tensor for name in self.slots for tensor in self.slots[name].values())
        return [*self.weights.values(), *self.buffers.values(), *slots]

    def take(self, other: Self) -> None:
        """Overwrite every tensor in place with the tensor of another state of this layer.

        If this state is stacked and the other is not, every replica becomes a copy of the other state.
        """
        for tensor, source in zip(self.tensors(), other.tensors(), strict=True):
            tensor.copy_(source)

    def take_buffers(self, other: Self) -> None:
        """Overwrite every buffer in place with the buffer of another state of this layer."""
        for name, buffer in other.buffers.items():
            self.buffers[name].copy_(buffer)

    @classmethod
    def stacked(cls, replicas: Sequence[Self]) -> Self:
        """One state that holds the replicas of several devices."""
        columns = zip(*(state.tensors() for state in replicas), strict=True)
        found = iter([torch.stack(column) for column in columns])
        return replicas[0].map(lambda _: next(found))

    def replicated(self, devices: int) -> Self:
        """A stacked state with one copy for each device. Every copy has the same strides as the original."""

        def replicas(tensor: Tensor) -> Tensor:
            stacked = tensor.new_empty_strided((devices, *tensor.shape), (tensor.numel(), *tensor.stride()))
            return stacked.copy_(tensor.expand(devices, *tensor.shape))

        return self.map(replicas)

    def row(self, i: int) -> Self:
        """The i-th replica of a stacked state. Its tensors are views: a step on them changes the stack."""
        return self.map(lambda tensor: tensor[i])

    def rows(self, keep: Tensor) -> Self:
        """A copy of some replicas of a stacked state; `keep` lists their indices."""
        return self.map(lambda tensor: tensor[keep.to(tensor.device)])

    def mean(self) -> Self:
        """The mean over the replicas of a stacked state."""
        return self.map(mean_of)

    def aggregated(self, rule: Rule, samples: IntN, before: Self) -> Self:
        """The common layer that replaces the replicas of a stacked state: step b2 of every aggregation.

        The rule gives the weights. Buffers, such as the running statistics of batch norms, and the
        optimiser's slots are averaged, because many rules would make a variance negative. `samples` has the
        number of training samples of each replica's device; `before` is the layer after the last aggregation.
        """
        if rule is equal_mean:
            return self.mean()
        counts = torch.from_numpy(samples)
        weights = {
            name: rule(replicas, counts.to(replicas, non_blocking=True), before.weights[name])
            for name, replicas in self.weights.items()
        }
        others = type(self)({}, self.buffers, self.slots).mean()
        return type(self)(weights, others.buffers, others.slots)

    def named(self, layer: str) -> Iterator[tuple[str, Tensor]]:
        """Every tensor with a unique name. Weights and buffers have their names in the model's state_dict."""
        for tensors in (self.weights, self.buffers):
            yield from ((f"{layer}.{name}", tensor) for name, tensor in tensors.items())
        for name, slots in self.slots.items():
            yield from ((f"{layer}.{name}:{slot}", tensor) for slot, tensor in slots.items())

    def filled(self, layer: str, tensors: Mapping[str, Tensor]) -> Self:
        """A state of the same shapes with the values in `tensors`, under the names that `named` gives."""

        def looked_up(own: Tensors, prefix: str) -> Tensors:
            return {name: _checked(prefix + name, tensors, own[name]) for name in own}

        return type(self)(
            weights=looked_up(self.weights, f"{layer}."),
            buffers=looked_up(self.buffers, f"{layer}."),
            slots={name: looked_up(slots, f"{layer}.{name}:") for name, slots in self.slots.items()},
        )


def _checked(name: str, tensors: Mapping[str, Tensor], expected: Tensor) -> Tensor:
    """The tensor called `name`, checked: it must have the shape and dtype of `expected`.

    The tensor is moved to the processor of `expected`.
    """
    tensor = tensors.get(name)
    if tensor is None or tensor.shape != expected.shape or tensor.dtype != expected.dtype:
        got = "nothing" if tensor is None else f"{tuple(tensor.shape)} of {tensor.dtype}"
        raise InputError(f"{name} must be a tensor {tuple(expected.shape)} of {expected.dtype}, got {got}")
    return tensor.to(expected.device)


def _channels_last(weight: Tensor) -> Tensor:
    """A weight in the memory format that computes fastest.

    For a convolution on a GPU this format is channels last; for other weights it is torch's default.
    """
    if weight.is_cuda and weight.dim() == IMAGE_AXES:
        return weight.contiguous(memory_format=torch.channels_last)
    return weight.contiguous()


def cloned(tensors: Tensors) -> Tensors:
    """Copies of the tensors, under the same names."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def trainable(state: LayerState, *, own_buffers: bool = False) -> LayerState:
    """A state with the same memory, whose weights are leaves that require gradients.

    With `own_buffers` the buffers are copies, so that a forward pass does not change the buffers of `state`.
    """
    weights = {name: weight.detach().requires_grad_() for name, weight in state.weights.items()}
    return LayerState(weights, cloned(state.buffers) if own_buffers else state.buffers, state.slots)


def applied(layer: nn.Module, tensors: Tensors, x: Tensor) -> Tensor:
    """The outputs of a layer that uses `tensors` instead of its own weights and buffers."""
    try:
        outputs: Tensor = functional_call(layer, tensors, (x,))
    except ValueError as error:
        if TORCH_ON_ONE_VALUE in str(error):
            raise OneValueError from None
        raise
    return outputs


def applied_by(layer: nn.Module, stacked: LayerState, i: int, x: Tensor) -> Tensor:
    """The outputs of a layer with the i-th replica. Changes that the layer makes to its buffers are kept.

    The layer works on copies of the buffers and of `x`, because a layer may change them in place. Autograd
    raises an error if the changed tensor is a view of memory that other devices use too.
    """
    own = stacked.row(i)
    buffers = cloned(own.buffers)
    outputs = applied(layer, own.weights | buffers, x.clone())
    own.take_buffers(LayerState({}, buffers, {}))
    return outputs


def forward(layers: Iterable[nn.Module], states: Iterable[LayerState], x: Tensor) -> Tensor:
    """Pass samples through layers, each with the tensors of its state."""
    for layer, state in zip(layers, states, strict=True):
        x = applied(layer, state.weights | state.buffers, x)
    return x


# ── the whole model ──────────────────────────────────────────────────────────────────────────────────────


# The weights and buffers of a whole model. Engines name them by layer, as in "conv1.0.weight". A simulation
# hands them out under their names in the model's `state_dict` (`models/layered_model.py`).
Weights = dict[str, Tensor]


@dataclass(slots=True)
class SplitState:
    """All tensors of a training, divided into private and common layers."""

    names: tuple[str, ...]  # names of the layers
    shared: list[LayerState]  # one copy of every layer; a private layer's is that of the last aggregation
    samples: IntN  # |D_i|, the number of training samples of each device of the fleet
    rule: Rule = equal_mean  # the aggregation rule
    depth: int = 0  # number of private layers
    devices: IntN = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # devices that have replicas
    moved: int = 0  # allocations of memory for replicas so far
    _replicas: list[LayerState] = field(default_factory=list)  # stacked states of the first layers
    _capacity: int = 0  # number of replicas that each state in `_replicas` can hold; some may be unused

    @classmethod
    def of(
        cls, model: LayeredModel, slots: Callable[[Tensor], Weights], samples: IntN, rule: Rule = equal_mean
    ) -> "SplitState":
        """The state before the first round: the model's weights, and no private layers."""
        shared = [LayerState.of(layer, slots) for layer in model.layers.values()]
        return cls(model.names, shared, samples, rule)

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
        """Provide memory for the replicas. If the capacity is too small, allocate all of it anew."""
        if devices > self._capacity:
            self._replicas, self._capacity = [], devices
        if len(self._replicas) < depth:
            new = self.shared[len(self._replicas) : depth]
            self._replicas += [state.replicated(self._capacity) for state in new]
            self.moved += 1

    def keep(self, devices: IntN) -> None:
        """Drop the replicas of all devices that are not in `devices`. Others move up to fill the gaps."""
        if len(devices) == len(self.devices):
            return
        rows = torch.from_numpy(np.flatnonzero(np.isin(self.devices, devices)))
        kept = [state.rows(rows) for state in self.private]
        self.devices = devices
        for replicas, state in zip(self.private, kept, strict=True):
            replicas.take(state)

    def aggregate(self) -> None:
        """Replace the replicas of each private layer by one common layer, so that all layers are common."""
        for state, common in zip(self.shared[: self.depth], self.mean(), strict=False):
            state.take(common)
        self.depth = 0

    def mean(self) -> list[LayerState]:
        """The last model: what an aggregation would make at this moment. Nothing is changed."""
        samples = self.samples[self.devices]
        pairs = zip(self.private, self.shared, strict=False)
        return [own.aggregated(self.rule, samples, before) for own, before in pairs] + self.common

    def model_of(self, device: int) -> list[LayerState]:
        """The whole model of one device: its replicas, then the common layers."""
        i = int(np.flatnonzero(self.devices == device)[0]) if self.depth else 0
        return [state.row(i) for state in self.private] + self.common

    def saved(self) -> Weights:
        """Every tensor with a unique name, for `restore`. The tensors are not copied."""
        layers = zip(self.names, [*self.private, *self.common], strict=True)
        return {name: tensor for layer, state in layers for name, tensor in state.named(layer)}

    def restore(self, tensors: Mapping[str, Tensor], depth: int, devices: IntN) -> None:
        """Restore what `saved` returned when the first `depth` layers were private to these devices."""
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
