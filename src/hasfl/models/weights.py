"""The weights of a module: their names in its `state_dict`, and those that it uses in several places.

A tensor is recognised by its identity. A weight that a module uses in two places has two names.
"""

from collections.abc import Mapping
from copy import deepcopy
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


def shared_weights(module: nn.Module) -> list[tuple[str, ...]]:
    """The names of every parameter that has several names, first to last."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return [tuple(several) for several in names.values() if len(several) > 1]


def untie(module: nn.Module) -> nn.Module:
    """Give every place that uses a shared parameter a copy of its own. Changes `module` and returns it.

    From then on the copies are trained as separate weights, and the module can be cut between them. A part
    with weights that is registered in several places is copied as a whole. A part that a forward calls
    twice under one name stays shared.
    """
    seen: set[nn.Module] = set()
    for path in [path for path, _ in module.named_modules(remove_duplicate=False)]:
        part = module.get_submodule(path)
        if part in seen and any(True for _ in part.parameters()):
            part = deepcopy(part)
            module.set_submodule(path, part)
        seen.add(part)
    for _, *others in shared_weights(module):
        for name in others:
            path, _, attribute = name.rpartition(".")
            shared = module.get_parameter(name)
            own = nn.Parameter(shared.detach().clone(), requires_grad=shared.requires_grad)
            setattr(module.get_submodule(path), attribute, own)
    return module
