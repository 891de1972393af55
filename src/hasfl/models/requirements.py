"""What a torch module must be like, so that its costs can be counted and its weights trained."""

import inspect

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hasfl.errors import ModelError

HALF = (torch.float16, torch.bfloat16)


def require_trainable(module: nn.Module) -> None:
    """Refuse a module with lazy layers, with tensors in half precision, or without weights to train."""
    kind = type(module).__name__
    tensors = [*module.named_parameters(), *module.named_buffers()]
    if lazy := [name for name, tensor in tensors if is_lazy(tensor)]:
        raise ModelError(
            f"{kind} has lazy layers, so the shape of {lazy[0]} is not known yet: call the module once on a "
            "batch of samples, which gives every layer its shape"
        )
    if half := [(name, tensor.dtype) for name, tensor in tensors if tensor.dtype in HALF]:
        name, dtype = half[0]
        raise ModelError(
            f"weights and buffers must be in float32 or float64, but {name} of {kind} is in "
            f"{str(dtype).removeprefix('torch.')}: convert the module with .float(), and set the "
            'precision to "bfloat16" if layers shall compute in half precision'
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ModelError(f"{kind} has no weights to train: at least one parameter must require a gradient")


def require_one_input(module: nn.Module) -> None:
    """Refuse a module whose forward needs more than one argument."""
    parameters = inspect.signature(module.forward).parameters.values()
    needed = [
        each.name
        for each in parameters
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if len(needed) > 1:
        raise ModelError(
            f"a model must take one tensor, but the forward of {type(module).__name__} needs "
            f"{len(needed)} inputs ({', '.join(needed)}): wrap it in a module that takes one tensor and "
            "makes the other inputs from it"
        )
