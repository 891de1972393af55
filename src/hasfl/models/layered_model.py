"""Defines models as chains of named layers, in which a number of layers describes a cut."""

from collections import OrderedDict
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

# ── names of weights ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class StateNames:
    """Translates the names in a module's `state_dict` to names of tensors in its layers."""

    in_layers: Mapping[str, str]  # name in the state_dict → name below the layers
    unused: Mapping[str, Tensor]  # name in the state_dict → a tensor that no layer uses

    @classmethod
    def of(cls, module: nn.Module, layers: nn.Module) -> Self:
        """Find the tensors of `module`, which must be the same objects in `layers`."""
        tensors = {
            name: tensor
            for name, tensor in module.state_dict(keep_vars=True).items()
            if isinstance(tensor, Tensor)  # a module may save values that are no tensors
        }
        below = {id(tensor): name for name, tensor in named_tensors(layers).items()}
        return cls(
            in_layers={name: below[id(tensor)] for name, tensor in tensors.items() if id(tensor) in below},
            unused={name: tensor for name, tensor in tensors.items() if id(tensor) not in below},
        )

    def state_dict(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The module's `state_dict`, from the tensors of all layers under their names below the layers."""
        used = {name: tensors[below] for name, below in self.in_layers.items()}
        return used | {name: tensor.detach() for name, tensor in self.unused.items()}


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a module; a tensor with several names is listed once."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


def shared_weights(module: nn.Module) -> list[tuple[str, ...]]:
    """For every parameter with several names, these names in the order of the module."""
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


# ── the chain ────────────────────────────────────────────────────────────────────────────────────────────


LAYERS = "layers"  # the attribute of `LayeredModel` that holds the layers


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

    @property
    def state_names(self) -> StateNames:
        """Where each tensor of this model's `state_dict` is in the layers."""
        return StateNames.of(self, self.layers)

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


class CutModule(LayeredModel):
    """A module that was cut into layers.

    The layers share the module's weights. `state_dict` and `load_state_dict` use the module's own names, so
    that cuts and layers do not show in them.
    """

    def __init__(self, module: nn.Module, layers: Mapping[str, nn.Module], example_input: Tensor) -> None:
        super().__init__(layers, example_input)
        self._state_names = StateNames.of(module, self.layers)
        nn.Module.register_state_dict_post_hook(self, _give_names_of_the_module)
        nn.Module.register_load_state_dict_pre_hook(self, _take_names_of_the_module)

    @property
    def state_names(self) -> StateNames:
        """Where each tensor of the module's `state_dict` is in the layers."""
        return self._state_names


def _give_names_of_the_module(
    model: CutModule, state: dict[str, Any], prefix: str, metadata: dict[str, Any]
) -> None:
    """Rename the tensors in a new `state_dict`; torch calls this function at the end of `state_dict()`."""
    below = f"{prefix}{LAYERS}."
    own = {name.removeprefix(below): state.pop(name) for name in list(state) if name.startswith(below)}
    state.update({prefix + name: tensor for name, tensor in model.state_names.state_dict(own).items()})


def _take_names_of_the_module(
    model: CutModule,
    state: dict[str, Any],
    prefix: str,
    metadata: dict[str, Any],
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """Rename the tensors in a given `state_dict`; torch calls this function before it loads them."""
    names = model.state_names
    expected = [*names.in_layers, *names.unused]
    given = {name: state.pop(prefix + name) for name in expected if prefix + name in state}
    missing += [prefix + name for name in expected if name not in given]
    for name in names.unused.keys() & given.keys():
        names.unused[name].detach().copy_(given[name])
    new = {below: given[name] for name, below in names.in_layers.items() if name in given}
    listed = {id(tensor): below for below, tensor in named_tensors(model.layers).items()}
    for name, tensor in model.layers.state_dict(keep_vars=True).items():
        state[f"{prefix}{LAYERS}.{name}"] = new.get(listed.get(id(tensor), ""), tensor)
