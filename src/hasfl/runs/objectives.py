"""Chooses the loss and the metric of a training, and tries the user's own ones on a few samples first."""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hasfl.callables import own_function
from hasfl.data.dataset import Dataset, are_numbers, are_one_hot
from hasfl.data.scoring import Score, cross_entropy, right_answers, squared_error
from hasfl.errors import HasflError, InputError
from hasfl.learning.served_model import at_rest
from hasfl.models.layered_model import LayeredModel
from hasfl.settings import Settings

TRIED = 3  # number of samples on which a loss and a metric are tried; chosen by hand
REASON_LENGTH = 200  # characters of a user's exception that a message shows; chosen by hand
# The largest relative difference between a sample's score alone and in a batch; chosen by hand.
ROUNDING = 1e-3


def objective(given: Any, what: str, folder: Path | None = None) -> Score | None:
    """The user's loss or metric that a setting gives; None if the setting is None. `what` names the setting.

    A setting gives a function of outputs and labels, a class that makes such a function when it is called
    without arguments, or `package.module:callable`, whose module is searched in `folder` first.
    """
    if given is None:
        return None
    score: Score = own_function(given, what, "outputs and labels", folder)
    return score


def loss_and_metric(
    model: LayeredModel, data: Dataset, settings: Settings, device: str
) -> tuple[Score, Score]:
    """The loss and the metric of a training. The model must be on `device`, and is put into training mode."""
    y = data.y_train[:TRIED].to(device)
    outputs = _outputs(model, _tried_samples(data).to(device), data)[: len(y)]
    numbers = are_numbers(y)
    loss, metric = objective(settings.loss, "loss"), objective(settings.metric, "metric")
    if numbers and metric is None:
        raise InputError(
            f"the labels of {data.name} are numbers, for which there are no right answers to count: give a "
            "metric, a function that gives each sample a score from 0 to 1, or labels that are whole numbers"
        )
    if loss is None or metric is None:
        (_require_as_many_numbers if numbers else _require_an_output_for_each_class)(outputs, y, data)
    if loss is not None:
        _try_loss(loss, outputs, y)
    if metric is not None:
        _try_metric(metric, outputs, y)
    usual_loss = squared_error if numbers else cross_entropy
    return loss or usual_loss, metric or right_answers


def _tried_samples(data: Dataset) -> Tensor:
    """The first training samples. If samples are tokens, also the samples that hold the largest tokens."""
    first = data.x_train[:TRIED]
    if first.is_floating_point():
        return first
    largest = [x[x.reshape(len(x), -1).amax(dim=1).argmax()] for x in (data.x_train, data.x_test)]
    return torch.cat([first, torch.stack(largest)])


def _outputs(model: LayeredModel, x: Tensor, data: Dataset) -> Tensor:
    try:
        with at_rest(model), torch.no_grad(), _embeddings_checked(model, data):
            outputs: Tensor = model(x)
    except HasflError:
        raise
    except Exception as error:  # a model may fail on some samples in any way
        raise InputError(f"the model fails on samples of {data.name}: {_told(error)}") from error
    return outputs


@contextmanager
def _embeddings_checked(model: nn.Module, data: Dataset) -> Iterator[None]:
    """Raise InputError for a token without a row in an embedding, a fault that would break torch on a GPU."""

    def check(embedding: nn.Module, tokens: tuple[Tensor, ...]) -> None:
        assert isinstance(embedding, nn.Embedding)
        rows, smallest, largest = embedding.num_embeddings, int(tokens[0].min()), int(tokens[0].max())
        if smallest < 0 or largest >= rows:
            fault = f"{smallest}, below 0" if smallest < 0 else f"{largest}, too large"
            raise InputError(
                f"a token of {data.name} is {fault} for the model's embedding of {rows} rows: give the "
                "embedding a row for every token, which are numbered from 0"
            )

    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    hooks = [embedding.register_forward_pre_hook(check) for embedding in embeddings]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _axis_of_classes(outputs: Tensor, y: Tensor) -> int | None:
    """The axis of the outputs that runs over classes: the last axis or, as for images, the second axis."""
    own, label = outputs.shape[1:], y.shape[1:]
    if not own:
        return None
    return -1 if own[:-1] == label else 1 if own[1:] == label else None


def _require_an_output_for_each_class(outputs: Tensor, y: Tensor, data: Dataset) -> None:
    """Raise InputError if outputs have no axis of classes, or if that axis is too short."""
    axis = _axis_of_classes(outputs, y)
    if axis is not None and outputs.shape[axis] >= data.classes:
        return
    if are_one_hot(data.y_train):
        raise InputError(
            f"labels of whole numbers must be classes, but those of {data.name} are one-hot rows of shape "
            f"{tuple(data.y_train.shape)}: give each sample its class, as y.argmax(axis=1)"
        )
    tokens = f" for each of {'x'.join(map(str, y.shape[1:]))} tokens" if y.ndim > 1 else ""
    raise InputError(
        f"the model must have an output for each of the {data.classes} classes of {data.name}{tokens}, "
        f"but its last layer gives {_in_words(outputs.shape[1:])}: choose another model"
    )


