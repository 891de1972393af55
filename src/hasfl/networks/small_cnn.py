"""A small convolutional network for 8x8 grey images such as scikit-learn's digits."""

import torch
from torch import nn

from hasfl.networks.layered_model import LayeredModel
from hasfl.networks.norms import Norm, convolution


def small_cnn(classes: int = 10, norm: Norm = "batch") -> LayeredModel:
    """Five layers: three convolutions, the last two pooled to 4x4 and 2x2, and two linear layers."""
    layers = {
        "conv1": nn.Sequential(*convolution(1, 16, norm=norm), nn.ReLU()),
        "conv2": nn.Sequential(*convolution(16, 32, norm=norm), nn.ReLU(), nn.MaxPool2d(2)),
        "conv3": nn.Sequential(*convolution(32, 32, norm=norm), nn.ReLU(), nn.MaxPool2d(2)),
        "fc1": nn.Sequential(nn.Flatten(), nn.Linear(128, 64), nn.ReLU()),
        "fc2": nn.Linear(64, classes),
    }
    return LayeredModel(layers, torch.empty(1, 1, 8, 8))
