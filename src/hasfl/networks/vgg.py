"""VGG-16 (Simonyan and Zisserman 2014) for 32x32 images: 13 convolutions and 3 linear layers."""

from itertools import pairwise

import torch
from torch import nn

from hasfl.networks.layered_model import LayeredModel
from hasfl.networks.norms import Norm, convolution

CHANNELS = (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
POOLED_AFTER = {2, 4, 7, 10, 13}


def vgg16(classes: int = 10, norm: Norm = "batch") -> LayeredModel:
    """Sixteen layers; an activation and a pooling belong to the layer before them.

    Five poolings take 32x32 down to 1x1, so the first linear layer sees 512 features.
    """
    layers: dict[str, nn.Module] = {}
    for j, (before, after) in enumerate(pairwise((3, *CHANNELS)), start=1):
        pooling = [nn.MaxPool2d(2)] if j in POOLED_AFTER else []
        layers[f"conv{j}"] = nn.Sequential(*convolution(before, after, norm=norm), nn.ReLU(), *pooling)
    layers["fc1"] = nn.Sequential(nn.Flatten(), nn.Linear(512, 512), nn.ReLU())
    layers["fc2"] = nn.Sequential(nn.Linear(512, 512), nn.ReLU())
    layers["fc3"] = nn.Linear(512, classes)
    return LayeredModel(layers, torch.empty(1, 3, 32, 32))
