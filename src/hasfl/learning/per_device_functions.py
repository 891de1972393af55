"""Counterparts of torch functions that take weights: each device's samples meet its own weights.

`x` is a batch with the samples of all devices, one device after the other. Weights are stacked: their first
axis is over devices. The table `PER_DEVICE` has the counterpart of each torch function.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hasfl.errors import OneValueError
from hasfl.learning.batch_layout import Rows

# Below this much work per device, the call of a function takes longer than its work. Then one call serves all
# devices. Chosen from measurements on two cores with 20 devices, three of which docs/decisions/0009 shows.
SMALL_CONVOLUTION = 2e7  # FLOP per device
SMALL_NORM = 1e5  # values per device
FLOP_PER_PRODUCT = 2  # a multiply-add counts as two FLOP
# Up to these sizes, patches (below) are faster on a GPU than one convolution per device. Chosen from
# measurements on an H200, one of which docs/decisions/0009 shows. A position is a pixel of the input image.
FEW_POSITIONS = 16  # most positions for which patches are used at every batch size
# Most positions for which patches are used if all devices have the same batch size, and the largest such
# size.
MORE_POSITIONS, SMALL_BATCH = 64, 32
FEW_CHANNELS = 4  # most channels for which patches are used if all devices have the same batch size
# Default momentum and ε of torch's norms.
NORM_MOMENTUM, NORM_EPS = 0.1, 1e-5


class NotAtOnce(Exception):
    """Raised if a layer cannot run for many devices at once. The message says what the layer does."""


@contextmanager
def _on_streams(rows: Rows) -> Iterator[Callable[[int], Any]]:
    """Yield a function of k that returns a context: the k-th small job runs on one of several GPU streams.

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


def _one_by_one(function: Callable[..., Tensor], rows: Rows, x: Tensor, *stacked: Tensor | None) -> Tensor:
    """Call a function once for each device, with its rows of `x` and its part of each stacked tensor."""
    of_devices = ([None] * len(rows) if tensor is None else tensor.unbind(0) for tensor in stacked)
    devices = zip(rows.split(x), *of_devices, strict=True)
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
        if x.is_cuda and _use_patches(function, rows, x, padding, dilation, groups):
            return _convolve_patches(rows, x, weight, bias, stride, padding)
        # FLOP of the convolution for one device, estimated with one output per input position.
        flop = FLOP_PER_PRODUCT * x[0, 0].numel() * max(rows.places) * weight[0].numel()
        options = (stride, padding, dilation)
        if flop >= SMALL_CONVOLUTION:
            return _one_by_one(lambda own, w, b: function(own, w, b, *options, groups), rows, x, weight, bias)
        # One grouped convolution for all devices, whose channels lie side by side.
        channels = rows.padded(x).transpose(0, 1).flatten(1, 2)  # (rows of a place, devices · channels, …)
        biases = None if bias is None else bias.flatten(0, 1)
        y = function(channels, weight.flatten(0, 1), biases, *options, groups * len(rows))
        return rows.unpadded(y.unflatten(1, (len(rows), -1)).transpose(0, 1))

    return convolve


