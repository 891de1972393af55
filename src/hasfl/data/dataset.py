"""Data sets: samples and labels for training and for testing, as checked tensors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
import torch.utils.data
from numpy.typing import NDArray
from torch import Tensor

from hasfl.arrays import IntN
from hasfl.data import labels
from hasfl.data.images import as_images, normalised_alike
from hasfl.data.torch_datasets import inputs_and_labels
from hasfl.errors import InputError

Given = Tensor | NDArray[Any] | Sequence[Any]  # samples or labels from a caller

SAMPLE_TYPES = (torch.float32, torch.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset:
    """A training set and a test set whose samples have the same shape.

    Labels are classes, numbered from 0, in int64: one for each sample, of shape (n,), or one for each token,
    of shape (n, T), where -100 marks a token that does not count. Or they are numbers to come close to, in
    float32, of shape (n,) or (n, k).
    """

    name: str
    x_train: Tensor  # samples of shape (n, *sample_shape); float32, or int64 for tokens
    y_train: Tensor  # labels
    x_test: Tensor
    y_test: Tensor
    class_names: tuple[str, ...] = ()  # by default "0", "1", …; none where labels are numbers
    shares: Mapping[str, IntN] | None = None  # by device, its training samples; None: to be dealt out

    def __post_init__(self) -> None:
        for split, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            _check_samples(f"x_{split}", x)
            labels.check_labels(split, y, len(x))
        _check_alike(self.x_train, self.x_test)
        labels.check_alike(self.y_train, self.y_test)
        object.__setattr__(self, "class_names", self._named_classes())

    def _named_classes(self) -> tuple[str, ...]:
        """The names of all classes; refuses names that do not suit the labels."""
        given = tuple(map(str, self.class_names))
        if labels.are_numbers(self.y_train):
            if given:
                raise InputError(
                    f"class_names belong to classes, but the labels are numbers, got {given[0]!r}"
                )
            return ()
        highest = int(max(self.y_train.max(), self.y_test.max()))
        if given and highest >= len(given):
            raise InputError(
                f"labels must run from 0 to {len(given) - 1} for {len(given)} class names, got {highest}"
            )
        return given or tuple(map(str, range(highest + 1)))

    @classmethod
    def of_arrays(
        cls,
        name: str,
        x_train: Given,
        y_train: Given,
        x_test: Given,
        y_test: Given,
        class_names: Sequence[str] = (),
    ) -> Self:
        """Create a data set from NumPy arrays, tensors or lists.

        Samples of uint8 are images in the order NHWC or NHW. They are converted to NCHW, and each channel is
        normalised by its mean and its standard deviation in the training set. Samples of floating type are
        used unchanged, as float32. Samples of other whole numbers are tokens, as int64.

        Labels of whole numbers are classes, as int64; of shape (n, 1), they are taken as (n,). Labels of type
        bool are the classes 0 and 1. Labels of floating type are numbers, as float32.
        """
        train, test = _as_tensor("x_train", x_train), _as_tensor("x_test", x_test)
        _check_alike(train, test)
        if train.dtype == torch.uint8:
            train, test = normalised_alike(as_images("x_train", train), as_images("x_test", test))
        return cls(
            name=name,
            x_train=train,
            y_train=_as_labels("y_train", y_train),
            x_test=test,
            y_test=_as_labels("y_test", y_test),
            class_names=tuple(class_names),
        )

    @classmethod
    def of_torch(
        cls,
        name: str,
        train: "torch.utils.data.Dataset[Any]",
        test: "torch.utils.data.Dataset[Any]",
        class_names: Sequence[str] = (),
    ) -> Self:
        """Create a data set from two of torch's map-style datasets of pairs (input, label).

        Each sample is read once, so random transforms are drawn once. Inputs and labels are treated as those
        of `of_arrays`.
        """
        pairs = (*inputs_and_labels("train", train), *inputs_and_labels("test", test))
        return cls.of_arrays(name, *pairs, class_names)

    @property
    def classes(self) -> int:
        """The number of classes; 0 where labels are numbers."""
        return len(self.class_names)

    @property
    def one_class_each(self) -> bool:
        """Whether each sample has one class."""
        return labels.one_class_each(self.y_train)

    @property
    def outputs(self) -> int:
        """How many numbers a model must give at least: one for each class, or as many as a label has."""
        return self.classes or math.prod(self.y_train.shape[1:])

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x_train.shape[1:])


def _check_samples(field: str, x: Tensor) -> None:
    if x.dtype not in SAMPLE_TYPES:
        raise InputError(f"{field} must be float32 or int64, got {x.dtype}: use Dataset.of_arrays")
    if x.ndim == 0 or x.numel() == 0:
        raise InputError(f"{field} must hold at least one sample, got shape {tuple(x.shape)}")
    if x.dtype == torch.float32 and not all(bound.isfinite() for bound in x.aminmax()):
        raise InputError(f"{field} must be finite, got an infinity or a NaN: clean the samples first")


def _check_alike(x_train: Tensor, x_test: Tensor) -> None:
    if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
        raise InputError(
            f"x_train and x_test must hold samples of one shape and type, got {tuple(x_train.shape[1:])} of "
            f"{x_train.dtype} and {tuple(x_test.shape[1:])} of {x_test.dtype}"
        )


def _as_tensor(field: str, numbers: Given) -> Tensor:
    """The numbers as a tensor of uint8, float32 or int64, which shares memory with `numbers` if possible."""
    x = numbers.detach().cpu() if isinstance(numbers, Tensor) else _shared(_as_array(field, numbers))
    if x.dtype == torch.bool or x.is_complex():
        raise InputError(f"{field} must hold numbers, got {x.dtype}: convert it to float32 or int64")
    if x.dtype == torch.uint8:
        return x
    return x.to(torch.float32 if x.is_floating_point() else torch.int64)


def _as_array(field: str, numbers: NDArray[Any] | Sequence[Any]) -> NDArray[Any]:
    array = _array(field, numbers)
    if array.dtype.kind not in "fiu":
        raise InputError(f"{field} must hold numbers, got {array.dtype}: convert it to float32 or int64")
    if array.dtype == np.uint8:
        return array
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int64, copy=False)


def _array(field: str, numbers: NDArray[Any] | Sequence[Any]) -> NDArray[Any]:
    try:
        return np.asarray(numbers)
    except ValueError:
        raise InputError(f"{field} must be an array, got rows of unequal lengths") from None


def _shared(array: NDArray[Any]) -> Tensor:
    """The array as a tensor; torch cannot share the memory of read-only or reversed arrays."""
    torch_can_share = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    return torch.from_numpy(array if torch_can_share else array.copy())


def _as_labels(field: str, numbers: Given) -> Tensor:
    """Classes as int64, or numbers as float32; classes may come as bytes, as truth values or in a column."""
    values = numbers if isinstance(numbers, Tensor) else _array(field, numbers)
    if values.dtype in (torch.bool, np.bool_):
        values = values * 1  # 0 and 1, as int64
    given = _as_tensor(field, values)
    if labels.are_numbers(given):
        return given
    classes = given.to(torch.int64)
    return classes[:, 0] if classes.shape[1:] == (1,) else classes
