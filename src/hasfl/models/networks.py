"""Models by name: the three networks of hasfl, or `package.module:callable` for a user's own model.

VGG-16 (Simonyan and Zisserman 2014) and ResNet-18 (He et al. 2016) are for 32x32 images, as in the paper.
VGG-16 has 13 convolutions and 3 linear layers. The stem of ResNet-18 is one 3x3 convolution without pooling.
The small CNN is by default for the 8x8 grey images of scikit-learn's digits.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypedDict, Unpack

import torch
from torch import Tensor, nn

from hasfl.callables import call, find
from hasfl.errors import ModelError
from hasfl.models.cutting import layered
from hasfl.models.layered_model import LayeredModel

# ── a convolution and its norm ───────────────────────────────────────────────────────────────────────────


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
    """Build a convolution and its norm. The padding keeps height and width, or divides them by the stride.

    A norm adds a trained shift to each channel, so the convolution has a bias only without a norm.
    """
    if norm not in _NORMS:
        raise ModelError(f"norm must be one of {', '.join(_NORMS)}, got {norm!r}")
    convolve = nn.Conv2d(
        in_channels, out_channels, kernel, stride=stride, padding=kernel // 2, bias=norm == "none"
    )
    return [convolve, *_NORMS[norm](out_channels)]


# ── VGG-16 ───────────────────────────────────────────────────────────────────────────────────────────────


IMAGE = (3, 32, 32)  # channels, height and width of CIFAR images
# Output channels of the 13 convolutions, and the convolutions that a pooling follows: configuration D of
# Simonyan and Zisserman 2014.
VGG_CHANNELS = (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
VGG_POOLED_AFTER = {2, 4, 7, 10, 13}
# Features of the linear layers. The original has 4096, for 224x224 images; 512 is usual for 32x32 images.
VGG_FEATURES = 512
CIFAR10_CLASSES = 10  # number of classes of CIFAR-10, on which the paper trains VGG-16


def vgg16(classes: int = CIFAR10_CLASSES, norm: Norm = "batch") -> LayeredModel:
    """Build VGG-16, with 16 layers; an activation and a pooling belong to the layer before them.

    Five poolings reduce 32x32 to 1x1, so the first linear layer has one input per channel.
    """
    layers: dict[str, nn.Module] = {}
    for j, (before, after) in enumerate(pairwise((IMAGE[0], *VGG_CHANNELS)), start=1):
        pooling = [nn.MaxPool2d(POOLING)] if j in VGG_POOLED_AFTER else []
        layers[f"conv{j}"] = nn.Sequential(*convolution(before, after, norm=norm), nn.ReLU(), *pooling)
    layers["fc1"] = nn.Sequential(nn.Flatten(), nn.Linear(VGG_CHANNELS[-1], VGG_FEATURES), nn.ReLU())
    layers["fc2"] = nn.Sequential(nn.Linear(VGG_FEATURES, VGG_FEATURES), nn.ReLU())
    layers["fc3"] = nn.Linear(VGG_FEATURES, classes)
    return LayeredModel(layers, torch.empty(1, *IMAGE))


# ── ResNet-18 ────────────────────────────────────────────────────────────────────────────────────────────


# Output channels of the stem and of the eight blocks, as in He et al. 2016. A block that has more channels
# than the one before halves height and width.
RESNET_CHANNELS = (64, 64, 64, 128, 128, 256, 256, 512, 512)
HALVING = 2  # the stride that halves height and width
CIFAR100_CLASSES = 100  # number of classes of CIFAR-100, on which the paper trains ResNet-18


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


def resnet18(classes: int = CIFAR100_CLASSES, norm: Norm = "batch") -> LayeredModel:
    """Build ResNet-18, 10 layers: stem, eight residual blocks (the last with a pooling), linear layer."""
    stem = nn.Sequential(*convolution(IMAGE[0], RESNET_CHANNELS[0], norm=norm), nn.ReLU())
    layers: dict[str, nn.Module] = {"stem": stem}
    for k, (before, after) in enumerate(pairwise(RESNET_CHANNELS), start=1):
        stride = 1 if before == after else HALVING
        layers[f"block{k}"] = ResidualBlock(before, after, stride=stride, norm=norm)
    layers["block8"] = nn.Sequential(layers["block8"], nn.AdaptiveAvgPool2d(1), nn.Flatten())
    layers["fc"] = nn.Linear(RESNET_CHANNELS[-1], classes)
    return LayeredModel(layers, torch.empty(1, *IMAGE))


# ── the small CNN ────────────────────────────────────────────────────────────────────────────────────────


DIGIT = (1, 8, 8)  # channels, height and width of a digit
DIGIT_CLASSES = 10  # number of classes of digits
# Output channels of the three convolutions, and features of the first linear layer. Chosen by hand.
SMALL_CHANNELS = (16, 32, 32)
SMALL_FEATURES = 64
POOLING = 2  # a pooling halves height and width
SHRUNK = POOLING**2  # both poolings divide height and width by this number


def small_cnn(
    classes: int = DIGIT_CLASSES, norm: Norm = "batch", input_shape: tuple[int, ...] = DIGIT
) -> LayeredModel:
    """Build the small CNN, 5 layers: three convolutions (the last two with poolings), two linear layers."""
    if len(input_shape) != len(DIGIT) or min(input_shape[1:]) < SHRUNK:
        raise ModelError(
            f"small-cnn takes images (channels, height, width) of at least {SHRUNK}x{SHRUNK}, "
            f"got {input_shape}"
        )
    channels, height, width = input_shape
    first, second, third = SMALL_CHANNELS
    inputs = third * (height // SHRUNK) * (width // SHRUNK)
    layers = {
        "conv1": nn.Sequential(*convolution(channels, first, norm=norm), nn.ReLU()),
        "conv2": nn.Sequential(*convolution(first, second, norm=norm), nn.ReLU(), nn.MaxPool2d(POOLING)),
        "conv3": nn.Sequential(*convolution(second, third, norm=norm), nn.ReLU(), nn.MaxPool2d(POOLING)),
        "fc1": nn.Sequential(nn.Flatten(), nn.Linear(inputs, SMALL_FEATURES), nn.ReLU()),
        "fc2": nn.Linear(SMALL_FEATURES, classes),
    }
    return LayeredModel(layers, torch.empty(1, *input_shape))


# ── models by name ───────────────────────────────────────────────────────────────────────────────────────


NETWORKS: dict[str, Callable[..., LayeredModel]] = {
    "vgg16": vgg16,
    "resnet18": resnet18,
    "small-cnn": small_cnn,
}
ANY_SHAPE = {"small-cnn"}  # models of hasfl that take samples of any shape
KEYS = {"input_shape": "input"}  # names of options in scenarios, if they differ from the names here


class Options(TypedDict, total=False):
    """Options of a model besides its name; None, or an option left out, means the model's default."""

    classes: int | None  # number of outputs of the last layer; only for models of hasfl
    norm: Norm | None  # kind of norm; only for models of hasfl
    input_shape: tuple[int, ...] | None  # shape of one sample; only for small-cnn and callables
    tokens: bool  # whether samples of `input_shape` consist of whole numbers
    samples: Tensor | None  # a batch of the data, for a shape and type that nothing else gives
    folder: Path | None  # the folder in which a callable is searched first


