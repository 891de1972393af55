"""Read CIFAR-10 and CIFAR-100 in their Python version, which consists of pickle files.

A pickle file can run any code when it is loaded. This reader accepts plain data only.
"""

import _codecs
import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasfl.data.dataset import Dataset
from hasfl.data.files.published import Download, Published, broken_file, read_bytes
from hasfl.errors import InputError

AUTHORS = "https://www.cs.toronto.edu/~kriz"
SHAPE = (3, 32, 32)  # channels, height and width of an image
VALUES = math.prod(SHAPE)
TRAINING_FILES = 5  # of CIFAR-10
TRAIN10 = tuple(f"cifar-10-batches-py/data_batch_{k}" for k in range(1, TRAINING_FILES + 1))
TEST10, META10 = "cifar-10-batches-py/test_batch", "cifar-10-batches-py/batches.meta"
TRAIN100, TEST100, META100 = (f"cifar-100-python/{file}" for file in ("train", "test", "meta"))
UINT8 = "u1"  # NumPy's code for unsigned bytes
SHOWN = 20  # characters of a wrong type code that a message shows; chosen by hand


def read_cifar10(folder: Path) -> Dataset:
    """Read CIFAR-10: 50,000 training and 10,000 test images, 3 x 32 x 32, of 10 classes."""
    batches = [_read_batch(folder, file, "labels") for file in TRAIN10]
    images, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    names = _read_names(folder, META10, "label_names")
    return Dataset.of_arrays("cifar10", images, labels, *_read_batch(folder, TEST10, "labels"), names)


def read_cifar100(folder: Path) -> Dataset:
    """Read CIFAR-100 with its fine labels: 50,000 training and 10,000 test images of 100 classes."""
    train = _read_batch(folder, TRAIN100, "fine_labels")
    test = _read_batch(folder, TEST100, "fine_labels")
    return Dataset.of_arrays("cifar100", *train, *test, _read_names(folder, META100, "fine_label_names"))


def _read_batch(folder: Path, file: str, label_field: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """The images of a file, in the order NHWC, and their labels."""
    path, content = _read_pickle(folder, file)
    pixels, labels = content.get("data"), content.get(label_field)
    if not isinstance(pixels, _PickledArray) or not isinstance(labels, list):
        raise broken_file(path, f"holds no array data or no list {label_field}")
    images = pixels.values
    if images.shape != (len(labels), VALUES) or not all(type(label) is int for label in labels):
        raise broken_file(path, f"does not hold {VALUES} bytes and a label for every image")
    return images.reshape(-1, *SHAPE).transpose(0, 2, 3, 1), np.array(labels)  # NCHW to NHWC


def _read_names(folder: Path, file: str, field: str) -> tuple[str, ...]:
    path, content = _read_pickle(folder, file)
    names = content.get(field)
    if not isinstance(names, list) or not names:
        raise broken_file(path, f"holds no list {field}")
    return tuple(_text(name) for name in names)


def _read_pickle(folder: Path, file: str) -> tuple[Path, dict[str, object]]:
    path, data = read_bytes(folder, file)
    try:
        content = _PlainDataUnpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # a broken pickle may fail in any way
        raise broken_file(path, f"cannot be read ({error})") from None
    if not isinstance(content, dict):
        raise broken_file(path, f"holds no dictionary but {type(content).__name__}")
    return path, {_text(key): value for key, value in content.items()}


def _text(name: object) -> str:
    return name.decode("latin1") if isinstance(name, bytes) else str(name)


class _PickledType:
    """Replaces numpy.dtype while unpickling; accepts unsigned bytes only."""

    def __init__(self, code: bytes | str, *_: object) -> None:
        if _text(code) != UINT8:
            raise InputError(f"an array must hold unsigned bytes, got type {_text(code)[:SHOWN]!r}")

    def __setstate__(self, _: object) -> None:
        """Ignore byte order and alignment, which do not matter for bytes."""


class _PickledArray:
    """Replaces numpy.ndarray while unpickling; its state is (version, shape, type, order, bytes)."""

    def __init__(self, *_: object) -> None:
        self.values: NDArray[np.uint8] = np.zeros(0, np.uint8)

    def __setstate__(self, state: tuple[int, tuple[int, ...], _PickledType, bool, bytes]) -> None:
        _, shape, kind, column_major, data = state
        if type(kind) is not _PickledType:
            raise InputError("an array must have a type, got none")
        self.values = np.frombuffer(data, np.uint8).reshape(shape, order="F" if column_major else "C")


class _PlainDataUnpickler(pickle.Unpickler):
    """Builds numbers, strings, lists, dictionaries and arrays of bytes; refuses to call anything else."""

    ALLOWED = {  # noqa: RUF012
        ("numpy", "dtype"): _PickledType,
        ("numpy", "ndarray"): _PickledArray,
        ("numpy.core.multiarray", "_reconstruct"): _PickledArray,
        ("numpy._core.multiarray", "_reconstruct"): _PickledArray,
        ("_codecs", "encode"): _codecs.encode,
    }

    def find_class(self, module_name: str, global_name: str) -> Any:
        """The replacement of a global name; InputError for a name that is not in `ALLOWED`."""
        try:
            return self.ALLOWED[module_name, global_name]
        except KeyError:
            raise InputError(f"it asks for {module_name}.{global_name}, which no data set needs") from None


CIFAR10 = Published(
    name="cifar10",
    files=(*TRAIN10, TEST10, META10),
    downloads=(Download(url=f"{AUTHORS}/cifar-10-python.tar.gz", md5="c58f30108f718f92721af3b95e74349a"),),
    read=read_cifar10,
)
CIFAR100 = Published(
    name="cifar100",
    files=(TRAIN100, TEST100, META100),
    downloads=(Download(url=f"{AUTHORS}/cifar-100-python.tar.gz", md5="eb9058c3a382ffc7106e4002c42a8d85"),),
    read=read_cifar100,
)