def _use_patches(function: Any, rows: Rows, x: Tensor, padding: Any, dilation: Any, groups: int) -> bool:
    """Whether patches can compute a convolution, and faster on a GPU than convolutions."""
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
    """The tensor of each sample's device, shaped to broadcast against `like`.

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
        raise NotAtOnce("it gives its weights to add_")
    return counter.add_(step)


PER_DEVICE: dict[Any, Callable[..., Tensor]] = {
    **{conv: _convolve(conv) for conv in (F.conv1d, F.conv2d, F.conv3d)},
    F.linear: _linear,
    F.batch_norm: batch_norm,
    F.group_norm: _group_norm,
    F.layer_norm: _layer_norm,
    Tensor.add_: _count_up,
}


# ── batch norm ───────────────────────────────────────────────────────────────────────────────────────────


PLAIN_AXES = 2  # (samples, channels); further axes, such as height and width, hold a channel's positions


class NormTensors(NamedTuple):
    """The tensors of a batch norm, each stacked over devices."""

    running_mean: Tensor | None
    running_var: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


def batch_norm_by_rows(rows: Rows, x: Tensor, norm: NormTensors, momentum: float, eps: float) -> Tensor:
    """Batch norm in training mode, over those rows of each device that count.

    Spare rows are normalised with the statistics of their device. They do not enter these statistics, and
    their gradient is 0.
    """
    if rows.used is None and min(rows.places) * x[0, 0].numel() == 1:
        raise OneValueError
    normalise: Callable[..., tuple[Tensor, Tensor, Tensor]] = _RowNorm.apply
    y, mean, variance = normalise(x, norm.weight, norm.bias, rows, eps)
    if norm.running_mean is not None and norm.running_var is not None:
        count = _values_per_channel(rows, x).to(mean)
        norm.running_mean.lerp_(mean, momentum)
        # Like torch, normalise by the biased variance but keep a running mean of the unbiased one.
        norm.running_var.lerp_(variance * (count / (count - 1)), momentum)
    return y


def _values_per_channel(rows: Rows, x: Tensor) -> Tensor:
    """The number of values per channel that count, for each device: samples times positions."""
    positions = x[0, 0].numel()
    return rows.counts.to(x.dtype).unsqueeze(1) * positions


def _statistics(rows: Rows, x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the biased variance of each device and channel.

    The mean is the mean over samples of each sample's mean over its positions. By the law of total variance
    the variance is the mean over samples of: the variance within the sample, plus the squared distance
    between the sample's mean and the device's mean.
    """
    if x.dim() == PLAIN_AXES:
        of_sample, within = x, torch.zeros_like(x)
    else:
        within, of_sample = torch.var_mean(x, dim=tuple(range(PLAIN_AXES, x.dim())), correction=0)
    mean = rows.means(of_sample)
    between = (of_sample - rows.spread(mean)).square()
    return mean, rows.means(within + between)


def _over_positions(x: Tensor) -> Tensor:
    """The sum over all positions, for each sample and channel."""
    return x.sum(dim=tuple(range(PLAIN_AXES, x.dim()))) if x.dim() > PLAIN_AXES else x


def _at_positions(of_samples: Tensor, x: Tensor) -> Tensor:
    """Values per sample and channel, with axes of length 1 appended so that they broadcast against x."""
    return of_samples.reshape(*x.shape[:PLAIN_AXES], *(1,) * (x.dim() - PLAIN_AXES))


