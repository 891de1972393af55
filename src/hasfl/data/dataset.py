"""Data sets: samples and labels for training and for testing, as checked tensors.

Data sets are made from arrays, from images of bytes, and from torch's map-style datasets.
"""

import math
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
import torch.utils.data
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset

from hasfl.arrays import IntN
from hasfl.errors import HasflError, InputError

Given = Tensor | NDArray[Any] | Sequence[Any]  # samples or labels from a caller

SAMPLE_TYPES = (torch.float32, torch.int64)  # dtypes of samples: int64 for tokens
# Bits of one number of a raw sample: a pixel before it became a float, a token before it became an int64.
# Chosen by hand: a pixel is a byte, and a token two bytes.
PIXEL_BITS, TOKEN_BITS = 8.0, 16.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset:
    """A training set and a test set whose samples have the same shape.

    Labels are classes, numbered from 0, in int64: one for each sample, of shape (n,), or one for each token,
    of shape (n, T), where -100 marks a token that does not count. Or they are numbers to come close to, in
    float32, of shape (n,) or (n, k).
    """

    name: str
    x_train: Tensor  # samples of shape (n, *sample_shape); float32, or int64 for tokens
    y_train: Tensor  # labels of the training samples
    x_test: Tensor
    y_test: Tensor
    class_names: tuple[str, ...] = ()  # by default "0", "1", …; always empty if labels are numbers
    shares: Mapping[str, IntN] | None = None  # indices of each device's samples, by name; None: not dealt out

    def __post_init__(self) -> None:
        for split, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            _check_samples(f"x_{split}", x)
            _check_labels(split, y, len(x))
        _check_alike("x", "samples", self.x_train, self.x_test)
        _check_alike("y", "labels", self.y_train, self.y_test)
        object.__setattr__(self, "class_names", self._named_classes())

    def _named_classes(self) -> tuple[str, ...]:
        """The names of all classes; refuses names that do not fit the labels."""
        given = tuple(map(str, self.class_names))
        if are_numbers(self.y_train):
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
        _check_alike("x", "samples", train, test)
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
        """The number of classes; 0 if labels are numbers."""
        return len(self.class_names)

    @property
    def one_class_each(self) -> bool:
        """Whether each sample has one class."""
        return one_class_each(self.y_train)

    @property
    def outputs(self) -> int:
        """The least number of outputs of a model: one for each class, or one for each number of a label."""
        return self.classes or math.prod(self.y_train.shape[1:])

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x_train.shape[1:])


def raw_bits(shape: Sequence[int], dtype: torch.dtype) -> float:
    """The bits of one raw sample of this shape, as a device would send it in centralised training."""
    return (PIXEL_BITS if dtype.is_floating_point else TOKEN_BITS) * math.prod(shape)


def _check_samples(field: str, x: Tensor) -> None:
    if x.dtype not in SAMPLE_TYPES:
        raise InputError(f"{field} must be float32 or int64, got {x.dtype}: use Dataset.of_arrays")
    if x.ndim == 0 or x.numel() == 0:
        raise InputError(f"{field} must hold at least one sample, got shape {tuple(x.shape)}")
    if x.dtype == torch.float32 and not all(bound.isfinite() for bound in x.aminmax()):
        raise InputError(f"{field} must be finite, got an infinity or a NaN: clean the samples first")


def _check_alike(letter: str, noun: str, train: Tensor, test: Tensor) -> None:
    """Refuse a training set and a test set with samples, or labels, of two shapes or types."""
    if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
        raise InputError(
            f"{letter}_train and {letter}_test must hold {noun} of one shape and type, got "
            f"{tuple(train.shape[1:])} of {train.dtype} and {tuple(test.shape[1:])} of {test.dtype}"
        )


def _as_tensor(field: str, numbers: Given) -> Tensor:
    """Convert numbers to a tensor of uint8, float32 or int64, which shares memory with them if possible."""
    if isinstance(numbers, Tensor):
        x = numbers.detach().cpu()
        if x.dtype == torch.bool or x.is_complex():
            raise _no_numbers(field, x)
    else:
        array = _as_array(field, numbers)
        if array.dtype.kind not in "fiu":
            raise _no_numbers(field, array)
        if array.dtype != np.uint8:
            array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64, copy=False)
        # torch cannot share the memory of read-only or reversed arrays
        torch_can_share = array.flags.writeable and all(stride >= 0 for stride in array.strides)
        x = torch.from_numpy(array if torch_can_share else array.copy())
    if x.dtype == torch.uint8:
        return x
    return x.to(torch.float32 if x.is_floating_point() else torch.int64)


def _no_numbers(field: str, values: Tensor | NDArray[Any]) -> InputError:
    return InputError(f"{field} must hold numbers, got {values.dtype}: convert it to float32 or int64")


def _as_array(field: str, numbers: NDArray[Any] | Sequence[Any]) -> NDArray[Any]:
    try:
        return np.asarray(numbers)
    except ValueError:
        raise InputError(f"{field} must be an array, got rows of unequal lengths") from None


def _as_labels(field: str, numbers: Given) -> Tensor:
    """Convert labels to classes (int64; given as whole numbers, truth values or a column) or numbers."""
    values = numbers if isinstance(numbers, Tensor) else _as_array(field, numbers)
    if values.dtype in (torch.bool, np.bool_):
        values = values * 1  # 0 and 1, as int64
    given = _as_tensor(field, values)
    if are_numbers(given):
        return given
    classes = given.to(torch.int64)
    return classes[:, 0] if classes.shape[1:] == (1,) else classes


