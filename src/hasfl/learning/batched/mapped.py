"""One layer for many devices at once, by torch's `vmap`: the layer is written for one device and run for all.

`vmap` has a rule for almost every torch function: embeddings, attention, parameters that are added to
activations, and so on. It needs equally many rows of every device, so smaller places are filled up. A layer
must treat each sample alone, or it would see the filling; the trial (`probing.py`) finds this out.

A few functions are replaced on the way, because `vmap` does them slowly or with other results.
"""

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from hasfl.learning.batched.rows import Rows
from hasfl.learning.state import applied

MATRIX_AXES = 2


def mapped(layer: nn.Module, stacked: Mapping[str, Tensor], x: Tensor, rows: Rows) -> Tensor:
    """The outputs of a layer for the samples of all devices, each device with its own tensors."""

    def of_one_device(tensors: dict[str, Tensor], own: Tensor) -> Tensor:
        return applied(layer, tensors, own)

    # Of torch's ways to compute attention, `vmap` has rules for all steps of this one on every processor.
    with sdpa_kernel(SDPBackend.MATH), _Replaced():
        outputs = torch.vmap(of_one_device, randomness="different")(dict(stacked), rows.filled(x))
    return rows.unpadded(outputs)


class _Replaced(TorchFunctionMode):
    """While active, the functions in `REPLACED` are replaced, also within multi-head attention."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function itself or what replaces it."""
        named = kwargs or {}
        if func is F.multi_head_attention_forward:
            with self:
                return _MULTI_HEAD_ATTENTION(*args, **named)
        return REPLACED.get(func, func)(*args, **named)


def _without_handing_over(function: Any) -> Callable[..., Any]:
    """A function of torch whose own steps can be replaced.

    While a mode is active, such a function hands itself over to the mode as a whole, before its first step.
    This copy does not: it believes that no mode is active.
    """
    names = function.__globals__ | {"has_torch_function": lambda tensors: False}
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_MULTI_HEAD_ATTENTION = _without_handing_over(F.multi_head_attention_forward)


def _embedding(
    tokens: Tensor, weight: Tensor, padding_idx: int | None = None, *options: Any, **named: Any
) -> Tensor:
    """F.embedding. The padding token gets no gradient; `vmap` would see to this for the first device only."""
    vectors = F.embedding(tokens, weight, None, *options, **named)
    if padding_idx is None:
        return vectors
    padding = tokens == padding_idx % len(weight)  # torch counts a negative number from the end
    return torch.where(padding.unsqueeze(-1), vectors.detach(), vectors)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear with all axes of x but the last as one: each device has one product of two matrices."""
    if x.dim() <= MATRIX_AXES:
        return F.linear(x, weight, bias)
    return F.linear(x.flatten(0, -2), weight, bias).reshape(*x.shape[:-1], -1)


def _matmul(x: Tensor, other: Tensor) -> Tensor:
    """The product of two tensors. If only the second is a matrix, it is computed as `_linear` does."""
    if x.dim() > MATRIX_AXES and other.dim() == MATRIX_AXES:
        return torch.matmul(x.flatten(0, -2), other).reshape(*x.shape[:-1], -1)
    return torch.matmul(x, other)


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """F.dropout. On a CPU torch draws in the order in which x lies in memory; `vmap` would lose it."""
    if x.is_cuda or not training or not 0 < p < 1:
        return F.dropout(x, p, training, inplace)
    scale = torch.empty_like(x).bernoulli_(1 - p).div_(1 - p)
    return x.mul_(scale) if inplace else x * scale


REPLACED: dict[Any, Callable[..., Tensor]] = {
    F.dropout: _dropout,
    F.embedding: _embedding,
    F.linear: _linear,
    torch.matmul: _matmul,
    Tensor.matmul: _matmul,
    Tensor.__matmul__: _matmul,
}
