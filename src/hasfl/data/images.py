"""Convert images from files (bytes, channels last) to inputs of networks (normalised, channels first)."""

import torch
from torch import Tensor

from hasfl.errors import InputError

# Images that are summed in double precision at a time. Chosen by hand: 1000 CIFAR images then take 25 MB.
BLOCK = 1000
MOST_CHANNELS = 4  # red, green, blue and transparency
AXES_WITHOUT_CHANNELS, AXES_WITH_CHANNELS = 3, 4  # NHW, NHWC
PIXELS = (0, 2, 3)  # the axes of NCHW over which the mean of a channel is taken


def as_images(field: str, x: Tensor) -> Tensor:
    """View images in the order NHW or NHWC as NCHW. Images that seem to be in the order NCHW are refused."""
    if x.ndim == AXES_WITHOUT_CHANNELS:
        return x[:, None]  # NHW to NCHW, with one channel
    if x.ndim == AXES_WITH_CHANNELS and not x.shape[1] <= MOST_CHANNELS < x.shape[3]:
        return x.permute(0, 3, 1, 2)  # NHWC to NCHW
    raise InputError(
        f"{field} of uint8 must be images in the order NHW or NHWC, got shape {tuple(x.shape)}: "
        "move the channels last, or convert to float32"
    )


def normalised_alike(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Normalise both sets so that each channel has mean 0 and standard deviation 1 in the training set."""
    if train.numel() == 0:
        raise InputError(f"x_train must hold at least one sample, got shape {tuple(train.shape)}")
    mean, std = channel_statistics(train)
    std = torch.where(std > 0, std, 1.0)  # a constant channel becomes 0, without a division by 0
    return _normalised(train, mean, std), _normalised(test, mean, std)


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation of every channel.

    The sums are whole numbers, which float64 adds without rounding up to 2^53. So the order does not matter.
    """
    total = torch.zeros(images.shape[1], dtype=torch.float64, device=images.device)
    squares = total.clone()
    for block in images.split(BLOCK):
        values = block.to(torch.float64)
        total += values.sum(PIXELS)
        squares += values.square().sum(PIXELS)
    count = images.numel() // images.shape[1]
    mean = total / count
    return mean, (squares / count - mean.square()).clamp(min=0).sqrt()


def _normalised(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    result = images.to(torch.float32, memory_format=torch.contiguous_format)
    per_channel = (-1, 1, 1)
    return result.sub_(mean.float().view(per_channel)).div_(std.float().view(per_channel))
