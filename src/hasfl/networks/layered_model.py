"""A model as a chain of named layers, so that a number of layers describes a cut."""

from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor, nn


class LayeredModel(nn.Module):
    """A chain of L named layers; exactly one tensor passes from each layer to the next.

    `example_input` is a batch of the shape and type that the model takes. The model keeps the shape and the
    type, as a tensor on the meta device, which has no storage.
    """

    def __init__(self, layers: Mapping[str, nn.Module], example_input: Tensor) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self.example_input = torch.empty_like(example_input, device="meta", requires_grad=False)

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the layers, first to last."""
        return tuple(self.layers)

    def forward(self, x: Tensor) -> Tensor:
        """Pass `x` through every layer."""
        for layer in self.layers.values():
            x = layer(x)
        return x

    def part(self, start: int, stop: int) -> nn.Sequential:
        """Layers start+1 to stop. They share their weights with this model.

        `part(0, cut)` is the client part of a cut; `part(cut, len(model))` holds the remaining layers.
        """
        return nn.Sequential(OrderedDict(list(self.layers.items())[start:stop]))
