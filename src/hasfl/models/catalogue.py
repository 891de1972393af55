"""Models by name: the three models of hasfl, or `package.module:callable` for a user's own model."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypedDict, Unpack

import torch
from torch import Tensor, nn

from hasfl.callables import call, find
from hasfl.errors import ModelError
from hasfl.models.cutting.chain import layered
from hasfl.models.layered_model import LayeredModel
from hasfl.models.networks import Norm, resnet18, small_cnn, vgg16

NETWORKS: dict[str, Callable[..., LayeredModel]] = {
    "vgg16": vgg16,
    "resnet18": resnet18,
    "small-cnn": small_cnn,
}
ANY_SHAPE = {"small-cnn"}  # models of hasfl that take samples of any shape
KEYS = {"input_shape": "input"}  # how users call an option, where the name here is another


class Options(TypedDict, total=False):
    """What a caller may say about a model besides its name; None or nothing is the model's default."""

    classes: int | None  # outputs of the last layer, for hasfl's own models
    norm: Norm | None  # for hasfl's own models
    input_shape: tuple[int, ...] | None  # of one sample, for small-cnn and a callable that returns a module
    tokens: bool  # whether samples of `input_shape` are whole numbers
    samples: Tensor | None  # a batch of the data; stands in for what neither caller nor callable says
    folder: Path | None  # where a callable is searched first


def network(name: str, **options: Unpack[Options]) -> LayeredModel:
    """Build the model called `name`, as a chain of layers; `Options` lists the keywords."""
    return chained(*plain_network(name, **options))


def chained(module: nn.Module, example_input: Tensor) -> LayeredModel:
    """The module itself if it is a chain of layers already; otherwise the module cut into layers."""
    return module if isinstance(module, LayeredModel) else layered(module, example_input)


def plain_network(name: str, **options: Unpack[Options]) -> tuple[nn.Module, Tensor]:
    """The model called `name` as it is before it is cut, and a batch of the samples that it takes."""
    own = ":" in name
    if not own and name not in NETWORKS:
        names = ", ".join(NETWORKS)
        raise ModelError(f"unknown model {name!r}: expected one of {names}, or package.module:callable")
    refused = ("classes", "norm") if own else ("tokens",) if name in ANY_SHAPE else ("input_shape", "tokens")
    _refuse_options(name, {option: options.get(option) for option in refused})
    if own:
        return _own_network(name, options)
    model = _hasfl_network(name, options)
    return model, model.example_input


def _hasfl_network(name: str, options: Options) -> LayeredModel:
    samples, shape = options.get("samples"), options.get("input_shape")
    if shape is None and samples is not None and name in ANY_SHAPE:
        shape = tuple(samples.shape[1:])
    wanted = {"classes": options.get("classes"), "norm": options.get("norm"), "input_shape": shape}
    return NETWORKS[name](**{option: value for option, value in wanted.items() if value is not None})


def _own_network(name: str, options: Options) -> tuple[nn.Module, Tensor]:
    """The result of a user's callable, with the example input that it brings, or one that suits the data."""
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


def _refuse_options(name: str, options: Mapping[str, object]) -> None:
    """Raise ModelError if one of these options is set: the model called `name` has none of them."""
    for option, value in options.items():
        if value is not None and value is not False:
            key = KEYS.get(option, option)
            raise ModelError(f"model {name!r} takes no {key}, got {key} = {value!r}: leave it out")


def _returned_by(name: str, folder: Path | None) -> object:
    """The result of calling `package.module:callable`. If the name is that of a torch module, the module."""
    target = find(name, "model", folder)
    if isinstance(target, nn.Module):
        return target
    if not callable(target):
        raise ModelError(
            f"model {name!r} must be a callable that returns a module, got {type(target).__name__}"
        )
    return call(target, name, "model", folder)
