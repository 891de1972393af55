"""Random crops and flips: drawn with NumPy from the seed, applied to a whole batch wherever it lies."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from hasfl.arrays import IntN
from hasfl.errors import InputError
from hasfl.seeds import Seeds

PADDING = 4


def draw_crops(
    seeds: Seeds,
    round: int,
    device: int,
    count: int,
    padding: int = PADDING,
) -> tuple[IntN, IntN, NDArray[np.bool_]]:
    """Draw for each of `count` samples the row and column its crop begins at, and whether it is flipped."""
    stream = seeds.stream("augment", round, device)
    rows, columns = stream.integers(0, 2 * padding + 1, (2, count))
    return rows, columns, stream.integers(0, 2, count).astype(np.bool_)


def crop_and_flip(x: Tensor, rows: Tensor, columns: Tensor, flips: Tensor, padding: int = PADDING) -> Tensor:
    """Pad each image with zeros, cut its old size out at its own offset, then mirror it where asked.

    `x` is (batch, channels, height, width); offsets lie from 0 to 2 · padding, `padding` moves nothing.
    """
    _check_shapes(x, rows, columns, flips)
    batch, channels, height, width = x.shape
    padded = pad(x, (padding, padding, padding, padding))
    down, along = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
    row = rows[:, None] + down
    column = columns[:, None] + torch.where(flips[:, None].bool(), along.flip(0), along)
    pixel = row[:, :, None] * padded.shape[3] + column[:, None, :]  # (batch, height, width)
    pixel = pixel.view(batch, 1, height * width).expand(-1, channels, -1)
    return padded.flatten(2).gather(2, pixel).view(x.shape)


def _check_shapes(x: Tensor, rows: Tensor, columns: Tensor, flips: Tensor) -> None:
    if x.ndim != 4:
        raise InputError(
            f"crops need images of shape (batch, channels, height, width), got {tuple(x.shape)}: "
            "turn augmentation off for other data"
        )
    for field, values in (("rows", rows), ("columns", columns), ("flips", flips)):
        if values.shape != (len(x),):
            raise InputError(f"{field} must have shape ({len(x)},), one per image, got {tuple(values.shape)}")
