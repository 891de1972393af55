"""Random crops and flips of images.

NumPy draws them from the seed, so they are the same on every machine. torch applies them to a whole batch at
once, on a CPU or a GPU.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from hasfl.arrays import IntN
from hasfl.errors import InputError
from hasfl.seeds import Seeds

# Number of pixels added on each side before an image is cropped; usual for CIFAR (He et al. 2016).
PADDING = 4
IMAGE_AXES = 4  # batch, channels, height, width


def draw_crops(
    seeds: Seeds,
    round: int,
    device: int,
    count: int,
    padding: int = PADDING,
) -> tuple[IntN, IntN, NDArray[np.bool_]]:
    """Draw the first row and column of the crop of each of `count` samples, and whether to flip it."""
    stream = seeds.stream("augment", round, device)
    rows, columns = stream.integers(0, 2 * padding + 1, (2, count))  # the upper end is exclusive
    return rows, columns, stream.integers(0, 2, count).astype(np.bool_)


def crop_and_flip(x: Tensor, rows: Tensor, columns: Tensor, flips: Tensor, padding: int = PADDING) -> Tensor:
    """Pad each image with zeros, crop it to its old size at its own offset, and mirror it where `flips`.

    `x` has the shape (batch, channels, height, width). `rows` and `columns` are the offsets, from 0 to
    2 · padding. The offset `padding` leaves the image in its place.
    """
    if x.ndim != IMAGE_AXES:
        raise InputError(
            f"crops need images of shape (batch, channels, height, width), got {tuple(x.shape)}: "
            "turn augmentation off for other data"
        )
    batch, channels, height, width = x.shape
    padded = pad(x, (padding, padding, padding, padding))
    down, along = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
    row = rows[:, None] + down
    column = columns[:, None] + torch.where(flips[:, None].bool(), along.flip(0), along)
    # Index of each pixel of the crop in the flattened padded image: (batch, height, width).
    pixel = row[:, :, None] * padded.shape[3] + column[:, None, :]
    pixel = pixel.view(batch, 1, height * width).expand(-1, channels, -1)
    return padded.flatten(2).gather(2, pixel).view(x.shape)
