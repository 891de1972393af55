"""Which tensor of a chain of layers has which name in the `state_dict` of a module.

A tensor is recognised by its identity. A weight that a module uses in two places has two names there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class StateNames:
    """For every name in a module's `state_dict`: where its tensor is in the layers, or the tensor itself."""

    in_layers: Mapping[str, str]  # name in the state_dict → name below the layers
    unused: Mapping[str, Tensor]  # name in the state_dict → a tensor that no layer uses

    @classmethod
    def of(cls, module: nn.Module, layers: nn.Module) -> Self:
        """Find the tensors of `module`, which must be the same objects in `layers`."""
        tensors = {
            name: tensor
            for name, tensor in module.state_dict(keep_vars=True).items()
            if isinstance(tensor, Tensor)  # a module may save other values of its own
        }
        by_identity = {id(tensor): name for name, tensor in named_tensors(layers).items()}
        return cls(
            in_layers={
                name: by_identity[id(tensor)] for name, tensor in tensors.items() if id(tensor) in by_identity
            },
            unused={name: tensor for name, tensor in tensors.items() if id(tensor) not in by_identity},
        )

    def state_dict(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The module's `state_dict`, from the tensors of all layers under their names below the layers."""
        used = {name: tensors[below] for name, below in self.in_layers.items()}
        return used | {name: tensor.detach() for name, tensor in self.unused.items()}


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a module; a tensor with several names is listed once."""
    return dict(module.named_parameters()) | dict(module.named_buffers())
