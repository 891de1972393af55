"""Weights that a module uses in several places: their names, and how each place gets a weight of its own."""

from copy import deepcopy

from torch import nn


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
