"""Counterparts of torch functions that take weights. They use each device's own weights for its own samples.

`x` is a batch with the samples of all devices, one device after the other. Weights are stacked: their first
axis is over devices. The table `ROWWISE` has the counterpart of each torch function.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hasfl.learning.batched.patches import convolve_patches
from hasfl.learning.batched.row_norm import NormTensors, batch_norm_by_rows
from hasfl.learning.batched.rows import Rows

# Below this much work per device, the call of a function takes longer than its work. Then one call serves all
# devices. Chosen from measurements on two cores with 20 devices, three of which docs/decisions/0009 shows.
SMALL_CONVOLUTION = 2e7  # FLOP per device
SMALL_NORM = 1e5  # values per device
FLOP_PER_PRODUCT = 2  # a multiply-add counts as two FLOP
# Up to these sizes, patches (`patches.py`) are faster on a GPU than one convolution per device. Chosen from
# measurements on an H200, one of which docs/decisions/0009 shows. A position is a pixel of the input image.
FEW_POSITIONS = 16  # for every batch size
MORE_POSITIONS, SMALL_BATCH = 64, 32  # positions, if all devices have the same batch size of at most this
FEW_CHANNELS = 4  # for every image, if all devices have the same batch size
# torch's own defaults.
NORM_MOMENTUM, NORM_EPS = 0.1, 1e-5


class NotRowwise(Exception):
    """A layer cannot run for many devices at once. The message says what the layer does."""


@contextmanager
def _on_streams(rows: Rows) -> Iterator[Callable[[int], Any]]:
    """Yields a function of k: a context that runs the k-th of many small jobs on one of several GPU streams.

    On a CPU the contexts do nothing. On leaving, the current stream waits for all jobs.
    """
    if not rows.streams:
        yield lambda k: nullcontext()
        return
    main = torch.cuda.current_stream()
    for stream in rows.streams:
        stream.wait_stream(main)
    yield lambda k: torch.cuda.stream(rows.streams[k % len(rows.streams)])
    for stream in rows.streams:
        main.wait_stream(stream)


def _of_each_device(stacked: Tensor | None, rows: Rows) -> Sequence[Tensor | None]:
    return [None] * len(rows) if stacked is None else stacked.unbind(0)


def _one_by_one(function: Callable[..., Tensor], rows: Rows, x: Tensor, *stacked: Tensor | None) -> Tensor:
    """Call a function once for each device, with its rows of `x` and its part of each stacked tensor."""
    devices = zip(rows.split(x), *(_of_each_device(tensor, rows) for tensor in stacked), strict=True)
    with _on_streams(rows) as stream_of:
        outputs = []
        for k, (own_rows, *own_tensors) in enumerate(devices):
            with stream_of(k):
                outputs.append(function(own_rows, *own_tensors))
    return torch.cat(outputs)


def _convolve(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The counterpart of F.conv1d, F.conv2d or F.conv3d."""

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
        options = (stride, padding, dilation)
        if x.is_cuda and _use_patches(function, rows, x, padding, dilation, groups):
            return _convolve_patches(rows, x, weight, bias, stride, padding)
        # An estimate: one output per input position.
        flop = FLOP_PER_PRODUCT * x[0, 0].numel() * max(rows.places) * weight[0].numel()
        if flop < SMALL_CONVOLUTION:
            return _convolve_at_once(function, rows, x, weight, bias, options, groups)
        return _one_by_one(lambda own, w, b: function(own, w, b, *options, groups), rows, x, weight, bias)

    return convolve


def _convolve_at_once(
    function: Callable[..., Tensor],
    rows: Rows,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    options: tuple[Any, Any, Any],
    groups: int,
) -> Tensor:
    """One grouped convolution: the channels of all devices side by side, one group of channels per device."""
    channels = rows.padded(x).transpose(0, 1).flatten(1, 2)  # (rows of a place, devices · channels, …)
    biases = None if bias is None else bias.flatten(0, 1)
    y = function(channels, weight.flatten(0, 1), biases, *options, groups * len(rows))
    return rows.unpadded(y.unflatten(1, (len(rows), -1)).transpose(0, 1))