# ── labels ───────────────────────────────────────────────────────────────────────────────────────────────


IGNORED = -100  # the label of a token that counts neither in the loss nor in the metric, as in torch
# Labels from here on are refused. Chosen by hand: every label up to the highest gets a class name, so a wrong
# label must not create millions of names.
MOST_CLASSES = 1_000_000
ROWS = 2  # number of axes of labels that have a row for each sample


def are_numbers(labels: Tensor) -> bool:
    """Whether labels are numbers to come close to, instead of classes."""
    return labels.is_floating_point()


def one_class_each(labels: Tensor) -> bool:
    """Whether each sample has one class."""
    return not are_numbers(labels) and labels.ndim == 1


def are_one_hot(labels: Tensor) -> bool:
    """Whether each sample has a row of whole numbers, of which one is 1 and all others are 0."""
    if are_numbers(labels) or labels.ndim != ROWS:
        return False
    return bool(((labels == 0) | (labels == 1)).all() and (labels.sum(dim=1) == 1).all())


def _check_labels(split: str, labels: Tensor, samples: int) -> None:
    """Refuse labels that no loss could use; `split` is train or test, and `samples` its number of samples."""
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


# ── images ───────────────────────────────────────────────────────────────────────────────────────────────


# Number of images that are summed in double precision at a time; chosen by hand. 1000 CIFAR images: 25 MB.
BLOCK = 1000
MOST_CHANNELS = 4  # red, green, blue and transparency
AXES_WITHOUT_CHANNELS, AXES_WITH_CHANNELS = 3, 4  # NHW, NHWC
PIXELS = (0, 2, 3)  # the axes of NCHW over which the mean of a channel is taken


def as_images(field: str, x: Tensor) -> Tensor:
    """View images in the order NHW or NHWC as NCHW; refuse images that seem to be in the order NCHW."""
    if x.ndim == AXES_WITHOUT_CHANNELS:
        return x[:, None]  # NHW to NCHW, with one channel
    if x.ndim == AXES_WITH_CHANNELS and not x.shape[1] <= MOST_CHANNELS < x.shape[3]:
        return x.permute(0, 3, 1, 2)  # NHWC to NCHW
    raise InputError(
        f"{field} of uint8 must be images in the order NHW or NHWC, got shape {tuple(x.shape)}: "
        "move the channels last, or convert to float32"
    )


def normalised_alike(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Normalise both sets so that each channel has mean 0 and standard deviation 1 in the training set."""
    if train.numel() == 0:
        raise InputError(f"x_train must hold at least one sample, got shape {tuple(train.shape)}")
    mean, std = channel_statistics(train)
    std = torch.where(std > 0, std, 1.0)  # a constant channel becomes 0, without a division by 0
    return _normalised(train, mean, std), _normalised(test, mean, std)


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation of every channel.

    The sums are whole numbers, which float64 adds exactly up to 2^53. So the order of images does not matter.
    """
    total = torch.zeros(images.shape[1], dtype=torch.float64, device=images.device)
    squares = total.clone()
    for block in images.split(BLOCK):
        values = block.to(torch.float64)
        total += values.sum(PIXELS)
        squares += values.square().sum(PIXELS)
    count = images.numel() // images.shape[1]
    mean = total / count
    return mean, (squares / count - mean.square()).clamp(min=0).sqrt()


def _normalised(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    result = images.to(torch.float32, memory_format=torch.contiguous_format)
    per_channel = (-1, 1, 1)
    return result.sub_(mean.float().view(per_channel)).div_(std.float().view(per_channel))


# ── torch's datasets ─────────────────────────────────────────────────────────────────────────────────────


Values = Tensor | NDArray[Any]
PAIR = 2  # number of parts of a sample: an input and a label


def inputs_and_labels(split: str, dataset: "torch.utils.data.Dataset[Any]") -> tuple[Values, Values]:
    """All inputs and all labels of one of torch's datasets; `split` names the dataset in messages."""
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


def _pair(split: str, dataset: "torch.utils.data.Dataset[Any]", number: int) -> tuple[Any, Any]:
    """Read one sample and its label."""
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
    """Stack the values of all samples in one array with one more axis."""
    arrays = values
    if not all(isinstance(value, Tensor) for value in values):
        arrays = []
        for number, value in enumerate(values):
            try:
                arrays.append(np.asarray(value))
            except Exception as error:  # such as rows of unequal lengths, or tensors on a GPU
                raise InputError(
                    f"the {what} of {split} cannot be made an array, in sample {number}: {error}"
                ) from error
    first = arrays[0]
    for number, array in enumerate(arrays):
        if array.shape != first.shape or array.dtype != first.dtype:
            raise InputError(
                f"the {what} of {split} must all have one shape and type, got {_in_words(first)} and, in "
                f"sample {number}, {_in_words(array)}: pad, crop or convert them"
            )
    return torch.stack(arrays) if isinstance(first, Tensor) else np.stack(arrays)


def _in_words(array: Values) -> str:
    return f"{tuple(array.shape)} of {array.dtype}"
