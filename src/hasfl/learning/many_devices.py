"""Runs a private layer for many devices at once, each with its own weights and its own batch size.

There are three ways (`Way`):

- RAGGED: the samples of all devices lie one after the other in one batch. Every torch function that takes
  weights is replaced by its counterpart in `per_device_functions.py`, which uses each device's own weights.
- MAPPED: torch's `vmap` runs the layer, which is written for one device, for all devices.
- LOOPED: the layer runs for one device after the other.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from enum import Enum
from functools import partial
from inspect import signature
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from hasfl.learning.batch_layout import Rows
from hasfl.learning.per_device_functions import (
    PER_DEVICE,
    NormTensors,
    NotAtOnce,
    batch_norm,
    batch_norm_by_rows,
)
from hasfl.learning.randomness import drawn_after, drawn_apart
from hasfl.learning.state import LayerState, applied, applied_by


class Way(Enum):
    """A way to run a private layer for all devices. All ways give the same results, except for rounding."""

    RAGGED = "all devices at once, their samples in one batch"
    MAPPED = "all devices at once, by torch's vmap"
    LOOPED = "one device after the other"


def run_layer(
    way: Way, layer: nn.Module, stacked: LayerState, x: Tensor, rows: Rows, seeds: Sequence[int] = ()
) -> Tensor:
    """The outputs of a layer for all samples, each device with its replica. Changes of buffers are kept.

    `seeds` has the seed of each device for the random numbers that the layer draws. A layer that draws none
    needs no seeds, except if it is looped.
    """
    if way is Way.LOOPED:
        outputs = []
        for i, (own_rows, seed) in enumerate(zip(rows.split(x), seeds, strict=True)):
            with drawn_after(seed):
                outputs.append(applied_by(layer, stacked, i, own_rows))
        return torch.cat(outputs)
    tensors = stacked.weights | stacked.buffers
    parts = partial(parts_of_devices if way is Way.RAGGED else _mapped_parts, rows)
    with drawn_apart(seeds, parts) if seeds else nullcontext():
        if way is Way.MAPPED:
            return mapped(layer, tensors, x, rows)
        with Ragged(tensors.values(), rows):
            return applied(layer, tensors, x)


def parts_of_devices(rows: Rows, batch: Tensor) -> Sequence[Tensor]:
    """The part of each device in a tensor that holds the rows of all devices one after the other."""
    times = _times(batch, 0, sum(rows.places))
    return torch.split(batch, [place * times for place in rows.places])


def _mapped_parts(rows: Rows, batch: Tensor) -> Sequence[Tensor]:
    """The part of each device in a tensor whose first axis is over devices, and the second over rows."""
    _times(batch, 0, len(rows))
    if rows.equal:
        return batch.unbind(0)
    times = _times(batch, 1, max(rows.places))
    return [own[: place * times] for own, place in zip(batch, rows.places, strict=True)]


def _times(batch: Tensor, axis: int, rows: int) -> int:
    """The number of entries of an axis for each row: a layer may have merged further axes into it."""
    times, rest = divmod(batch.shape[axis] if batch.dim() > axis else 0, rows)
    if rest or not times:
        raise NotAtOnce(f"it draws random numbers of shape {tuple(batch.shape)}, whose rows are not known")
    return times


# ── all devices in one batch (RAGGED) ────────────────────────────────────────────────────────────────────


NORM_CALL = signature(F.batch_norm)
NO_MOMENTUM = 0.0  # momentum of a batch norm without running statistics, which does not use it


class Ragged(TorchFunctionMode):
    """While active, a torch function with stacked weights uses each device's weights for its own samples.

    Any use of stacked weights that is not in the table `PER_DEVICE` raises `NotAtOnce`.
    """

    def __init__(self, stacked: Iterable[Tensor], rows: Rows) -> None:
        super().__init__()
        self.stacked = {id(tensor) for tensor in stacked}
        self.rows = rows

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function itself, or its counterpart in `PER_DEVICE` if an argument is stacked."""
        named = kwargs or {}
        if not any(id(argument) in self.stacked for argument in (*args, *named.values())):
            return func(*args, **named)
        if func not in PER_DEVICE or not self._holds_all_samples(args):
            raise NotAtOnce(_use_of_weights(func))
        return PER_DEVICE[func](self.rows, *args, **named)

    def _holds_all_samples(self, args: Sequence[Any]) -> bool:
        """Whether the first argument is the whole batch, or a stacked tensor (a batch norm's counter)."""
        return id(args[0]) in self.stacked or args[0].shape[0] == sum(self.rows.places)


def _use_of_weights(func: Any) -> str:
    """A clause for an error: how a layer uses its weights when it calls a function."""
    name = getattr(func, "__name__", repr(func))
    if name == "__get__":  # the function is the getter of an attribute
        return f"it reads {func.__self__.__name__} of its weights"
    return f"it gives its weights to {name}"


