"""Convolutions with the norm that follows them: batch norm, group norm or none."""

from collections.abc import Callable
from typing import Literal

from torch import nn

from hasfl.errors import ModelError

Norm = Literal["batch", "group", "none"]
# Groups of a group norm. Chosen by hand: 16 divides every number of channels in hasfl's models.
GROUPS = 16
KERNEL = 3  # height and width of a filter, as in VGG and ResNet

_NORMS: dict[str, Callable[[int], list[nn.Module]]] = {
    "batch": lambda channels: [nn.BatchNorm2d(channels)],
    "group": lambda channels: [nn.GroupNorm(GROUPS, channels)],
    "none": lambda channels: [],
}


def convolution(
    in_channels: int, out_channels: int, *, norm: Norm, kernel: int = KERNEL, stride: int = 1
) -> list[nn.Module]:
    """A convolution and its norm. The padding keeps height and width, or divides them by the stride.

    A norm adds a trained shift to each channel, so the convolution has a bias only without a norm.
    """
    if norm not in _NORMS:
        raise ModelError(f"norm must be one of {', '.join(_NORMS)}, got {norm!r}")
    convolve = nn.Conv2d(
        in_channels, out_channels, kernel, stride=stride, padding=kernel // 2, bias=norm == "none"
    )
    return [convolve, *_NORMS[norm](out_channels)]
