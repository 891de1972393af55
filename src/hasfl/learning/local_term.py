"""A user's own term in the loss of each device, such as the proximal term of FedProx (Li et al. 2020).

    def proximal(weight, anchor):
        return 0.01 / 2 * (weight - anchor).square().sum()

A term is called for each weight of each private layer of a device. `anchor` is the same weight when the
interval began. The term's gradient is added to the gradient of the loss, before clipping. Losses are
reported without the term.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hasfl.callables import in_one_sentence, own_function
from hasfl.errors import InputError
from hasfl.learning.state import LayerState, Tensors

Term = Callable[[Tensor, Tensor], Tensor]  # (weight, anchor) → one number

TRIED_DEVICES, TRIED_SHAPE = 3, (2, 3)  # devices and shape of the weight in a term's trial; chosen by hand
TOLERANCE = 1e-9  # largest difference that counts as rounding, for float64 numbers around 1; chosen by hand


def local_term(given: Any, folder: Path | None = None) -> Term | None:
    """The local term that a setting names, tried and checked; None if it names none.

    A term is a function, or a class that returns a function when it is called without arguments. A string
    "package.module:callable" names it. Its module is searched in `folder` first.
    """
    if given is None:
        return None
    term: Term = own_function(given, "local_term", "a weight and its anchor", folder)
    _try(term, given if isinstance(given, str) else getattr(given, "__name__", type(term).__name__))
    return term


def with_local_term(
    term: Term, gradients: Sequence[Tensors], layers: Sequence[LayerState], anchors: Sequence[LayerState]
) -> list[Tensors]:
    """The gradients of a device's layers, plus the gradients of the term.

    `anchors` holds the same layers, and perhaps more, as they were when the interval began. Gradients and
    layers may be stacked over devices; anchors are not stacked.
    """
    with in_one_sentence("local_term"):
        return [
            {
                name: tensor + _gradient(term, layer.weights[name].detach(), anchor.weights[name])
                for name, tensor in gradient.items()
            }
            for gradient, layer, anchor in zip(gradients, layers, anchors, strict=False)
        ]


def _gradient(term: Term, weight: Tensor, anchor: Tensor) -> Tensor:
    """The gradient of a term at a weight, or at the weights of all devices at once."""
    own: Callable[..., Tensor] = torch.func.grad(term)
    if weight.dim() > anchor.dim():
        own = torch.vmap(own, in_dims=(0, None))
    return own(weight, anchor)


def _try(term: Term, name: str) -> None:
    """Raise an error if a term has no finite gradient, or another gradient when devices are stacked."""
    draw = torch.Generator().manual_seed(0)
    shape = (TRIED_DEVICES + 1, *TRIED_SHAPE)
    anchor, *weights = torch.randn(shape, generator=draw, dtype=torch.float64)
    with in_one_sentence(f"local_term {name}"):
        value = term(weights[0].clone(), anchor.clone())
        if not isinstance(value, Tensor) or value.shape != ():
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise InputError(f"local_term {name} must return a tensor of one number, got {got}")
        alone = torch.stack([_gradient(term, weight, anchor) for weight in weights])
        at_anchor = _gradient(term, anchor, anchor)
        together = _gradient(term, torch.stack(weights), anchor)
    if not (alone.isfinite().all() and at_anchor.isfinite().all()):
        raise InputError(
            f"the gradient of local_term {name} must be finite, also where weight and anchor are equal"
        )
    if not torch.allclose(alone, together, rtol=TOLERANCE, atol=TOLERANCE):
        raise InputError(
            f"local_term {name} must give each device the same gradient alone and among others: leave out "
            "random numbers, and remember nothing"
        )