def _require_as_many_numbers(outputs: Tensor, y: Tensor, data: Dataset) -> None:
    """Raise InputError if outputs and labels differ in shape; axes of length 1 do not count."""
    own, label = ([side for side in each.shape[1:] if side != 1] for each in (outputs, y))
    if own != label:
        raise InputError(
            f"the model must give as many numbers as a label of {data.name} has, {_in_words(label)}, but its "
            f"last layer gives {_in_words(own)}: choose another model, or a loss of your own"
        )


def _try_loss(loss: Score, outputs: Tensor, y: Tensor) -> None:
    """Raise InputError if a loss has the wrong type, no gradient, or infinite values."""
    leaf = outputs.detach().requires_grad_()
    values = _scores("loss", loss, leaf, y)
    if values.dtype != outputs.dtype:
        raise InputError(f"the loss must have the type of the outputs, {outputs.dtype}, got {values.dtype}")
    gradient = torch.autograd.grad(values.sum(), leaf, allow_unused=True)[0] if values.requires_grad else None
    if gradient is None:
        raise InputError(
            "the loss must be differentiable, but it has no gradient with respect to the outputs: compute it "
            "with torch, without detach, item, numpy or argmax"
        )
    if outputs.isfinite().all() and not (values.isfinite().all() and gradient.isfinite().all()):
        raise InputError(
            f"the loss and its gradient must be finite, got {_listed(values)} with a gradient up to "
            f"{float(gradient.abs().max()):g} on {len(y)} samples: correct the loss"
        )


def _try_metric(metric: Score, outputs: Tensor, y: Tensor) -> None:
    """Raise InputError if a metric gives scores outside 0 to 1, for the model's outputs or for right ones."""
    for tried, whose in ((outputs, ""), (_right_outputs(outputs, y), " for right outputs")):
        if tried is None:
            continue
        values = _scores("metric", metric, tried, y).detach().double()
        if tried.isfinite().all() and not ((values >= 0) & (values <= 1)).all():
            raise InputError(
                f"the metric must give each sample a score from 0 to 1, got {_listed(values)}{whose}"
            )


def _right_outputs(outputs: Tensor, y: Tensor) -> Tensor | None:
    """Outputs that are right for every label, in the shape of the model's outputs; None if unknown."""
    if are_numbers(y):
        return y.reshape(outputs.shape).to(outputs.dtype) if y.numel() == outputs.numel() else None
    axis = _axis_of_classes(outputs, y)
    if axis is None or int(y.max()) >= outputs.shape[axis]:
        return None
    answers = F.one_hot(y.clamp(min=0), outputs.shape[axis])  # a negative label counts for nothing
    return answers.movedim(-1, axis).to(outputs.dtype)


def _scores(what: str, score: Score, outputs: Tensor, y: Tensor) -> Tensor:
    """The scores of samples. Raise InputError if a score depends on the other samples of the batch."""
    values = _called(what, score, outputs, y)
    with torch.no_grad():
        alone = [_called(what, score, outputs[i : i + 1], y[i : i + 1]) for i in range(len(y))]
    if not torch.allclose(values.double(), torch.cat(alone).double(), rtol=ROUNDING, equal_nan=True):
        raise InputError(
            f"the {what} must score each sample by itself, but it gives {_listed(values)} for {len(y)} "
            f"samples together and {_listed(torch.cat(alone))} one by one: "
            + (_against_broadcasting(outputs, y) or "do not mix samples")
        )
    return values


def _called(what: str, score: Score, outputs: Tensor, y: Tensor) -> Tensor:
    """Call a user's loss or metric. Raise InputError unless it returns one number for each sample."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Using a target size")  # `_against_broadcasting` says it
            values = score(outputs, y)
    except HasflError:
        raise
    except Exception as error:  # a user's function may fail in any way
        shapes = f"outputs of {tuple(outputs.shape)} and labels of {tuple(y.shape)}"
        raise InputError(f"the {what} fails on {shapes}: {_told(error)}") from error
    if not isinstance(values, Tensor) or values.shape != (len(y),):
        got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        broadcast = _against_broadcasting(outputs, y) if isinstance(values, Tensor) and values.ndim else None
        raise InputError(
            f"the {what} must return a tensor with one number for each sample, of shape ({len(y)},) for "
            f"{len(y)} samples, got {got}: "
            + (broadcast or "do not average over samples (in torch, reduction='none')")
        )
    return values


def _against_broadcasting(outputs: Tensor, y: Tensor) -> str | None:
    """Advice if outputs and labels have equally many numbers in two shapes, which torch would broadcast."""
    if outputs.shape == y.shape or outputs.numel() != y.numel():
        return None
    return (
        f"torch combines every output with every label where outputs have shape {tuple(outputs.shape)} and "
        f"labels {tuple(y.shape)}; begin with outputs = outputs.reshape(labels.shape)"
    )


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {shorten(str(error), REASON_LENGTH)}"


def _listed(values: Tensor) -> str:
    return ", ".join(f"{value:g}" for value in values.tolist())


def _in_words(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) if math.prod(shape) > 1 else "one number"
