"""One layer over many devices at once, each with weights of its own and as many samples as it likes.

The samples of all devices lie one after the other in one batch. What has no weights (an activation, a
pooling) works on that batch as it is. Functions that take weights are caught on their way to torch and
done device by device, or for all in one kernel where that is faster; `ROWWISE` lists those that are known.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hasfl.engines.patches import convolve_patches
from hasfl.engines.row_norm import NormTensors, batch_norm_by_rows
from hasfl.engines.rows import Rows

# Below this much work for a device a function costs more to call than to do, and devices share one call.
SMALL_CONVOLUTION = 2e7  # FLOP
SMALL_NORM = 1e5  # numbers
NORM_CALL = signature(F.batch_norm)
STREAMS = 8  # on which a GPU works side by side


class NotRagged(Exception):
    """A layer does something with its weights that cannot be done for many devices at once."""


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
            raise NotRagged(getattr(func, "__name__", repr(func)))
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
        return _batch_norm(self.rows, x, *map(_of_one, others), **stacked)


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


@contextmanager
def _side_by_side(like: Tensor) -> Iterator[Callable[[int], Any]]:
    """On a GPU, contexts that put the k-th of many small jobs on a stream of its own; elsewhere, nothing."""
    if not like.is_cuda:
        yield lambda k: nullcontext()
        return
    main = torch.cuda.current_stream()
    streams = _streams(like.device)
    for stream in streams:
        stream.wait_stream(main)
    yield lambda k: torch.cuda.stream(streams[k % len(streams)])
    for stream in streams:
        main.wait_stream(stream)


_STREAMS: dict[torch.device, list[Any]] = {}


def _streams(device: torch.device) -> list[Any]:
    if device not in _STREAMS:
        _STREAMS[device] = [torch.cuda.Stream(device) for _ in range(STREAMS)]
    return _STREAMS[device]


def _each(stacked: Tensor | None, rows: Rows) -> Sequence[Tensor | None]:
    return [None] * len(rows) if stacked is None else stacked.unbind(0)


def _one_by_one(function: Callable[..., Tensor], rows: Rows, x: Tensor, *stacked: Tensor | None) -> Tensor:
    """Do a function for each device with its own samples and tensors."""
    each = zip(rows.split(x), *(_each(tensor, rows) for tensor in stacked), strict=True)
    with _side_by_side(x) as place:
        outputs = []
        for k, (own, *mine) in enumerate(each):
            with place(k):
                outputs.append(function(own, *mine))
    return torch.cat(outputs)


def _convolve(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def convolve(
        rows: Rows,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        how = (stride, padding, dilation)
        if x.is_cuda and _few_patches(function, rows, x, padding, dilation, groups):
            return _convolve_patches(rows, x, weight, bias, stride, padding)
        if 2 * x[0, 0].numel() * max(rows.places) * weight[0].numel() < SMALL_CONVOLUTION:
            return _convolve_at_once(function, rows, x, weight, bias, how, groups)
        return _one_by_one(lambda own, w, b: function(own, w, b, *how, groups), rows, x, weight, bias)

    return convolve


def _convolve_at_once(
    function: Callable[..., Tensor],
    rows: Rows,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    how: tuple[Any, Any, Any],
    groups: int,
) -> Tensor:
    """One convolution with a group of channels for each device."""
    channels = rows.padded(x).transpose(0, 1).flatten(1, 2)
    merged = None if bias is None else bias.flatten(0, 1)
    y = function(channels, weight.flatten(0, 1), merged, *how, groups * len(rows))
    return rows.unpadded(y.unflatten(1, (len(rows), -1)).transpose(0, 1))


def _few_patches(function: Any, rows: Rows, x: Tensor, padding: Any, dilation: Any, groups: int) -> bool:
    """Whether copying out every patch of an image costs less than many small kernels; on a GPU, measured."""
    plain = (
        function is F.conv2d and groups == 1 and not isinstance(padding, str) and _pair(dilation) == (1, 1)
    )
    positions, channels = x[0, 0].numel(), x.shape[1]
    few = positions <= 16 or (positions <= 64 and rows.equal and rows.places[0] <= 32)
    return plain and (few or (channels <= 4 and rows.equal))


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _convolve_patches(
    rows: Rows, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any
) -> Tensor:
    """One matrix product for each device: its patches by its weights."""
    y = convolve_patches(rows.padded(x).flatten(0, 1), weight, _pair(stride), _pair(padding))
    y = rows.unpadded(y.unflatten(0, (len(rows), -1)))
    return y if bias is None else y + _of_samples(bias, rows, y, axis=1)


def _linear(rows: Rows, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    padded = rows.padded(x)
    y = torch.bmm(padded.flatten(1, -2), weight.transpose(1, 2))
    y = rows.unpadded(y.unflatten(1, padded.shape[1:-1]))
    return y if bias is None else y + _of_samples(bias, rows, y, y.dim() - 1)


def _batch_norm(
    rows: Rows,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    norm = NormTensors(running_mean, running_var, weight, bias)
    if training and (x.is_cuda or rows.used is not None or x.numel() < SMALL_NORM * len(rows)):
        return batch_norm_by_rows(rows, x, norm, momentum, eps)

    def own_norm(own: Tensor, mean: Any, variance: Any, scale: Any, shift: Any) -> Tensor:
        return F.batch_norm(own, mean, variance, scale, shift, training, momentum, eps)

    return _one_by_one(own_norm, rows, x, *norm)


def _of_samples(stacked: Tensor, rows: Rows, like: Tensor, axis: int) -> Tensor:
    """For each sample the tensor of its device, from one axis of a batch on."""
    own = stacked.shape[1:]
    after = like.dim() - axis - len(own)
    return rows.spread(stacked).reshape(like.shape[0], *(1,) * (axis - 1), *own, *(1,) * after)


def _scaled(rows: Rows, y: Tensor, weight: Tensor | None, bias: Tensor | None, axis: int) -> Tensor:
    y = y if weight is None else y * _of_samples(weight, rows, y, axis)
    return y if bias is None else y + _of_samples(bias, rows, y, axis)


def _group_norm(
    rows: Rows, x: Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    return _scaled(rows, F.group_norm(x, num_groups, eps=eps), weight, bias, axis=1)


def _layer_norm(
    rows: Rows, x: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    axis = x.dim() - len(normalized_shape)
    return _scaled(rows, F.layer_norm(x, normalized_shape, eps=eps), weight, bias, axis)


def _count_up(rows: Rows, counter: Tensor, step: int) -> Tensor:
    """The counter of batches of a batch norm."""
    if not isinstance(step, int):
        raise NotRagged("add_")
    return counter.add_(step)


ROWWISE: dict[Any, Callable[..., Tensor]] = {
    **{conv: _convolve(conv) for conv in (F.conv1d, F.conv2d, F.conv3d)},
    F.linear: _linear,
    F.batch_norm: _batch_norm,
    F.group_norm: _group_norm,
    F.layer_norm: _layer_norm,
    Tensor.add_: _count_up,
}
