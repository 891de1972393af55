"""The normalisation that follows a convolution: batch, group or none."""

from collections.abc import Callable
from typing import Literal

from torch import nn

from hasfl.errors import ModelError

Norm = Literal["batch", "group", "none"]
GROUPS = 16

_NORMS: dict[str, Callable[[int], list[nn.Module]]] = {
    "batch": lambda channels: [nn.BatchNorm2d(channels)],
    "group": lambda channels: [nn.GroupNorm(GROUPS, channels)],
    "none": lambda channels: [],
}


def convolution(
    in_channels: int, out_channels: int, *, norm: Norm, kernel: int = 3, stride: int = 1
) -> list[nn.Module]:
    """A convolution that keeps the size (or divides it by the stride), then its norm.

    The norm has a shift of its own, so the convolution has a bias only where there is none.
    """
    if norm not in _NORMS:
        raise ModelError(f"norm must be one of {', '.join(_NORMS)}, got {norm!r}")
    convolve = nn.Conv2d(
        in_channels, out_channels, kernel, stride=stride, padding=kernel // 2, bias=norm == "none"
    )
    return [convolve, *_NORMS[norm](out_channels)]
