"""ResNet-18 (He et al. 2016) with the usual stem for 32x32 images: one 3x3 convolution, no pooling."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from hasfl.networks.layered_model import LayeredModel
from hasfl.networks.norms import Norm, convolution


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes.

    Two tensors are alive inside, so the block is one layer of the chain.
    """

    def __init__(self, in_channels: int, out_channels: int, *, stride: int, norm: Norm) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *convolution(in_channels, out_channels, stride=stride, norm=norm),
            nn.ReLU(),
            *convolution(out_channels, out_channels, norm=norm),
        )
        same_shape = stride == 1 and in_channels == out_channels
        projection = convolution(in_channels, out_channels, kernel=1, stride=stride, norm=norm)
        self.shortcut = nn.Sequential() if same_shape else nn.Sequential(*projection)

    def forward(self, x: Tensor) -> Tensor:
        """Return ReLU(residual(x) + shortcut(x))."""
        return torch.relu(self.residual(x) + self.shortcut(x))


def resnet18(classes: int = 100, norm: Norm = "batch") -> LayeredModel:
    """Ten layers: the stem, eight residual blocks (the last one pools), the linear classifier."""
    layers: dict[str, nn.Module] = {"stem": nn.Sequential(*convolution(3, 64, norm=norm), nn.ReLU())}
    channels = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    for k, (before, after) in enumerate(pairwise(channels), start=1):
        stride = 1 if before == after else 2
        layers[f"block{k}"] = ResidualBlock(before, after, stride=stride, norm=norm)
    layers["block8"] = nn.Sequential(layers["block8"], nn.AdaptiveAvgPool2d(1), nn.Flatten())
    layers["fc"] = nn.Linear(512, classes)
    return LayeredModel(layers, torch.empty(1, 3, 32, 32))
