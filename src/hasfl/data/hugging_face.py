"""Read a folder that the package `datasets` of Hugging Face wrote with `save_to_disk`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasfl.data.dataset import Dataset
from hasfl.data.published import optional_module
from hasfl.errors import InputError, naming

SPLITS = ("train", "test")
MARKS = ("dataset_dict.json", "dataset_info.json")  # `save_to_disk` writes one of these files
# The usual names of the columns; the first one that a data set has is taken.
INPUTS = ("image", "img", "pixel_values", "input_ids", "x")
LABELS = ("label", "labels", "fine_label", "y")
PAIR = 2  # a column of inputs and a column of labels


def is_saved_dataset(folder: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return any((folder / mark).is_file() for mark in MARKS)


def read_saved_dataset(name: str, folder: Path, columns: Sequence[str] | None) -> Dataset:
    """Read the splits train and test; `columns` names the inputs and the labels (None: the usual names)."""
    package = optional_module(
        "datasets", package="the package datasets", install="datasets", need=f"reading {folder}"
    )
    try:
        saved = package.load_from_disk(str(folder))
    except Exception as error:  # a broken folder may fail in any way
        raise InputError(f"cannot read {folder} as datasets saved it: {error}") from None
    if not isinstance(saved, dict) or not set(SPLITS) <= set(saved):
        found = ", ".join(saved) if isinstance(saved, dict) else "no splits"
        raise InputError(
            f"{folder} must hold the splits train and test, got {found}: save a DatasetDict of both"
        )
    inputs, labels = _columns(folder, saved["train"].column_names, columns)
    x_train, y_train, x_test, y_test = (
        _array(saved[split], split, column) for split in SPLITS for column in (inputs, labels)
    )
    names = getattr(_innermost(saved["train"].features[labels]), "names", None) or ()
    with naming(str(folder)):
        return Dataset.of_arrays(name, x_train, y_train, x_test, y_test, names)


def _columns(folder: Path, known: Sequence[str], asked: Sequence[str] | None) -> tuple[str, str]:
    """The names of the column of inputs and of the column of labels."""
    usual = [next((column for column in names if column in known), "") for names in (INPUTS, LABELS)]
    chosen = usual if asked is None else list(asked)
    if len(chosen) != PAIR or not set(chosen) <= set(known) or chosen[0] == chosen[1]:
        told = "have no usual names" if asked is None else f"are not {list(asked)}"
        raise InputError(
            f"the columns of {folder} {told}, but {', '.join(known)}: give data.columns = [inputs, labels]"
        )
    return chosen[0], chosen[1]


def _array(split: Any, name: str, column: str) -> NDArray[Any]:
    """Read one column of a split as an array."""
    try:
        array: NDArray[Any] = split.select_columns([column]).with_format("numpy")[:][column]
    except Exception as error:  # such as images that cannot be decoded, or a missing package
        raise InputError(f"cannot read the column {column!r} of {name}: {error}") from None
    if array.dtype.kind not in "bfiu":
        raise InputError(
            f"the column {column!r} of {name} must hold numbers or images of one shape, got {array.dtype}: "
            "convert, pad or resize them first"
        )
    kind = getattr(_innermost(split.features[column]), "dtype", None)
    return array.astype(np.uint8) if kind == "uint8" else array  # `datasets` widens bytes to int64


def _innermost(feature: Any) -> Any:
    """The feature of the single values in a column of lists, or of lists of lists."""
    while hasattr(feature, "feature"):
        feature = feature.feature
    return feature
