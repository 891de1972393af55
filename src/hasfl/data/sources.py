"""Data sets by name: scikit-learn's digits, three published data sets, or a user's files."""

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from hasfl.data.dataset import Dataset
from hasfl.data.hugging_face import is_saved_dataset, read_saved_dataset
from hasfl.data.npz_files import holds_device_files, read_device_files, read_npz
from hasfl.data.published import CIFAR10, CIFAR100, FASHION_MNIST, Published, optional_module
from hasfl.errors import InputError
from hasfl.paths import expanded, is_there

PUBLISHED: dict[str, Published] = {source.name: source for source in (FASHION_MNIST, CIFAR10, CIFAR100)}
DATASETS: tuple[str, ...] = ("digits", *PUBLISHED)
TEST_EVERY = 5  # in digits, every fifth image is a test image; chosen by hand
DIGITS_LARGEST = 16  # the largest grey value of scikit-learn's digits


def load_dataset(
    name: str,
    *,
    folder: Path | None = None,
    beside: Path | None = None,
    columns: Sequence[str] | None = None,
) -> Dataset:
    """Load the data set called `name`: a known name, or the path of a file or folder.

    A file is an .npz file with the arrays x_train, y_train, x_test and y_test. A folder holds one .npz file
    for each device (`npz_files.py`), or was saved by Hugging Face's package `datasets`. `columns` names the
    inputs and the labels of such a saved folder. A path is relative to `beside`, if given, or else to the
    data folder.

    The data folder is `folder`, by default `default_folder()`. Missing files of a published data set are
    downloaded into the default folder, but never into a `folder` that the caller chose.
    """
    if folder is not None and not (is_there(folder) and folder.is_dir()):
        raise InputError(f"the data folder {folder} does not exist: create it, or leave it out to download")
    data_folder = default_folder() if folder is None else folder
    if columns is not None and name in DATASETS:
        raise _columns_without_use(name)
    if name == "digits":
        return _digits()
    if name not in PUBLISHED:
        path = _found(name, data_folder if beside is None else beside, data_folder)
        return _read(name, path, columns)
    source = PUBLISHED[name]
    if missing := source.missing(data_folder):
        if folder is not None:
            raise InputError(
                f"the data folder {folder} lacks {len(missing)} of the {len(source.files)} files of {name}: "
                f"{source.how_to_get(folder)}, or leave the folder out to download"
            )
        source.fetch(data_folder)
    return source.read(data_folder)


def default_folder() -> Path:
    """The data folder: the environment variable HASFL_DATA, else hasfl in the user's cache (~/.cache)."""
    if chosen := os.environ.get("HASFL_DATA"):
        return expanded(chosen)
    return expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "hasfl"


def _found(name: str, *places: Path) -> Path:
    """The path of the file or folder `name` in the first of the places that has it."""
    paths = list(dict.fromkeys(place / expanded(name) for place in places))
    if name and (present := [path for path in paths if is_there(path)]):
        return present[0]
    near = get_close_matches(name, DATASETS, n=1)
    hint = (
        f"did you mean {near[0]}?" if near else f"expected one of {', '.join(DATASETS)}, a file or a folder"
    )
    raise InputError(
        f"there is no data set {name!r}, and {' and '.join(map(str, paths))} "
        f"{'do' if len(paths) > 1 else 'does'} not exist: {hint}"
    )


def _read(name: str, path: Path, columns: Sequence[str] | None) -> Dataset:
    """Read the data set in a file or folder."""
    if path.is_dir() and is_saved_dataset(path):
        return read_saved_dataset(name, path, columns)
    if columns is not None:
        raise _columns_without_use(name)
    if path.is_file():
        return read_npz(name, path)
    if holds_device_files(path):
        return read_device_files(name, path)
    raise InputError(
        f"{path} must hold one .npz file for each device and test.npz, or what datasets.save_to_disk wrote: "
        "fill it, or name another folder"
    )


def _columns_without_use(name: str) -> InputError:
    return InputError(
        f"columns belong to a folder that Hugging Face's datasets saved, which {name} is not: leave them out"
    )


def _digits() -> Dataset:
    """Load scikit-learn's digits: 1,797 images of 8 x 8 grey values, scaled to 0 to 1."""
    datasets = optional_module(
        "sklearn.datasets", package="scikit-learn", install="hasfl[train]", need="the data set digits"
    )
    digits = datasets.load_digits()
    x, y = (digits.images[:, None] / DIGITS_LARGEST).astype(np.float32), digits.target.astype(np.int64)
    test = np.arange(len(y)) % TEST_EVERY == TEST_EVERY - 1
    return Dataset.of_arrays("digits", x[~test], y[~test], x[test], y[test])