class _RowNorm(torch.autograd.Function):
    """Batch norm with statistics over each device's own samples, and its gradient.

    Take one channel of one device, with the n values x_k that count, and write F for the loss:

        μ = Σ x_k / n,   d_k = x_k − μ,   v = Σ d_k² / n,   s = 1/√(v + ε),   y_k = w s d_k + b

    The weight and the bias have the gradients

        ∂F/∂w = s Σ ∂y_k d_k,   ∂F/∂b = Σ ∂y_k          where ∂y_k is short for ∂F/∂y_k.

    A value x_j enters y_k through d_k and through s (δ_kj is 1 where k = j, otherwise 0):

        ∂d_k/∂x_j = δ_kj − 1/n
        ∂v/∂x_j   = (2/n) Σ_k d_k (δ_kj − 1/n) = 2 d_j / n                 because Σ d_k = 0
        ∂s/∂x_j   = −½ (v + ε)^(−3/2) ∂v/∂x_j = −s³ d_j / n

    The chain rule gives

        ∂F/∂x_j = Σ_k ∂y_k w (s ∂d_k/∂x_j + d_k ∂s/∂x_j)
                = w s ∂y_j − w s Σ ∂y_k / n − w s³ d_j Σ ∂y_k d_k / n.

    To save memory, x is kept for the backward pass, but d is not. So d_j is written as x_j − μ. The result is
    then linear in ∂y_j and x_j, with three coefficients that are the same for all samples of the device:

        ∂F/∂x_j  = per_dy ∂y_j + per_x x_j + constant
        per_dy   = w s
        per_x    = −w s s² Σ ∂y_k d_k / n
        constant = −w s Σ ∂y_k / n − per_x μ
        Σ ∂y_k d_k = Σ ∂y_k x_k − μ Σ ∂y_k

    In the code s is `inverse`, w s is `scale` and n is `count`.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, rows: Rows, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype, x = x.dtype, x.to(torch.promote_types(x.dtype, torch.float32))
        mean, variance = _statistics(rows, x)
        inverse = torch.rsqrt(variance + eps)
        scale = inverse if weight is None else inverse * weight
        shift = -mean * scale if bias is None else bias - mean * scale  # y = scale x + shift
        ctx.save_for_backward(x, mean, inverse, scale)
        ctx.rows, ctx.has_weight, ctx.has_bias = rows, weight is not None, bias is not None
        ctx.mark_non_differentiable(mean, variance)
        shift, scale = (_at_positions(rows.spread(of_devices), x) for of_devices in (shift, scale))
        return torch.addcmul(shift, x, scale).to(dtype), mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dtype, rows = gradients[0].dtype, ctx.rows
        x, mean, inverse, scale = ctx.saved_tensors
        dy, count = gradients[0].to(x.dtype), _values_per_channel(rows, x)
        # Sums over the values of each device and channel: Σ ∂y_k and Σ ∂y_k d_k.
        sum_dy = rows.sums(_over_positions(dy))
        sum_dy_d = rows.sums(_over_positions(dy * x)) - mean * sum_dy
        # The three coefficients: first one for each device and channel, then one for each sample and channel.
        # `counted` sets them to 0 in spare rows, whose gradient is 0.
        per_x = -scale * inverse.square() * sum_dy_d / count
        constant = -scale * sum_dy / count - per_x * mean
        per_dy, per_x, constant = (
            _at_positions(rows.counted(rows.spread(coefficient)), x)
            for coefficient in (scale, per_x, constant)
        )
        dx = torch.addcmul(constant, dy, per_dy).addcmul_(x, per_x)
        return (
            dx.to(dtype),
            sum_dy_d * inverse if ctx.has_weight else None,
            sum_dy if ctx.has_bias else None,
            None,
            None,
        )


# ── convolutions by patches ──────────────────────────────────────────────────────────────────────────────


Pair = tuple[int, int]  # (vertical, horizontal)
KEPT_GEOMETRIES = 256  # size of a cache: more than a model has different convolutions; chosen by hand
ONE_ZERO_ROW = (0, 0, 0, 1)  # argument of F.pad that appends one row of zeros to the last axis but one


class Geometry(NamedTuple):
    """The arrays that tell how to convolve images of one size by patches.

    A *position* is a pixel of the image, numbered row by row. A *patch* is what the kernel covers for one
    output pixel. An *offset* is a pixel of the kernel, numbered row by row. An *entry* is one offset of one
    patch, number patch · offsets + offset. Example: a 3 x 3 image, a 2 x 2 kernel, stride 1, no padding.

        positions    0 1 2      patches    0 1      offsets    0 1
                     3 4 5                 2 3                 2 3
                     6 7 8

    `position`, the position at each entry (one row per patch, one column per offset):

        patch 0     0  1  3  4
        patch 1     1  2  4  5
        patch 2     3  4  6  7
        patch 3     4  5  7  8

    `place`, the entry where a position lies at each offset (one row per position, one column per offset):

        position 0     0 16 16 16
        position 1     4  1 16 16
        position 2    16  5 16 16
        position 3     8 16  2 16
        position 4    12  9  6  3
        position 5    16 13 16  7
        position 6    16 16 10 16
        position 7    16 16 14 11
        position 8    16 16 16 15

    Position 4 lies in every patch: at offset 0 of patch 3 (entry 12), at offset 1 of patch 2 (entry 9), and
    so on. There are 16 entries, so 16 means that the position lies at this offset in no patch. In the same
    way 9 in `position` would mean that the entry lies in the padding. Both arrays are stored flat.

    `position` gathers the patches in the forward pass. `place` gathers, in the backward pass, the gradients
    of all entries that copied a position; their sum is the gradient of the position.
    """

    out: Pair  # height and width of the output
    position: Tensor  # position of each entry; the number of positions for an entry in the padding
    place: Tensor  # entry of each position and offset; the number of entries where there is none


@lru_cache(maxsize=KEPT_GEOMETRIES)
def geometry(image: Pair, kernel: Pair, stride: Pair, padding: Pair, device: torch.device) -> Geometry:
    """Compute the `Geometry` of a convolution: the arrays `position` and `place`."""
    # rows[p, k] is the image row of patch row p at kernel row k, and so for columns. Rows and columns
    # outside the image are padding.
    rows, columns = (
        np.arange((image[k] + 2 * padding[k] - kernel[k]) // stride[k] + 1)[:, None] * stride[k]
        + np.arange(kernel[k])
        - padding[k]
        for k in (0, 1)
    )
    out = (len(rows), len(columns))
    row, column = np.broadcast_arrays(rows[:, None, :, None], columns[None, :, None, :])
    inside = (row >= 0) & (row < image[0]) & (column >= 0) & (column < image[1])
    positions, offsets = image[0] * image[1], kernel[0] * kernel[1]
    position = np.where(inside, row * image[1] + column, positions).reshape(-1)
    place = np.full((positions, offsets), len(position))
    (entries,) = np.nonzero(position < positions)
    place[position[entries], entries % offsets] = entries
    return Geometry(
        out, torch.from_numpy(position).to(device), torch.from_numpy(place.reshape(-1)).to(device)
    )


def convolve_patches(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Convolve the images of each device with its weights, as matrix products: patches times weights.

    On a GPU with small images this is faster than one convolution per device, although every patch is copied
    (docs/decisions/0009). Images are laid out channels last, so the channels of one position are adjacent.

    `x` is (devices · samples, channels, height, width), with equally many samples of every device. `weight`
    is (devices, output channels, channels, kernel height, kernel width).
    """
    kernel = (weight.shape[3], weight.shape[4])
    arrays = geometry((x.shape[2], x.shape[3]), kernel, stride, padding, x.device)
    if torch.is_autocast_enabled(x.device.type):
        half = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(half), weight.to(half)
    y: Tensor = _PatchConvolution.apply(x, weight, arrays)  # type: ignore[no-untyped-call]
    return y


