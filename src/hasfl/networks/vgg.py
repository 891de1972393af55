"""VGG-16 (Simonyan and Zisserman 2014) for 32x32 images: 13 convolutions and 3 linear layers."""

from itertools import pairwise

import torch
from torch import nn

from hasfl.networks.layered_model import LayeredModel
from hasfl.networks.norms import Norm, convolution

IMAGE = (3, 32, 32)  # channels, height and width of CIFAR images
# Output channels of the 13 convolutions, and the convolutions that a pooling follows: configuration D of
# Simonyan and Zisserman 2014.
CHANNELS = (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
POOLED_AFTER = {2, 4, 7, 10, 13}
POOLING = 2  # each pooling halves height and width
# Features of the linear layers. The original has 4096, for 224x224 images; 512 is usual for 32x32 images.
FEATURES = 512
CLASSES = 10  # of CIFAR-10, which the paper trains VGG-16 on


def vgg16(classes: int = CLASSES, norm: Norm = "batch") -> LayeredModel:
    """Sixteen layers; an activation and a pooling belong to the layer before them.

    Five poolings reduce 32x32 to 1x1, so the first linear layer has one input per channel.
    """
    layers: dict[str, nn.Module] = {}
    for j, (before, after) in enumerate(pairwise((IMAGE[0], *CHANNELS)), start=1):
        pooling = [nn.MaxPool2d(POOLING)] if j in POOLED_AFTER else []
        layers[f"conv{j}"] = nn.Sequential(*convolution(before, after, norm=norm), nn.ReLU(), *pooling)
    layers["fc1"] = nn.Sequential(nn.Flatten(), nn.Linear(CHANNELS[-1], FEATURES), nn.ReLU())
    layers["fc2"] = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU())
    layers["fc3"] = nn.Linear(FEATURES, classes)
    return LayeredModel(layers, torch.empty(1, *IMAGE))
