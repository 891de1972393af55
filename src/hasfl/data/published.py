"""Published data sets: find their files in a folder, download missing files, and read them.

Fashion-MNIST comes in the file format IDX. CIFAR-10 and CIFAR-100 come in their Python version, as pickle
files. A pickle file can run any code when it is loaded; the reader accepts plain data only.
"""

import _codecs
import gzip
import importlib
import io
import math
import pickle
import struct
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from hasfl.data.dataset import Dataset
from hasfl.errors import InputError, MissingExtra

# ── files and downloads ──────────────────────────────────────────────────────────────────────────────────


REASON_LENGTH = 120  # characters of a download error that a message shows; chosen by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """One file on the web. A tar archive is unpacked after the download; any other file is kept."""

    url: str
    md5: str
    into: str = "."  # the target folder, relative to the data folder

    @property
    def file_name(self) -> str:
        """The last part of the address."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A data set that consists of `files`, relative to the data folder."""

    name: str
    files: tuple[str, ...]
    downloads: tuple[Download, ...]
    read: Callable[[Path], Dataset]

    def missing(self, folder: Path) -> list[str]:
        """The files that the folder lacks, both plain and with .gz."""
        return [file for file in self.files if located(folder, file) is None]

    def how_to_get(self, folder: Path) -> str:
        """Words for a message: how a user can add the missing files."""
        names = ", ".join(Path(file).name for file in self.files)
        first = self.downloads[0]
        home = first.url if len(self.downloads) == 1 else first.url.removesuffix(first.file_name)
        return f"put {names} from {home} into {(folder / self.files[0]).parent}"

    def fetch(self, folder: Path) -> None:
        """Download the files into the folder. A file appears there only after its hash was checked."""
        pooch = optional_module(
            "pooch", package="pooch", install="hasfl[data]", need=f"downloading {self.name}"
        )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as staging:
                for download in self.downloads:
                    _fetch_one(pooch, download, Path(staging))
                _move(self.files, Path(staging), folder)
        except (OSError, ValueError, EOFError, tarfile.TarError, zlib.error) as error:
            reason = f"{type(error).__name__}: {shorten(str(error), REASON_LENGTH)}"
            raise InputError(
                f"cannot download {self.name} into {folder} ({reason}): {self.how_to_get(folder)}"
            ) from error


def _fetch_one(pooch: Any, download: Download, staging: Path) -> None:
    target = staging / download.into
    file = pooch.retrieve(
        download.url, known_hash=f"md5:{download.md5}", fname=download.file_name, path=target
    )
    if tarfile.is_tarfile(file):
        with tarfile.open(file) as archive:
            archive.extractall(target, filter="data")


def _move(files: tuple[str, ...], staging: Path, folder: Path) -> None:
    for file in files:
        downloaded = located(staging, file)
        if downloaded is None:
            raise ValueError(f"the download holds no {file}")
        target = folder / downloaded.relative_to(staging)
        target.parent.mkdir(parents=True, exist_ok=True)
        downloaded.replace(target)


def located(folder: Path, file: str) -> Path | None:
    """The path of a file: in its standard subfolder or directly in `folder`, plain or with .gz."""
    plain = (folder / file, folder / Path(file).name)
    candidates = (path.with_name(path.name + ending) for path in plain for ending in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def read_bytes(folder: Path, file: str) -> tuple[Path, bytes]:
    """The path and the decompressed contents of a file of a data set."""
    path = located(folder, file)
    if path is None:
        raise InputError(f"{folder / file} does not exist")
    try:
        with cast(IO[bytes], gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as stream:
            return path, stream.read()
    except (OSError, EOFError, zlib.error) as error:
        raise broken_file(path, f"cannot be read ({error})") from None


def broken_file(path: Path, fault: str) -> InputError:
    """The error for a file whose contents differ from those that were published."""
    return InputError(f"{path} {fault}: delete it and fetch it again")


def optional_module(name: str, *, package: str, install: str, need: str) -> Any:
    """Import a module of an optional package.

    For the message, `need` is what needs the package, and `install` is what pip shall install.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingExtra(
            f"{need} needs {package}, which is not installed: pip install '{install}'"
        ) from None


# ── Fashion-MNIST ────────────────────────────────────────────────────────────────────────────────────────


IDX_UINT8 = 8  # the IDX code of unsigned bytes
HEADER_BYTES = 4  # bytes before the sizes
SIZE_BYTES = 4  # bytes of each size, big-endian
RAW = "FashionMNIST/raw"  # the folder that torchvision uses
IMAGE_AXES, LABEL_AXES = 3, 1  # number of axes in a file of images and in a file of labels
MIRROR = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
MD5 = {
    "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
}
CLASS_NAMES = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip


def read_fashion_mnist(folder: Path) -> Dataset:
    """Read Fashion-MNIST: 60,000 training and 10,000 test images, 1 x 28 x 28, of 10 classes."""
    ranks = (IMAGE_AXES, LABEL_AXES, IMAGE_AXES, LABEL_AXES)  # axes of the files, in the order of `MD5`
    x_train, y_train, x_test, y_test = (
        read_idx(folder, f"{RAW}/{file}", rank) for file, rank in zip(MD5, ranks, strict=True)
    )
    return Dataset.of_arrays("fashion-mnist", x_train, y_train, x_test, y_test, CLASS_NAMES)


def read_idx(folder: Path, file: str, rank: int) -> NDArray[Any]:
    """Read one IDX file of unsigned bytes with `rank` axes; the file may be compressed with gzip."""
    path, data = read_bytes(folder, file)
    begin = HEADER_BYTES + SIZE_BYTES * rank
    if len(data) < begin or data[:HEADER_BYTES] != bytes([0, 0, IDX_UINT8, rank]):
        raise broken_file(path, f"is no IDX file of unsigned bytes with {rank} axes")
    shape = struct.unpack(f">{rank}I", data[HEADER_BYTES:begin])
    if len(data) - begin != math.prod(shape):
        raise broken_file(path, f"holds {len(data) - begin} values where its header says {math.prod(shape)}")
    return np.frombuffer(data, np.uint8, offset=begin).reshape(shape)


FASHION_MNIST = Published(
    name="fashion-mnist",
    files=tuple(f"{RAW}/{file}" for file in MD5),
    downloads=tuple(Download(url=f"{MIRROR}/{file}.gz", md5=md5, into=RAW) for file, md5 in MD5.items()),
    read=read_fashion_mnist,
)


# ── CIFAR ────────────────────────────────────────────────────────────────────────────────────────────────


AUTHORS = "https://www.cs.toronto.edu/~kriz"
SHAPE = (3, 32, 32)  # channels, height and width of an image
VALUES = math.prod(SHAPE)  # number of bytes of an image
TRAINING_FILES = 5  # number of training files of CIFAR-10
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
    """Read the images of a file, in the order NHWC, and their labels."""
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
        """The replacement of a global name of a pickle; InputError for a name that is not in `ALLOWED`."""
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