def network(name: str, **options: Unpack[Options]) -> LayeredModel:
    """Build the model called `name` as a chain of layers; `Options` lists the keywords."""
    return chained(*plain_network(name, **options))


def chained(module: nn.Module, example_input: Tensor) -> LayeredModel:
    """The module as a chain of layers: the module itself if it is one, otherwise cut into layers."""
    return module if isinstance(module, LayeredModel) else layered(module, example_input)


def plain_network(name: str, **options: Unpack[Options]) -> tuple[nn.Module, Tensor]:
    """Build the model called `name` without cutting it; also returns a batch of samples as an example."""
    own = ":" in name
    if not own and name not in NETWORKS:
        names = ", ".join(NETWORKS)
        raise ModelError(f"unknown model {name!r}: expected one of {names}, or package.module:callable")
    refused = ("classes", "norm") if own else ("tokens",) if name in ANY_SHAPE else ("input_shape", "tokens")
    for option in refused:
        value = options.get(option)
        if value is not None and value is not False:
            key = KEYS.get(option, option)
            raise ModelError(f"model {name!r} takes no {key}, got {key} = {value!r}: leave it out")
    if own:
        return _own_network(name, options)
    samples, shape = options.get("samples"), options.get("input_shape")
    if shape is None and samples is not None and name in ANY_SHAPE:
        shape = tuple(samples.shape[1:])
    wanted = {"classes": options.get("classes"), "norm": options.get("norm"), "input_shape": shape}
    model = NETWORKS[name](**{option: value for option, value in wanted.items() if value is not None})
    return model, model.example_input


def _own_network(name: str, options: Options) -> tuple[nn.Module, Tensor]:
    """The model of a user's callable, with an example input from the callable, the options or the data."""
    shape, tokens, samples = options.get("input_shape"), options.get("tokens"), options.get("samples")
    match _returned_by(name, options.get("folder")):
        case LayeredModel() | (nn.Module(), Tensor()) if shape is not None or tokens:
            raise ModelError(
                f"model {name!r} brings its own example input: leave out --input and --tokens, or "
                "model.input and model.tokens in a scenario"
            )
        case LayeredModel() as model:
            return model, model.example_input
        case (nn.Module() as module, Tensor() as example_input):
            return module, example_input
        case nn.Module() as module if shape is not None:
            dtype = torch.int64 if tokens else torch.float32 if samples is None else samples.dtype
            return module, torch.empty(1, *shape, dtype=dtype, device="meta")
        case nn.Module() as module if samples is not None:
            return module, torch.empty_like(samples, device="meta")
        case nn.Module():
            raise ModelError(
                f"model {name!r} returns a plain module: give the shape of one sample, as --input 3x32x32, "
                "or --input 64 --tokens if a sample is 64 tokens (model.input and model.tokens in a scenario)"
            )
        case other:
            raise ModelError(
                f"model {name!r} must return a module, a LayeredModel or a pair (module, example input), "
                f"got {type(other).__name__}"
            )


def _returned_by(name: str, folder: Path | None) -> object:
    """The result of calling `package.module:callable`, or the object itself if it is a torch module."""
    target = find(name, "model", folder)
    if isinstance(target, nn.Module):
        return target
    if not callable(target):
        raise ModelError(
            f"model {name!r} must be a callable that returns a module, got {type(target).__name__}"
        )
    return call(target, name, "model", folder)
