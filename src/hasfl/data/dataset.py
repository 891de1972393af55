"""Data sets: samples and labels for training and for testing, as checked tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hasfl.data.images import as_images, normalised_alike
from hasfl.errors import InputError

Given = Tensor | NDArray[Any] | Sequence[Any]  # samples or labels from a caller

# Labels from here on are refused. Chosen by hand: every label up to the highest gets a class name, so a wrong
# label must not create millions of names.
MOST_CLASSES = 1_000_000
SAMPLE_TYPES = (torch.float32, torch.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset:
    """A training set and a test set whose samples have the same shape."""

    name: str
    x_train: Tensor  # samples of shape (n, *sample_shape); float32, or int64 for tokens
    y_train: Tensor  # labels from 0, of shape (n,); int64
    x_test: Tensor
    y_test: Tensor
    class_names: tuple[str, ...] = ()  # by default "0", "1", …

    def __post_init__(self) -> None:
        for split, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            _check_samples(f"x_{split}", x)
            _check_labels(split, x, y)
        _check_alike(self.x_train, self.x_test)
        highest = int(max(self.y_train.max(), self.y_test.max()))
        names = tuple(map(str, self.class_names)) or tuple(map(str, range(highest + 1)))
        if highest >= len(names):
            raise InputError(
                f"labels must run from 0 to {len(names) - 1} for {len(names)} class names, got {highest}"
            )
        object.__setattr__(self, "class_names", names)

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

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

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


def _check_labels(split: str, x: Tensor, y: Tensor) -> None:
    if y.dtype != torch.int64 or y.ndim != 1:
        raise InputError(
            f"y_{split} must hold one whole number per sample, got {y.dtype} of shape {tuple(y.shape)}"
        )
    if len(x) != len(y):
        raise InputError(f"x_{split} has {len(x)} samples but y_{split} has {len(y)}: give one label each")
    if y.min() < 0 or y.max() >= MOST_CLASSES:
        wrong = int(y.min()) if y.min() < 0 else int(y.max())
        raise InputError(f"y_{split} must number the classes from 0, got a label {wrong}")


def _check_alike(x_train: Tensor, x_test: Tensor) -> None:
    if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
        raise InputError(
            f"x_train and x_test must hold samples of one shape and type, got {tuple(x_train.shape[1:])} of "
            f"{x_train.dtype} and {tuple(x_test.shape[1:])} of {x_test.dtype}"
        )


def _as_tensor(field: str, numbers: Given) -> Tensor:
    """The numbers as a tensor of uint8, float32 or int64, which shares memory with `numbers` if possible."""
    x = numbers.detach() if isinstance(numbers, Tensor) else _shared(_as_array(field, numbers))
    if x.dtype == torch.bool or x.is_complex():
        raise InputError(f"{field} must hold numbers, got {x.dtype}: convert it to float32 or int64")
    if x.dtype == torch.uint8:
        return x
    return x.to(torch.float32 if x.is_floating_point() else torch.int64)


def _as_array(field: str, numbers: NDArray[Any] | Sequence[Any]) -> NDArray[Any]:
    try:
        array = np.asarray(numbers)
    except ValueError:
        raise InputError(f"{field} must be an array, got rows of unequal lengths") from None
    if array.dtype.kind not in "fiu":
        raise InputError(f"{field} must hold numbers, got {array.dtype}: convert it to float32 or int64")
    if array.dtype == np.uint8:
        return array
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int64, copy=False)


def _shared(array: NDArray[Any]) -> Tensor:
    """The array as a tensor; torch cannot share the memory of read-only or reversed arrays."""
    torch_can_share = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    return torch.from_numpy(array if torch_can_share else array.copy())


def _as_labels(field: str, numbers: Given) -> Tensor:
    labels = _as_tensor(field, numbers)
    if labels.is_floating_point():
        raise InputError(f"{field} must hold whole numbers, got {labels.dtype}: number the classes from 0")
    return labels.to(torch.int64)