def _use_patches(function: Any, rows: Rows, x: Tensor, padding: Any, dilation: Any, groups: int) -> bool:
    """Whether patches (`patches.py`) can compute this convolution, and do it faster on a GPU."""
    possible = (
        function is F.conv2d and groups == 1 and not isinstance(padding, str) and _pair(dilation) == (1, 1)
    )
    positions, channels = x[0, 0].numel(), x.shape[1]
    small_batch = rows.equal and rows.places[0] <= SMALL_BATCH
    few = positions <= FEW_POSITIONS or (positions <= MORE_POSITIONS and small_batch)
    return possible and (few or (channels <= FEW_CHANNELS and rows.equal))


def _pair(value: Any) -> tuple[int, int]:
    """The vertical and the horizontal value of an option that may be one number for both."""
    return (value, value) if isinstance(value, int) else tuple(value)


def _convolve_patches(
    rows: Rows, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any
) -> Tensor:
    """Convolve by patches: one matrix product for each device."""
    y = convolve_patches(rows.padded(x).flatten(0, 1), weight, _pair(stride), _pair(padding))
    y = rows.unpadded(y.unflatten(0, (len(rows), -1)))
    return y if bias is None else y + _for_samples(bias, rows, y, axis=1)


def _linear(rows: Rows, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The counterpart of F.linear: one batched matrix product."""
    padded = rows.padded(x)
    y = torch.bmm(padded.flatten(1, -2), weight.transpose(1, 2))
    y = rows.unpadded(y.unflatten(1, padded.shape[1:-1]))
    return y if bias is None else y + _for_samples(bias, rows, y, y.dim() - 1)


def batch_norm(
    rows: Rows,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = NORM_MOMENTUM,
    eps: float = NORM_EPS,
) -> Tensor:
    """The counterpart of F.batch_norm: each device's samples have their own mean and variance."""
    norm = NormTensors(running_mean, running_var, weight, bias)
    if training and (x.is_cuda or rows.used is not None or x.numel() < SMALL_NORM * len(rows)):
        return batch_norm_by_rows(rows, x, norm, momentum, eps)

    def own_norm(own_rows: Tensor, mean: Any, variance: Any, scale: Any, shift: Any) -> Tensor:
        return F.batch_norm(own_rows, mean, variance, scale, shift, training, momentum, eps)

    return _one_by_one(own_norm, rows, x, *norm)


def _for_samples(stacked: Tensor, rows: Rows, like: Tensor, axis: int) -> Tensor:
    """For each sample the tensor of its device, shaped to broadcast against `like`.

    The axes of the tensor match those of `like` from number `axis` on.
    """
    own = stacked.shape[1:]
    after = like.dim() - axis - len(own)
    return rows.spread(stacked).reshape(like.shape[0], *(1,) * (axis - 1), *own, *(1,) * after)


def _scaled(rows: Rows, y: Tensor, weight: Tensor | None, bias: Tensor | None, axis: int) -> Tensor:
    """Each sample of `y` times the weight of its device, plus the bias of its device."""
    y = y if weight is None else y * _for_samples(weight, rows, y, axis)
    return y if bias is None else y + _for_samples(bias, rows, y, axis)


def _group_norm(
    rows: Rows, x: Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = NORM_EPS
) -> Tensor:
    """The counterpart of F.group_norm. The norm itself treats each sample alone."""
    return _scaled(rows, F.group_norm(x, num_groups, eps=eps), weight, bias, axis=1)


def _layer_norm(
    rows: Rows, x: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = NORM_EPS
) -> Tensor:
    """The counterpart of F.layer_norm. The norm itself treats each sample alone."""
    axis = x.dim() - len(normalized_shape)
    return _scaled(rows, F.layer_norm(x, normalized_shape, eps=eps), weight, bias, axis)


def _count_up(rows: Rows, counter: Tensor, step: int) -> Tensor:
    """The counterpart of Tensor.add_ for a batch norm's counter of batches: every replica counts one."""
    if not isinstance(step, int):
        raise NotRowwise("it gives its weights to add_")
    return counter.add_(step)


ROWWISE: dict[Any, Callable[..., Tensor]] = {
    **{conv: _convolve(conv) for conv in (F.conv1d, F.conv2d, F.conv3d)},
    F.linear: _linear,
    F.batch_norm: batch_norm,
    F.group_norm: _group_norm,
    F.layer_norm: _layer_norm,
    Tensor.add_: _count_up,
}
