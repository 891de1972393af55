"""A small convolutional network, by default for the 8x8 grey images of scikit-learn's digits."""

import torch
from torch import nn

from hasfl.errors import ModelError
from hasfl.networks.layered_model import LayeredModel
from hasfl.networks.norms import Norm, convolution

DIGIT = (1, 8, 8)  # channels, height and width of a digit
CLASSES = 10  # of digits
# Output channels of the three convolutions, and features of the first linear layer. Chosen by hand.
CHANNELS = (16, 32, 32)
FEATURES = 64
POOLING = 2  # each of the two poolings halves height and width
SHRUNK = POOLING**2  # both poolings divide height and width by this number


def small_cnn(
    classes: int = CLASSES, norm: Norm = "batch", input_shape: tuple[int, ...] = DIGIT
) -> LayeredModel:
    """Five layers: a convolution, two convolutions with a pooling each, and two linear layers."""
    if len(input_shape) != len(DIGIT) or min(input_shape[1:]) < SHRUNK:
        raise ModelError(
            f"small-cnn takes images (channels, height, width) of at least {SHRUNK}x{SHRUNK}, "
            f"got {input_shape}"
        )
    channels, height, width = input_shape
    first, second, third = CHANNELS
    inputs = third * (height // SHRUNK) * (width // SHRUNK)
    layers = {
        "conv1": nn.Sequential(*convolution(channels, first, norm=norm), nn.ReLU()),
        "conv2": nn.Sequential(*convolution(first, second, norm=norm), nn.ReLU(), nn.MaxPool2d(POOLING)),
        "conv3": nn.Sequential(*convolution(second, third, norm=norm), nn.ReLU(), nn.MaxPool2d(POOLING)),
        "fc1": nn.Sequential(nn.Flatten(), nn.Linear(inputs, FEATURES), nn.ReLU()),
        "fc2": nn.Linear(FEATURES, classes),
    }
    return LayeredModel(layers, torch.empty(1, *input_shape))
