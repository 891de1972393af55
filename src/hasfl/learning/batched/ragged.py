"""One layer for many devices at once, each device with its own weights and its own batch size.

The samples of all devices lie one after the other in one batch. A function without weights (an activation, a
pooling) is applied to the whole batch. A call of a torch function that takes weights is intercepted and
replaced by a function that uses each device's own weights (`functions/rowwise.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from inspect import signature
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hasfl.learning.batched.row_norm import NormTensors, batch_norm_by_rows
from hasfl.learning.batched.rows import Rows
from hasfl.learning.batched.rowwise import ROWWISE, NotRowwise, batch_norm

NORM_CALL = signature(F.batch_norm)
NO_MOMENTUM = 0.0  # for a batch norm without running statistics, which does not use its momentum


class Ragged(TorchFunctionMode):
    """While active, a torch function with stacked weights uses each device's weights for its own samples.

    Any use of stacked weights that is not in the table `ROWWISE` raises `NotRowwise`.
    """

    def __init__(self, stacked: Iterable[Tensor], rows: Rows) -> None:
        super().__init__()
        self.stacked = {id(tensor) for tensor in stacked}
        self.rows = rows

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function itself, or its counterpart in `ROWWISE` if an argument is stacked."""
        named = kwargs or {}
        if not any(id(argument) in self.stacked for argument in (*args, *named.values())):
            return func(*args, **named)
        if func not in ROWWISE or not self._holds_all_samples(args):
            raise NotRowwise(_use_of_weights(func))
        return ROWWISE[func](self.rows, *args, **named)

    def _holds_all_samples(self, args: Sequence[Any]) -> bool:
        """Whether the first argument is the whole batch, or a stacked tensor (a batch norm's counter)."""
        return id(args[0]) in self.stacked or args[0].shape[0] == sum(self.rows.places)


def _use_of_weights(func: Any) -> str:
    """What a layer does that calls a function with its weights."""
    name = getattr(func, "__name__", repr(func))
    if name == "__get__":  # the function is the getter of an attribute
        return f"it reads {func.__self__.__name__} of its weights"
    return f"it gives its weights to {name}"


class _NormByRows(TorchFunctionMode, ABC):
    """While active: a batch norm calls `normalised`, and every other function is unchanged."""

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self.rows = rows

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function itself, or `normalised` instead of a batch norm."""
        named = kwargs or {}
        return self.normalised(*args, **named) if func is F.batch_norm else func(*args, **named)

    @abstractmethod
    def normalised(self, *args: Any, **named: Any) -> Tensor:
        """The result of a batch norm. The arguments are those of F.batch_norm."""


class SharedNorm(_NormByRows):
    """While active: the batch norm of a common layer ignores spare rows.

    `rows` has one place, which holds the samples of all devices.
    """

    def normalised(self, *args: Any, **named: Any) -> Tensor:
        """Batch norm with the statistics of all rows that count."""
        x, *others = args
        stacked = {name: _as_stacked(value) for name, value in named.items()}
        return batch_norm(self.rows, x, *map(_as_stacked, others), **stacked)


class NormApart(_NormByRows):
    """While active: a batch norm normalises each device's samples with their own mean and variance.

    Its weight and bias are the same for all devices, and its running statistics do not change. If a device
    has only one value per channel, which has no variance, torch's own batch norm treats all samples together.
    """

    def normalised(self, *args: Any, **named: Any) -> Tensor:
        """Batch norm with the statistics of each device."""
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
