"""Read .npz files: arrays that numpy.savez saved."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasfl.data.dataset import Dataset
from hasfl.errors import InputError, naming

ARRAYS = ("x_train", "y_train", "x_test", "y_test")  # the arrays of a whole data set in one file
CLASS_NAMES = "class_names"  # an optional array of strings


def read_npz(name: str, path: Path) -> Dataset:
    """A whole data set in one file."""
    arrays = read_arrays(path, ARRAYS)
    x_train, y_train, x_test, y_test = (arrays[key] for key in ARRAYS)
    with naming(str(path)):
        return Dataset.of_arrays(name, x_train, y_train, x_test, y_test, class_names_of(arrays))


def read_arrays(path: Path, needed: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The arrays `needed`, and class names if there are any. Pickled objects can run code and are refused."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files if key in (*needed, CLASS_NAMES)}
    except Exception as error:  # a broken archive may fail in any way
        fits = isinstance(error, OSError) or zipfile.is_zipfile(path)
        reason = error if fits else "it is no .npz file"  # of which numpy would say something about pickles
        raise InputError(f"cannot read {path} as arrays saved by numpy.savez: {reason}") from None
    if absent := [key for key in needed if key not in arrays]:
        raise InputError(f"{path} must hold {', '.join(needed)}, but lacks {', '.join(absent)}")
    return arrays


def class_names_of(arrays: dict[str, NDArray[Any]]) -> list[str]:
    """The class names in a file; an empty list if it has none."""
    names: list[str] = arrays.get(CLASS_NAMES, np.zeros(0, str)).astype(str).ravel().tolist()
    return names
