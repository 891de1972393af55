"""Which loss and metric a training uses: those for the kind of labels, or the user's, tried first."""

import math
from collections.abc import Sequence
from textwrap import shorten

import torch
from torch import Tensor

from hasfl.data.dataset import Dataset
from hasfl.data.labels import are_numbers
from hasfl.data.scoring import Score, cross_entropy, right_answers, squared_error
from hasfl.errors import HasflError, InputError
from hasfl.networks import LayeredModel
from hasfl.serving.evaluation import at_rest
from hasfl.settings import Settings

TRIED = 3  # samples on which a loss and a metric are tried; chosen by hand
REASON_LENGTH = 200  # characters of a user's exception that a message shows; chosen by hand
ROUNDING = 1e-3  # relative difference between a sample's score alone and together with others; chosen by hand


def loss_and_metric(
    model: LayeredModel, data: Dataset, settings: Settings, device: str
) -> tuple[Score, Score]:
    """The loss and the metric of a training. The model must be on `device`, and is put into training mode."""
    x, y = data.x_train[:TRIED].to(device), data.y_train[:TRIED].to(device)
    outputs = _outputs(model, x, data)
    numbers = are_numbers(y)
    if numbers and settings.metric is None:
        raise InputError(
            f"the labels of {data.name} are numbers, for which there are no right answers to count: give a "
            "metric, a function that gives each sample a score from 0 to 1, or labels that are whole numbers"
        )
    if settings.loss is None or settings.metric is None:
        (_require_as_many_numbers if numbers else _require_an_output_for_each_class)(outputs, y, data)
    if settings.loss is not None:
        _try_loss(settings.loss, outputs, y)
    if settings.metric is not None:
        _try_metric(settings.metric, outputs, y)
    usual_loss = squared_error if numbers else cross_entropy
    return settings.loss or usual_loss, settings.metric or right_answers


def _outputs(model: LayeredModel, x: Tensor, data: Dataset) -> Tensor:
    try:
        with at_rest(model), torch.no_grad():
            outputs: Tensor = model(x)
    except Exception as error:  # a model may fail on some samples in any way, as on a token that it lacks
        raise InputError(f"the model fails on samples of {data.name}: {_told(error)}") from error
    return outputs


def _require_an_output_for_each_class(outputs: Tensor, y: Tensor, data: Dataset) -> None:
    """Refuse outputs without an axis of classes, which is the last one or, as for images, the first one."""
    own, label = tuple(outputs.shape[1:]), tuple(y.shape[1:])
    given = own[-1:] if own[:-1] == label else own[:1] if own[1:] == label else ()
    if not given or given[0] < data.classes:
        tokens = f" for each of {_in_words(label)} tokens" if label else ""
        raise InputError(
            f"the model must have an output for each of the {data.classes} classes of {data.name}{tokens}, "
            f"but its last layer gives {_in_words(own)}: leave out model.classes, or choose another model"
        )


def _require_as_many_numbers(outputs: Tensor, y: Tensor, data: Dataset) -> None:
    """Refuse outputs whose shape is not that of the labels, but for axes of length 1."""
    own, label = ([side for side in each.shape[1:] if side != 1] for each in (outputs, y))
    if own != label:
        raise InputError(
            f"the model must give as many numbers as a label of {data.name} has, {_in_words(label)}, but its "
            f"last layer gives {_in_words(own)}: choose another model, or a loss of your own"
        )


def _try_loss(loss: Score, outputs: Tensor, y: Tensor) -> None:
    """Refuse a loss that cannot be trained with."""
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
    """Refuse a metric that gives no scores from 0 to 1."""
    values = _scores("metric", metric, outputs, y).detach().double()
    if outputs.isfinite().all() and not ((values >= 0) & (values <= 1)).all():
        raise InputError(f"the metric must give each sample a score from 0 to 1, got {_listed(values)}")


def _scores(what: str, score: Score, outputs: Tensor, y: Tensor) -> Tensor:
    """One number for each sample. It must not depend on which other samples are scored at the same time."""
    values = _called(what, score, outputs, y)
    with torch.no_grad():
        alone = [_called(what, score, outputs[i : i + 1], y[i : i + 1]) for i in range(len(y))]
    if not torch.allclose(values.double(), torch.cat(alone).double(), rtol=ROUNDING, equal_nan=True):
        raise InputError(
            f"the {what} must score each sample by itself, but it gives {_listed(values)} for {len(y)} "
            f"samples together and {_listed(torch.cat(alone))} one by one: do not mix samples"
        )
    return values


def _called(what: str, score: Score, outputs: Tensor, y: Tensor) -> Tensor:
    """The result of a user's function, with one number for each sample."""
    if not callable(score):
        raise InputError(f"{what} must be a function of outputs and labels, got {score!r}")
    try:
        values = score(outputs, y)
    except HasflError:
        raise
    except Exception as error:  # a user's function may fail in any way
        shapes = f"outputs of {tuple(outputs.shape)} and labels of {tuple(y.shape)}"
        raise InputError(f"the {what} fails on {shapes}: {_told(error)}") from error
    if not isinstance(values, Tensor) or values.shape != (len(y),):
        got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise InputError(
            f"the {what} must return a tensor with one number for each sample, of shape ({len(y)},) for "
            f"{len(y)} samples, got {got}: do not average over samples (in torch, reduction='none')"
        )
    return values


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {shorten(str(error), REASON_LENGTH)}"


def _listed(values: Tensor) -> str:
    return ", ".join(f"{value:g}" for value in values.tolist())


def _in_words(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) if math.prod(shape) > 1 else "one number"
