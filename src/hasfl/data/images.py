"""Images as files hold them (bytes, channels last) and as networks want them (normalised, channels first)."""

import torch
from torch import Tensor

from hasfl.errors import InputError

BLOCK = 1000  # images in double precision at a time
MOST_CHANNELS = 4


def as_images(field: str, x: Tensor) -> Tensor:
    """View bytes in the order NHW or NHWC as NCHW."""
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and not x.shape[1] <= MOST_CHANNELS < x.shape[3]:
        return x.permute(0, 3, 1, 2)
    raise InputError(
        f"{field} of uint8 must be images in the order NHW or NHWC, got shape {tuple(x.shape)}: "
        "move the channels last, or convert to float32"
    )


def normalised_alike(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Bring each channel to mean 0 and standard deviation 1 over the training images."""
    if train.numel() == 0:
        raise InputError(f"x_train must hold at least one sample, got shape {tuple(train.shape)}")
    mean, std = channel_statistics(train)
    std = torch.where(std > 0, std, 1.0)
    return _normalised(train, mean, std), _normalised(test, mean, std)


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of every channel; the sums are whole numbers, hence exact."""
    total = torch.zeros(images.shape[1], dtype=torch.float64, device=images.device)
    squares = total.clone()
    for block in images.split(BLOCK):
        values = block.to(torch.float64)
        total += values.sum((0, 2, 3))
        squares += values.square().sum((0, 2, 3))
    count = images.numel() // images.shape[1]
    mean = total / count
    return mean, (squares / count - mean.square()).clamp(min=0).sqrt()


def _normalised(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    result = images.to(torch.float32, memory_format=torch.contiguous_format)
    per_channel = (-1, 1, 1)
    return result.sub_(mean.float().view(per_channel)).div_(std.float().view(per_channel))
