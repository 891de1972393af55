"""ResNet-18 (He et al. 2016) for 32x32 images: the stem is one 3x3 convolution without pooling."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from hasfl.networks.layered_model import LayeredModel
from hasfl.networks.norms import Norm, convolution

IMAGE = (3, 32, 32)  # channels, height and width of CIFAR images
# Output channels of the stem and of the eight blocks, as in He et al. 2016. A block that has more channels
# than the one before halves height and width.
CHANNELS = (64, 64, 64, 128, 128, 256, 256, 512, 512)
HALVING = 2  # the stride that halves height and width
CLASSES = 100  # of CIFAR-100, which the paper trains ResNet-18 on


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut around them: a 1x1 convolution where the shape changes.

    Inside the block two tensors pass side by side, so the block cannot be cut and is one layer.
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


def resnet18(classes: int = CLASSES, norm: Norm = "batch") -> LayeredModel:
    """Ten layers: the stem, eight residual blocks (the last one ends in a pooling), and a linear layer."""
    stem = nn.Sequential(*convolution(IMAGE[0], CHANNELS[0], norm=norm), nn.ReLU())
    layers: dict[str, nn.Module] = {"stem": stem}
    for k, (before, after) in enumerate(pairwise(CHANNELS), start=1):
        stride = 1 if before == after else HALVING
        layers[f"block{k}"] = ResidualBlock(before, after, stride=stride, norm=norm)
    layers["block8"] = nn.Sequential(layers["block8"], nn.AdaptiveAvgPool2d(1), nn.Flatten())
    layers["fc"] = nn.Linear(CHANNELS[-1], classes)
    return LayeredModel(layers, torch.empty(1, *IMAGE))
