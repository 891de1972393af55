"""Functions of torch that take weights, done for many devices at once: each device's samples with its own.

`x` holds the samples of all devices, one device's after the other's. Weights are stacked: one row a device.
`ROWWISE` is the table of functions that are known.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hasfl.together.patches import convolve_patches
from hasfl.together.row_norm import NormTensors, batch_norm_by_rows
from hasfl.together.rows import Rows

# Below this much work for a device, calling a function costs more than doing it, and devices share one call.
# Chosen on two cores with 20 devices; docs/decisions/0009 shows three of the convolutions measured.
SMALL_CONVOLUTION = 2e7  # FLOP
SMALL_NORM = 1e5  # numbers
# On a GPU, copying out patches beats a kernel for each device up to these sizes. Chosen on an H200;
# docs/decisions/0009 shows one of the convolutions measured.
FEW_POSITIONS, MORE_POSITIONS, SMALL_BATCH, FEW_CHANNELS = 16, 64, 32, 4


class NotRowwise(Exception):
    """A layer does something with its weights that is not known for many devices at once."""


@contextmanager
def _side_by_side(rows: Rows) -> Iterator[Callable[[int], Any]]:
    """On a GPU, contexts that put the k-th of many small jobs on one of the streams; elsewhere, nothing."""
    if not rows.streams:
        yield lambda k: nullcontext()
        return
    main = torch.cuda.current_stream()
    for stream in rows.streams:
        stream.wait_stream(main)
    yield lambda k: torch.cuda.stream(rows.streams[k % len(rows.streams)])
    for stream in rows.streams:
        main.wait_stream(stream)


def _each(stacked: Tensor | None, rows: Rows) -> Sequence[Tensor | None]:
    return [None] * len(rows) if stacked is None else stacked.unbind(0)


def _one_by_one(function: Callable[..., Tensor], rows: Rows, x: Tensor, *stacked: Tensor | None) -> Tensor:
    """Do a function for each device with its own samples and tensors."""
    each = zip(rows.split(x), *(_each(tensor, rows) for tensor in stacked), strict=True)
    with _side_by_side(rows) as place:
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
    """Whether copying out every patch of an image costs less than many small kernels, on a GPU."""
    plain = (
        function is F.conv2d and groups == 1 and not isinstance(padding, str) and _pair(dilation) == (1, 1)
    )
    positions, channels = x[0, 0].numel(), x.shape[1]
    small_batch = rows.equal and rows.places[0] <= SMALL_BATCH
    few = positions <= FEW_POSITIONS or (positions <= MORE_POSITIONS and small_batch)
    return plain and (few or (channels <= FEW_CHANNELS and rows.equal))


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


def batch_norm(
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
    """Each device's samples by their own mean and variance; the arguments are those of F.batch_norm."""
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
        raise NotRowwise("add_")
    return counter.add_(step)


ROWWISE: dict[Any, Callable[..., Tensor]] = {
    **{conv: _convolve(conv) for conv in (F.conv1d, F.conv2d, F.conv3d)},
    F.linear: _linear,
    F.batch_norm: batch_norm,
    F.group_norm: _group_norm,
    F.layer_norm: _layer_norm,
    Tensor.add_: _count_up,
}
