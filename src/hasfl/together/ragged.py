"""One layer over many devices at once, each device with weights and a batch size of its own.

The samples of all devices lie one after the other in one batch. A function without weights (an activation, a
pooling) works on that batch as it is. A function that takes weights is caught on its way to torch and done
with each device's own weights (`rowwise.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from inspect import signature
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hasfl.together.row_norm import NormTensors, batch_norm_by_rows
from hasfl.together.rows import Rows
from hasfl.together.rowwise import ROWWISE, NotRowwise, batch_norm

NORM_CALL = signature(F.batch_norm)


class Ragged(TorchFunctionMode):
    """While it is on, functions that receive stacked weights treat every device's samples with its own."""

    def __init__(self, stacked: Iterable[Tensor], rows: Rows) -> None:
        super().__init__()
        self.stacked = {id(tensor) for tensor in stacked}
        self.rows = rows

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Hand a call on, or do it device by device."""
        given = kwargs or {}
        if not any(id(argument) in self.stacked for argument in (*args, *given.values())):
            return func(*args, **given)
        if func not in ROWWISE or not self._holds_all_samples(args):
            raise NotRowwise(getattr(func, "__name__", repr(func)))
        return ROWWISE[func](self.rows, *args, **given)

    def _holds_all_samples(self, args: Sequence[Any]) -> bool:
        """Whether the first argument has a row for every sample; one that is stacked itself is a counter."""
        return id(args[0]) in self.stacked or args[0].shape[0] == sum(self.rows.places)


class _NormByRows(TorchFunctionMode, ABC):
    """While it is on, batch norms are done in a way of its own, and everything else as ever."""

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self.rows = rows

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Hand a call on, or do it by rows."""
        given = kwargs or {}
        return self.normalised(*args, **given) if func is F.batch_norm else func(*args, **given)

    @abstractmethod
    def normalised(self, *args: Any, **given: Any) -> Tensor:
        """What a batch norm called with these gives."""


class SharedNorm(_NormByRows):
    """While it is on, a batch norm that all devices share leaves out the samples that do not count.

    Its rows are those of a single device.
    """

    def normalised(self, *args: Any, **given: Any) -> Tensor:
        """By the samples that count."""
        x, *others = args
        stacked = {name: _of_one(value) for name, value in given.items()}
        return batch_norm(self.rows, x, *map(_of_one, others), **stacked)


class NormApart(_NormByRows):
    """While it is on, a batch norm with weights that all share treats every device's samples apart.

    What the norm remembers of samples is left alone. Where a device has one value a channel, which cannot be
    normalised, all samples are treated together.
    """

    def normalised(self, *args: Any, **given: Any) -> Tensor:
        """By each device's own samples."""
        call = NORM_CALL.bind(*args, **given)
        call.apply_defaults()
        norm = call.arguments
        if not norm["training"] or min(self.rows.places) * norm["input"][0, 0].numel() == 1:
            return F.batch_norm(*args, **given)
        weight, bias = (
            None if tensor is None else tensor.expand(len(self.rows), *tensor.shape)
            for tensor in (norm["weight"], norm["bias"])
        )
        return batch_norm_by_rows(
            self.rows, norm["input"], NormTensors(None, None, weight, bias), 0.0, norm["eps"]
        )


def _of_one(value: Any) -> Any:
    """A tensor as if stacked over a single device; anything else as it is."""
    return value.unsqueeze(0) if isinstance(value, Tensor) else value
