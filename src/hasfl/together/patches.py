"""Convolutions of many devices as matrix products: every patch of an image by its device's weights.

For small images on a GPU, where a kernel for each device costs more than copying every patch out. Images
lie channels last, so that a patch is a few rows of numbers.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Pair = tuple[int, int]


class Geometry(NamedTuple):
    """Which position of an image is where in which patch."""

    out: Pair  # height and width of the result
    position: Tensor  # for each place of each patch, the position that lies there; the last means none
    place: Tensor  # for each position and each place in a patch, where it lies; the last means nowhere


@lru_cache(maxsize=256)
def geometry(image: Pair, kernel: Pair, stride: Pair, padding: Pair, device: torch.device) -> Geometry:
    """Work out the patches of a convolution."""
    rows, columns = (
        np.arange((image[k] + 2 * padding[k] - kernel[k]) // stride[k] + 1)[:, None] * stride[k]
        + np.arange(kernel[k])
        - padding[k]
        for k in (0, 1)
    )
    out = (len(rows), len(columns))
    row, column = np.broadcast_arrays(rows[:, None, :, None], columns[None, :, None, :])
    inside = (row >= 0) & (row < image[0]) & (column >= 0) & (column < image[1])
    nowhere = image[0] * image[1]
    position = np.where(inside, row * image[1] + column, nowhere).reshape(-1)
    places = kernel[0] * kernel[1]
    place = np.full((nowhere, places), len(position))
    (at,) = np.nonzero(position < nowhere)
    place[position[at], at % places] = at
    return Geometry(
        out, torch.from_numpy(position).to(device), torch.from_numpy(place.reshape(-1)).to(device)
    )


def convolve_patches(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Convolve images (devices · samples, channels, height, width), as many for each, with its weights."""
    kernel = (weight.shape[3], weight.shape[4])
    where = geometry((x.shape[2], x.shape[3]), kernel, stride, padding, x.device)
    if torch.is_autocast_enabled(x.device.type):
        half = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(half), weight.to(half)
    y: Tensor = _PatchConvolution.apply(x, weight, where)  # type: ignore[no-untyped-call]
    return y


class _PatchConvolution(torch.autograd.Function):
    """y = patches · weights, for each device; its gradients are two more such products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, where: Geometry) -> Tensor:
        samples, channels = x.shape[:2]
        devices, outputs = weight.shape[:2]
        images = F.pad(x.permute(0, 2, 3, 1).reshape(samples, -1, channels), (0, 0, 0, 1))
        width = channels * weight[0, 0, 0].numel()
        patches = images.index_select(1, where.position).reshape(devices, -1, width)
        rows = weight.permute(0, 1, 3, 4, 2).reshape(devices, outputs, width)
        ctx.save_for_backward(patches, rows)
        ctx.shapes, ctx.where = (x.shape, weight.shape), where
        y = torch.bmm(patches, rows.transpose(1, 2))
        return y.reshape(samples, *where.out, outputs).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor, None]:
        patches, rows = ctx.saved_tensors
        (samples, channels, height, width), of_weight = ctx.shapes
        devices, outputs = of_weight[:2]
        dy = dy.permute(0, 2, 3, 1).reshape(devices, -1, outputs)
        d_rows = torch.bmm(dy.transpose(1, 2), patches)
        d_weight = d_rows.reshape(devices, outputs, *of_weight[3:], channels).permute(0, 1, 4, 2, 3)
        if not ctx.needs_input_grad[0]:
            return None, d_weight, None
        d_patches = F.pad(torch.bmm(dy, rows).reshape(samples, -1, channels), (0, 0, 0, 1))
        spread = d_patches.index_select(1, ctx.where.place).reshape(samples, height, width, -1, channels)
        return spread.sum(dim=3).permute(0, 3, 1, 2), d_weight, None
