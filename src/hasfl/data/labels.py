"""What labels may be: one class a sample, a class for each token of a sample, or numbers."""

import torch
from torch import Tensor

from hasfl.errors import InputError

IGNORED = -100  # the label of a token that counts neither in the loss nor in the metric, as in torch
# Labels from here on are refused. Chosen by hand: every label up to the highest gets a class name, so a wrong
# label must not create millions of names.
MOST_CLASSES = 1_000_000
ROWS = 2  # the axes of labels of which each sample has a row


def are_numbers(labels: Tensor) -> bool:
    """Whether labels are numbers to come close to, and not classes."""
    return labels.is_floating_point()


def one_class_each(labels: Tensor) -> bool:
    """Whether each sample has one class."""
    return not are_numbers(labels) and labels.ndim == 1


def are_one_hot(labels: Tensor) -> bool:
    """Whether each sample has a row of whole numbers, of which one is 1 and all others are 0."""
    if are_numbers(labels) or labels.ndim != ROWS:
        return False
    return bool(((labels == 0) | (labels == 1)).all() and (labels.sum(dim=1) == 1).all())


def check_labels(split: str, labels: Tensor, samples: int) -> None:
    """Refuse labels that no loss could work with; `split` is train or test and has so many samples."""
    field = f"y_{split}"
    if labels.dtype not in (torch.int64, torch.float32) or labels.ndim == 0:
        raise InputError(
            f"{field} must hold classes as int64 or numbers as float32, got {labels.dtype} of shape "
            f"{tuple(labels.shape)}: use Dataset.of_arrays"
        )
    if len(labels) != samples:
        raise InputError(
            f"x_{split} has {samples} samples but {field} has {len(labels)}: give one label each"
        )
    if not labels.numel():
        raise InputError(f"{field} must hold a label for each sample, got shape {tuple(labels.shape)}")
    if are_numbers(labels):
        if not labels.isfinite().all():
            raise InputError(f"{field} must be finite, got an infinity or a NaN: clean the labels first")
    else:
        _check_classes(field, labels)


def check_alike(train: Tensor, test: Tensor) -> None:
    """Refuse a training set and a test set with labels of two kinds."""
    if train.dtype != test.dtype or train.shape[1:] != test.shape[1:]:
        raise InputError(
            f"y_train and y_test must hold labels of one shape and type, got {tuple(train.shape[1:])} of "
            f"{train.dtype} and {tuple(test.shape[1:])} of {test.dtype}"
        )


def _check_classes(field: str, labels: Tensor) -> None:
    per_token = labels.ndim > 1
    counted = labels[labels != IGNORED] if per_token else labels
    if counted.numel() and counted.min() < 0:
        ignored = f", and {IGNORED} for tokens that do not count" if per_token else ""
        raise InputError(f"{field} must number the classes from 0{ignored}, got a label {int(counted.min())}")
    if counted.numel() and counted.max() >= MOST_CLASSES:
        raise InputError(
            f"{field} must number the classes 0, 1, 2 and so on, below {MOST_CLASSES}, but a label is too "
            f"large, {int(counted.max())}: number the classes anew"
        )
    if per_token and (labels == IGNORED).flatten(1).all(dim=1).any():
        nothing = int((labels == IGNORED).flatten(1).all(dim=1).nonzero()[0])
        raise InputError(f"{field} ignores every token of sample {nothing}: leave such samples out")
