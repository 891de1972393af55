"""What a layer carries through training: weights, buffers, and what the optimiser keeps for each weight.

All three are treated alike when sub-models are aggregated, handed on or saved.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hasfl.errors import InputError, OneValueError

Tensors = dict[str, Tensor]
TORCH_ON_ONE_VALUE = "more than 1 value per channel"  # torch has no type for this error, only this message


@dataclass(frozen=True, slots=True)
class LayerState:
    """One layer's tensors by name; or, with a leading axis over devices, those of many replicas."""

    weights: Tensors
    buffers: Tensors
    slots: dict[str, Tensors]  # the optimiser's, by weight and slot

    @classmethod
    def of(cls, layer: nn.Module, slots: Callable[[Tensor], Tensors]) -> Self:
        """Copy a module's tensors; weights that are not trained are kept with the buffers.

        `slots` makes what the optimiser keeps for a weight.
        """
        named = {name: _channels_last(weight.detach().clone()) for name, weight in layer.named_parameters()}
        trained = [name for name, weight in layer.named_parameters() if weight.requires_grad]
        buffers = {name: buffer.detach().clone() for name, buffer in layer.named_buffers()}
        return cls(
            weights={name: named[name] for name in trained},
            buffers=buffers | {name: weight for name, weight in named.items() if name not in trained},
            slots={name: slots(named[name]) for name in trained},
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
        """Every tensor, in an order that depends on the names alone."""
        slots = (tensor for name in self.slots for tensor in self.slots[name].values())
        return [*self.weights.values(), *self.buffers.values(), *slots]

    def take(self, other: Self) -> None:
        """Overwrite every tensor with another state's; one that is shared goes to every replica."""
        for tensor, source in zip(self.tensors(), other.tensors(), strict=True):
            tensor.copy_(source)

    def replicated(self, devices: int) -> Self:
        """A copy for each of so many devices, each laid out in memory as this one."""

        def replicas(tensor: Tensor) -> Tensor:
            room = tensor.new_empty_strided((devices, *tensor.shape), (tensor.numel(), *tensor.stride()))
            return room.copy_(tensor.expand(devices, *tensor.shape))

        return self.map(replicas)

    def row(self, i: int) -> Self:
        """The replica of one device; a view, so that a step on it is a step on the whole."""
        return self.map(lambda tensor: tensor[i])

    def rows(self, keep: Tensor) -> Self:
        """The replicas of some devices, copied."""
        return self.map(lambda tensor: tensor[keep.to(tensor.device)])

    def mean(self) -> Self:
        """The mean over devices of every tensor, Eq. (7); the only average there is."""
        return self.map(_mean)

    def named(self, layer: str) -> Iterator[tuple[str, Tensor]]:
        """Every tensor under a name of its own; weights and buffers as the model's state has them."""
        for tensors in (self.weights, self.buffers):
            yield from ((f"{layer}.{name}", tensor) for name, tensor in tensors.items())
        for name, slots in self.slots.items():
            yield from ((f"{layer}.{name}:{slot}", tensor) for slot, tensor in slots.items())

    def filled(self, layer: str, tensors: Mapping[str, Tensor]) -> Self:
        """The same layer with the tensors that `named` gave such names."""

        def found(known: Tensors, prefix: str) -> Tensors:
            return {name: _fitting(prefix + name, tensors, known[name]) for name in known}

        return type(self)(
            weights=found(self.weights, f"{layer}."),
            buffers=found(self.buffers, f"{layer}."),
            slots={name: found(slots, f"{layer}.{name}:") for name, slots in self.slots.items()},
        )


def _fitting(name: str, tensors: Mapping[str, Tensor], known: Tensor) -> Tensor:
    """The tensor of that name, if it can take the place of a known one."""
    given = tensors.get(name)
    if given is None or given.shape != known.shape or given.dtype != known.dtype:
        found = "nothing" if given is None else f"{tuple(given.shape)} of {given.dtype}"
        raise InputError(f"{name} must be a tensor {tuple(known.shape)} of {known.dtype}, got {found}")
    return given.to(known.device)


def _mean(replicas: Tensor) -> Tensor:
    """The mean over the first axis; equal replicas give the same again to the last bit.

    What is counted or switched on and off has no mean between its values: it is rounded down.
    """
    if replicas.is_floating_point() or replicas.is_complex():
        first = replicas[0]
        apart = torch.where(replicas == first, 0, replicas - first)  # infinite ones stay
        return first + apart.mean(dim=0)
    return (replicas.long().sum(dim=0) // len(replicas)).to(replicas.dtype)


def _channels_last(weight: Tensor) -> Tensor:
    """A convolution's weights on a GPU, laid out as its kernels like them; anything else as it is."""
    if weight.is_cuda and weight.dim() == 4:
        return weight.contiguous(memory_format=torch.channels_last)
    return weight.contiguous()


def cloned(tensors: Tensors) -> Tensors:
    """Copies under the same names."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def trainable(state: LayerState) -> LayerState:
    """The same tensors, with weights that ask for gradients."""
    weights = {name: weight.detach().requires_grad_() for name, weight in state.weights.items()}
    return LayerState(weights, state.buffers, state.slots)


def applied(layer: nn.Module, tensors: Tensors, x: Tensor) -> Tensor:
    """A layer's outputs with these tensors in place of its own."""
    try:
        outputs: Tensor = functional_call(layer, tensors, (x,))
    except ValueError as error:
        if TORCH_ON_ONE_VALUE in str(error):
            raise OneValueError from None
        raise
    return outputs


def applied_by(layer: nn.Module, stacked: LayerState, i: int, x: Tensor) -> Tensor:
    """A layer's outputs with one device's replica; what it does to its buffers is kept.

    Buffers and samples are copied first: a layer may change them in place, which autograd takes amiss where
    they are views of what other devices use too.
    """
    buffers = cloned({name: buffer[i] for name, buffer in stacked.buffers.items()})
    weights = {name: weight[i] for name, weight in stacked.weights.items()}
    outputs = applied(layer, weights | buffers, x.clone())
    for name, buffer in buffers.items():
        stacked.buffers[name][i] = buffer
    return outputs


def forward(layers: Iterable[nn.Module], states: Iterable[LayerState], x: Tensor) -> Tensor:
    """Pass samples through layers with these tensors."""
    for layer, state in zip(layers, states, strict=True):
        x = applied(layer, state.weights | state.buffers, x)
    return x