class Replacing(TorchFunctionMode):
    """While active, the torch functions in `table` are replaced, and every other one is unchanged."""

    table: Mapping[Any, Callable[..., Any]]

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function itself, or its replacement in `table`."""
        return self.table.get(func, func)(*args, **(kwargs or {}))


class SharedNorm(Replacing):
    """While active, the batch norm of a common layer ignores spare rows.

    `rows` has one place, which holds the samples of all devices.
    """

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self.rows, self.table = rows, {F.batch_norm: self.normalised}

    def normalised(self, x: Tensor, *others: Any, **named: Any) -> Tensor:
        """Batch norm with the statistics of all rows that count."""
        stacked = {name: _as_stacked(value) for name, value in named.items()}
        return batch_norm(self.rows, x, *map(_as_stacked, others), **stacked)


class NormApart(Replacing):
    """While active, a batch norm normalises each device's samples with their own mean and variance.

    Its weight and bias are the same for all devices, and its running statistics do not change. If a device
    has only one value per channel, which has no variance, torch's own batch norm treats all samples together.
    """

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self.rows, self.table = rows, {F.batch_norm: self.normalised}

    def normalised(self, *args: Any, **named: Any) -> Tensor:
        """Batch norm with the statistics of each device; the arguments are those of F.batch_norm."""
        call = NORM_CALL.bind(*args, **named)
        call.apply_defaults()
        norm = call.arguments
        if not norm["training"] or min(self.rows.places) * norm["input"][0, 0].numel() == 1:
            return F.batch_norm(*args, **named)
        weight, bias = (
            None if tensor is None else tensor.expand(len(self.rows), *tensor.shape)
            for tensor in (norm["weight"], norm["bias"])
        )
        tensors = NormTensors(running_mean=None, running_var=None, weight=weight, bias=bias)
        return batch_norm_by_rows(self.rows, norm["input"], tensors, NO_MOMENTUM, norm["eps"])


def _as_stacked(value: Any) -> Any:
    """A tensor as a stack over one device; any other value unchanged."""
    return value.unsqueeze(0) if isinstance(value, Tensor) else value


# ── all devices by torch's vmap (MAPPED) ─────────────────────────────────────────────────────────────────


MATRIX_AXES = 2  # axes of a matrix


def mapped(layer: nn.Module, stacked: Mapping[str, Tensor], x: Tensor, rows: Rows) -> Tensor:
    """The outputs of a layer for the samples of all devices, each device with its own tensors."""

    def of_one_device(tensors: dict[str, Tensor], own: Tensor) -> Tensor:
        return applied(layer, tensors, own)

    # Of torch's ways to compute attention, only this one has all its steps supported by `vmap` on every
    # processor.
    with sdpa_kernel(SDPBackend.MATH), _ForVmap():
        outputs = torch.vmap(of_one_device, randomness="different")(dict(stacked), rows.filled(x))
    return rows.unpadded(outputs)


class _ForVmap(Replacing):
    """While active, the functions in `REPLACED` are replaced, also within multi-head attention."""

    def __init__(self) -> None:
        super().__init__()
        self.table = {**REPLACED, F.multi_head_attention_forward: self._attention}

    def _attention(self, *args: Any, **named: Any) -> Any:
        with self:
            return _MULTI_HEAD_ATTENTION(*args, **named)


def _without_handing_over(function: Any) -> Callable[..., Any]:
    """A copy of a torch function, whose inner calls can be replaced by a mode.

    While a mode is active, the original calls the mode once and runs none of its own steps. The copy runs its
    steps, because its `has_torch_function` always says that no mode is active.
    """
    names = function.__globals__ | {"has_torch_function": lambda tensors: False}
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_MULTI_HEAD_ATTENTION = _without_handing_over(F.multi_head_attention_forward)


def _embedding(
    tokens: Tensor, weight: Tensor, padding_idx: int | None = None, *options: Any, **named: Any
) -> Tensor:
    """F.embedding for `vmap`. The padding token gets no gradient on any device.

    torch's own F.embedding under `vmap` would ensure this for the first device only.
    """
    vectors = F.embedding(tokens, weight, None, *options, **named)
    if padding_idx is None:
        return vectors
    padding = tokens == padding_idx % len(weight)  # torch counts a negative number from the end
    return torch.where(padding.unsqueeze(-1), vectors.detach(), vectors)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear for `vmap`: all axes of x but the last are merged, so each device has one matrix product."""
    if x.dim() <= MATRIX_AXES:
        return F.linear(x, weight, bias)
    return F.linear(x.flatten(0, -2), weight, bias).reshape(*x.shape[:-1], -1)


def _matmul(x: Tensor, other: Tensor) -> Tensor:
    """The product of two tensors. If only the second is a matrix, axes are merged as in `_linear`."""
    if x.dim() > MATRIX_AXES and other.dim() == MATRIX_AXES:
        return torch.matmul(x.flatten(0, -2), other).reshape(*x.shape[:-1], -1)
    return torch.matmul(x, other)


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """F.dropout for `vmap`. On a CPU torch draws in the memory order of x, which `vmap` would change."""
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
