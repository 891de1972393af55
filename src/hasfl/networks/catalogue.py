"""Models by name: the three that come with hasfl, or `package.module:callable` for your own."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from hasfl.callables import call, find
from hasfl.errors import ModelError
from hasfl.networks.chain import layered
from hasfl.networks.layered_model import LayeredModel
from hasfl.networks.norms import Norm
from hasfl.networks.resnet import resnet18
from hasfl.networks.small_cnn import small_cnn
from hasfl.networks.vgg import vgg16

NETWORKS: dict[str, Callable[..., LayeredModel]] = {
    "vgg16": vgg16,
    "resnet18": resnet18,
    "small-cnn": small_cnn,
}
ANY_SHAPE = {"small-cnn"}


def network(
    name: str,
    *,
    classes: int | None = None,
    norm: Norm | None = None,
    input_shape: tuple[int, ...] | None = None,
) -> LayeredModel:
    """Build the model called `name`.

    The classes and the norm are for hasfl's own models; their defaults are the model's. The shape of
    one sample is for small-cnn and for a callable that returns a plain module.
    """
    if ":" in name:
        _refuse(name, classes=classes, norm=norm)
        return _as_layered(name, _made_by(name), input_shape)
    if name not in NETWORKS:
        known = ", ".join(NETWORKS)
        raise ModelError(f"unknown model {name!r}: expected one of {known}, or package.module:callable")
    if name not in ANY_SHAPE:
        _refuse(name, input=input_shape)
    given = {"classes": classes, "norm": norm, "input_shape": input_shape}
    return NETWORKS[name](**{option: value for option, value in given.items() if value is not None})


def _refuse(name: str, **options: object) -> None:
    """Refuse options that this model could only ignore."""
    for option, value in options.items():
        if value is not None:
            raise ModelError(f"model {name!r} takes no {option}, got {option} = {value!r}: leave it out")


def _made_by(name: str) -> object:
    """What `package.module:callable` returns; a module may also be named itself."""
    named = find(name, "model")
    if isinstance(named, nn.Module):
        return named
    if not callable(named):
        raise ModelError(
            f"model {name!r} must be a callable that returns a module, got {type(named).__name__}"
        )
    return call(named, name, "model")


def _as_layered(name: str, made: object, input_shape: tuple[int, ...] | None) -> LayeredModel:
    """Turn what a user's callable returned into a layered model."""
    match made:
        case LayeredModel() | (nn.Module(), Tensor()) if input_shape is not None:
            raise ModelError(f"model {name!r} brings its own example input: leave out --input")
        case LayeredModel():
            return made
        case (nn.Module() as module, Tensor() as example_input):
            return layered(module, example_input)
        case nn.Module() if input_shape is not None:
            return layered(made, torch.empty(1, *input_shape, device="meta"))
        case nn.Module():
            raise ModelError(
                f"model {name!r} returns a plain module: give the shape of one sample, e.g. --input 3x32x32"
            )
        case _:
            raise ModelError(
                f"model {name!r} must return a module, a LayeredModel or a pair (module, example input), "
                f"got {type(made).__name__}"
            )
