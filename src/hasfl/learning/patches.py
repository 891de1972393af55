"""Convolutions of many devices as matrix products: the patches of a device's images times its weights.

On a GPU with small images this is faster than one convolution per device, although every patch is copied
(docs/decisions/0009). Images are laid out channels last, so the channels of one position are adjacent.

Names: a *position* is a pixel of the image, numbered row by row. A *patch* is what the kernel covers for one
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

Position 4 lies in every patch: at offset 0 of patch 3 (entry 12), at offset 1 of patch 2 (entry 9), and so
on. There are 16 entries, so 16 means that the position lies at this offset in no patch. In the same way 9 in
`position` would mean that the entry lies in the padding. Both arrays are stored flat.

`position` gathers the patches in the forward pass. `place` gathers, in the backward pass, the gradients of
all entries that copied a position; their sum is the gradient of the position.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Pair = tuple[int, int]  # vertical and horizontal
KEPT_GEOMETRIES = 256  # more than a model has different convolutions; chosen by hand
ONE_ZERO_ROW = (0, 0, 0, 1)  # for F.pad: append one row of zeros to the last axis but one


class Geometry(NamedTuple):
    """The arrays of the example above for one convolution."""

    out: Pair  # height and width of the output
    position: Tensor  # for each entry, its position; the number of positions for an entry in the padding
    place: Tensor  # for each position and offset, the entry; the number of entries where there is none


@lru_cache(maxsize=KEPT_GEOMETRIES)
def geometry(image: Pair, kernel: Pair, stride: Pair, padding: Pair, device: torch.device) -> Geometry:
    """Compute `position` and `place` for a convolution."""
    # rows[p, k] is the image row that patch row p has at kernel row k; columns likewise. Rows and columns
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
    """Convolve the images of each device with the weights of that device.

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
    """For each device y = P Kᵀ, so ∂K = ∂yᵀ P and ∂P = ∂y K.

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
