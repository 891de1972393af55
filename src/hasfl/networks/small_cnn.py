"""A small convolutional network, by default for 8x8 grey images such as scikit-learn's digits."""

import torch
from torch import nn

from hasfl.errors import ModelError
from hasfl.networks.layered_model import LayeredModel
from hasfl.networks.norms import Norm, convolution


def small_cnn(
    classes: int = 10, norm: Norm = "batch", input_shape: tuple[int, ...] = (1, 8, 8)
) -> LayeredModel:
    """Five layers: three convolutions, the last two pooled to half the size, and two linear layers."""
    if len(input_shape) != 3 or min(input_shape[1:]) < 4:
        raise ModelError(
            f"small-cnn takes images (channels, height, width) of at least 4x4, got {input_shape}"
        )
    channels, height, width = input_shape
    layers = {
        "conv1": nn.Sequential(*convolution(channels, 16, norm=norm), nn.ReLU()),
        "conv2": nn.Sequential(*convolution(16, 32, norm=norm), nn.ReLU(), nn.MaxPool2d(2)),
        "conv3": nn.Sequential(*convolution(32, 32, norm=norm), nn.ReLU(), nn.MaxPool2d(2)),
        "fc1": nn.Sequential(nn.Flatten(), nn.Linear(32 * (height // 4) * (width // 4), 64), nn.ReLU()),
        "fc2": nn.Linear(64, classes),
    }
    return LayeredModel(layers, torch.empty(1, *input_shape))
