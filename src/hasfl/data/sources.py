"""Data sets by name: scikit-learn's digits, three published data sets, or a user's .npz file."""

import os
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from hasfl.data.cifar import CIFAR10, CIFAR100
from hasfl.data.dataset import Dataset
from hasfl.data.idx import FASHION_MNIST
from hasfl.data.published import Published, optional_module
from hasfl.errors import InputError

PUBLISHED: dict[str, Published] = {source.name: source for source in (FASHION_MNIST, CIFAR10, CIFAR100)}
DATASETS: tuple[str, ...] = ("digits", *PUBLISHED)
ARRAYS = ("x_train", "y_train", "x_test", "y_test")  # the arrays that a .npz file must hold
TEST_EVERY = 5  # of digits, every fifth image is a test image; chosen by hand
DIGITS_LARGEST = 16  # the largest grey value of scikit-learn's digits


def load_dataset(name: str, *, folder: Path | None = None) -> Dataset:
    """Load the data set called `name`; a name that ends in .npz is a file.

    Files are searched in `folder`, by default in `default_folder()`. Missing files of a published data set
    are downloaded into the default folder, but never into a `folder` that the caller chose.
    """
    if folder is not None and not folder.is_dir():
        raise InputError(f"the data folder {folder} does not exist: create it, or leave it out to download")
    data_folder = default_folder() if folder is None else folder
    if name == "digits":
        return _digits()
    if name.endswith(".npz"):
        return _read_npz(name, data_folder / Path(name).expanduser())
    if name not in PUBLISHED:
        raise InputError(_unknown(name))
    source = PUBLISHED[name]
    if missing := source.missing(data_folder):
        if folder is not None:
            raise InputError(_lacking(source, missing, folder))
        source.fetch(data_folder)
    return source.read(data_folder)


def default_folder() -> Path:
    """The data folder: the environment variable HASFL_DATA, else hasfl in the user's cache (~/.cache)."""
    if chosen := os.environ.get("HASFL_DATA"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "hasfl"


def _unknown(name: str) -> str:
    near = get_close_matches(name, DATASETS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(DATASETS)}, or a .npz file"
    return f"unknown data set {name!r}: {hint}"


def _lacking(source: Published, missing: list[str], folder: Path) -> str:
    return (
        f"the data folder {folder} lacks {len(missing)} of the {len(source.files)} files of {source.name}: "
        f"{source.how_to_get(folder)}, or leave the folder out to download"
    )


def _digits() -> Dataset:
    """scikit-learn's digits: 1,797 images of 8 x 8 grey values, scaled to 0 to 1."""
    datasets = optional_module(
        "sklearn.datasets", package="scikit-learn", extra="train", need="the data set digits"
    )
    digits = datasets.load_digits()
    x, y = (digits.images[:, None] / DIGITS_LARGEST).astype(np.float32), digits.target.astype(np.int64)
    test = np.arange(len(y)) % TEST_EVERY == TEST_EVERY - 1
    return Dataset.of_arrays("digits", x[~test], y[~test], x[test], y[test])


def _read_npz(name: str, path: Path) -> Dataset:
    """Read arrays that numpy.savez saved. Pickled objects are refused, because they can run code."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files if key in (*ARRAYS, "class_names")}
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist: give the folder that it lies in, or its full path"
        ) from None
    except Exception as error:  # a broken archive may fail in any way
        raise InputError(f"cannot read {path} as arrays saved by numpy.savez: {error}") from None
    if absent := [key for key in ARRAYS if key not in arrays]:
        raise InputError(f"{path} must hold {', '.join(ARRAYS)}; {', '.join(absent)} is missing")
    names = arrays.get("class_names", np.zeros(0, str)).astype(str).ravel().tolist()
    x_train, y_train, x_test, y_test = (arrays[key] for key in ARRAYS)
    return Dataset.of_arrays(name, x_train, y_train, x_test, y_test, names)
