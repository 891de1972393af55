"""Read torch's map-style datasets into arrays."""

from collections.abc import Sized
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from hasfl.errors import HasflError, InputError

Values = Tensor | NDArray[Any]
PAIR = 2  # an input and a label


def inputs_and_labels(split: str, dataset: "Dataset[Any]") -> tuple[Values, Values]:
    """All inputs and all labels of a dataset; `split` names it in messages."""
    if isinstance(dataset, TensorDataset):
        if len(dataset.tensors) != PAIR:
            raise InputError(
                f"{split} must hold two tensors, inputs and labels, got {len(dataset.tensors)}: give two"
            )
        return dataset.tensors[0], dataset.tensors[1]
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        raise InputError(
            f"{split} must be a map-style dataset, with a length and numbered samples, got "
            f"{type(dataset).__name__}: read it into tensors and use TensorDataset"
        )
    pairs = [_pair(split, dataset, number) for number in range(len(dataset))]
    if not pairs:
        raise InputError(f"{split} must hold at least one sample, got an empty dataset")
    return _stacked(split, "inputs", [x for x, _ in pairs]), _stacked(split, "labels", [y for _, y in pairs])


def _pair(split: str, dataset: "Dataset[Any]", number: int) -> tuple[Any, Any]:
    """One sample and its label."""
    try:
        sample = dataset[number]
    except HasflError:
        raise
    except Exception as error:  # a user's dataset may fail in any way
        raise InputError(
            f"sample {number} of {split} cannot be read: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(sample, tuple | list) or len(sample) != PAIR:
        size = f" of {len(sample)}" if isinstance(sample, tuple | list) else ""
        raise InputError(
            f"sample {number} of {split} must be a pair (input, label), got a {type(sample).__name__}{size}: "
            "wrap the dataset so that it returns pairs"
        )
    return sample[0], sample[1]


def _stacked(split: str, what: str, values: list[Any]) -> Values:
    """The values of all samples in one array with one more axis."""
    if all(isinstance(value, Tensor) for value in values):
        arrays: list[Any] = values
    else:
        arrays = [_array(split, what, number, value) for number, value in enumerate(values)]
    first = arrays[0]
    for number, array in enumerate(arrays):
        if array.shape != first.shape or array.dtype != first.dtype:
            raise InputError(
                f"the {what} of {split} must all have one shape and type, got {_in_words(first)} and, in "
                f"sample {number}, {_in_words(array)}: pad, crop or convert them"
            )
    return torch.stack(arrays) if isinstance(first, Tensor) else np.stack(arrays)


def _array(split: str, what: str, number: int, value: Any) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except Exception as error:  # rows of unequal lengths, tensors on a GPU among other values
        raise InputError(
            f"the {what} of {split} cannot be made an array, in sample {number}: {error}"
        ) from error


def _in_words(array: Values) -> str:
    return f"{tuple(array.shape)} of {array.dtype}"