class _PatchConvolution(torch.autograd.Function):
    """A convolution by patches, and its gradient: y = P Kᵀ for each device, so ∂K = ∂yᵀ P and ∂P = ∂y K.

    P has one row per sample and output pixel: a patch. K has one row per output channel: a kernel.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, arrays: Geometry) -> Tensor:
        samples, channels = x.shape[:2]
        devices, outputs = weight.shape[:2]
        # One row of channels per position, and a last row of zeros, which entries in the padding point to.
        images = F.pad(x.permute(0, 2, 3, 1).reshape(samples, -1, channels), ONE_ZERO_ROW)
        width = channels * weight[0, 0, 0].numel()  # numbers in a patch
        patches = images.index_select(1, arrays.position).reshape(devices, -1, width)
        kernels = weight.permute(0, 1, 3, 4, 2).reshape(devices, outputs, width)
        ctx.save_for_backward(patches, kernels)
        ctx.shapes, ctx.arrays = (x.shape, weight.shape), arrays
        y = torch.bmm(patches, kernels.transpose(1, 2))
        return y.reshape(samples, *arrays.out, outputs).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor, None]:
        patches, kernels = ctx.saved_tensors
        (samples, channels, height, width), weight_shape = ctx.shapes
        devices, outputs = weight_shape[:2]
        dy = dy.permute(0, 2, 3, 1).reshape(devices, -1, outputs)
        d_kernels = torch.bmm(dy.transpose(1, 2), patches)
        d_weight = d_kernels.reshape(devices, outputs, *weight_shape[3:], channels).permute(0, 1, 4, 2, 3)
        if not ctx.needs_input_grad[0]:
            return None, d_weight, None
        # One row of channels per entry, and a last row of zeros for positions that have no entry.
        d_entries = F.pad(torch.bmm(dy, kernels).reshape(samples, -1, channels), ONE_ZERO_ROW)
        gathered = d_entries.index_select(1, ctx.arrays.place).reshape(samples, height, width, -1, channels)
        return gathered.sum(dim=3).permute(0, 3, 1, 2), d_weight, None
