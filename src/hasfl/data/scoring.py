"""The losses and the metric that training uses unless the user gives others."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from hasfl.data.dataset import IGNORED

Score = Callable[[Tensor, Tensor], Tensor]  # (outputs, labels) → one number for each sample


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """The cross entropy of each sample; with a label for each token, the mean over the tokens that count."""
    return _per_sample(F.cross_entropy(_classes_second(outputs, labels), labels, reduction="none"), labels)


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """The squared error of each sample; if a label has several numbers, the mean over them."""
    errors = outputs.reshape(labels.shape) - labels
    return errors.square().reshape(len(labels), -1).mean(dim=1)


def right_answers(outputs: Tensor, labels: Tensor) -> Tensor:
    """For each sample, 1 if its class has the largest output, else 0; for tokens, the share of right ones."""
    right = _classes_second(outputs, labels).argmax(dim=1) == labels
    return _per_sample(right.to(outputs.dtype), labels)


def _classes_second(outputs: Tensor, labels: Tensor) -> Tensor:
    """The outputs with the axis of classes in second place, where torch's cross entropy expects it.

    If all other axes are those of the labels, the axis of classes is the last one, as in (n, T, classes).
    Otherwise it is the second one already, as in (n, classes, T).
    """
    return outputs.movedim(-1, 1) if outputs.shape[:-1] == labels.shape else outputs


def _per_sample(values: Tensor, labels: Tensor) -> Tensor:
    """The mean of each sample's values over the labels that count; other values must be 0."""
    if labels.ndim == 1:
        return values
    counts = (labels != IGNORED).flatten(1).sum(dim=1)
    return values.flatten(1).sum(dim=1) / counts
