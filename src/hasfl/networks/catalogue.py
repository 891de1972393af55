"""Models by name: the three models of hasfl, or `package.module:callable` for a user's own model."""

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
ANY_SHAPE = {"small-cnn"}  # models of hasfl that take samples of any shape


def network(
    name: str,
    *,
    classes: int | None = None,
    norm: Norm | None = None,
    input_shape: tuple[int, ...] | None = None,
) -> LayeredModel:
    """Build the model called `name`.

    `classes` and `norm` apply to hasfl's own models only; None is the model's default. `input_shape`, the
    shape of one sample, applies to small-cnn and to a callable that returns a plain module.
    """
    if ":" in name:
        _refuse_options(name, classes=classes, norm=norm)
        return _as_layered(name, _returned_by(name), input_shape)
    if name not in NETWORKS:
        names = ", ".join(NETWORKS)
        raise ModelError(f"unknown model {name!r}: expected one of {names}, or package.module:callable")
    if name not in ANY_SHAPE:
        _refuse_options(name, input=input_shape)
    options = {"classes": classes, "norm": norm, "input_shape": input_shape}
    return NETWORKS[name](**{option: value for option, value in options.items() if value is not None})


def _refuse_options(name: str, **options: object) -> None:
    """Raise ModelError if one of these options is set: the model called `name` has none of them."""
    for option, value in options.items():
        if value is not None:
            raise ModelError(f"model {name!r} takes no {option}, got {option} = {value!r}: leave it out")


def _returned_by(name: str) -> object:
    """The result of calling `package.module:callable`. If the name is that of a torch module, the module."""
    target = find(name, "model")
    if isinstance(target, nn.Module):
        return target
    if not callable(target):
        raise ModelError(
            f"model {name!r} must be a callable that returns a module, got {type(target).__name__}"
        )
    return call(target, name, "model")


def _as_layered(name: str, model: object, input_shape: tuple[int, ...] | None) -> LayeredModel:
    """Convert the result of a user's callable to a layered model."""
    match model:
        case LayeredModel() | (nn.Module(), Tensor()) if input_shape is not None:
            raise ModelError(f"model {name!r} brings its own example input: leave out --input")
        case LayeredModel():
            return model
        case (nn.Module() as module, Tensor() as example_input):
            return layered(module, example_input)
        case nn.Module() if input_shape is not None:
            return layered(model, torch.empty(1, *input_shape, device="meta"))
        case nn.Module():
            raise ModelError(
                f"model {name!r} returns a plain module: give the shape of one sample, e.g. --input 3x32x32"
            )
        case _:
            raise ModelError(
                f"model {name!r} must return a module, a LayeredModel or a pair (module, example input), "
                f"got {type(model).__name__}"
            )
