"""Data sets in .npz files: one file with all arrays, or a folder with one file for each device.

Data in such a folder belong to devices from the start:

    pi-1.npz, pi-2.npz, …   x: the samples of a device, y: their labels
    test.npz                x and y of the test set, and class_names if wanted

The same files serve a simulation and real devices. A real device needs only its own file.
"""

import re
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import IntN
from hasfl.data.dataset import Dataset
from hasfl.errors import InputError, naming

# ── one file ─────────────────────────────────────────────────────────────────────────────────────────────


ARRAYS = ("x_train", "y_train", "x_test", "y_test")  # names of the arrays of a data set in one file
CLASS_NAMES = "class_names"  # name of an optional array of strings


def read_npz(name: str, path: Path) -> Dataset:
    """Read a whole data set in one .npz file."""
    arrays = read_arrays(path, ARRAYS)
    x_train, y_train, x_test, y_test = (arrays[key] for key in ARRAYS)
    with naming(str(path)):
        return Dataset.of_arrays(name, x_train, y_train, x_test, y_test, class_names_of(arrays))


def read_arrays(path: Path, needed: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read the arrays `needed`, and class names if any; pickled objects are refused, as they can run code."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files if key in (*needed, CLASS_NAMES)}
    except Exception as error:  # a broken archive may fail in any way
        fits = isinstance(error, OSError) or zipfile.is_zipfile(path)
        reason = error if fits else "it is no .npz file"  # clearer than NumPy's message about pickles
        raise InputError(f"cannot read {path} as arrays saved by numpy.savez: {reason}") from None
    if absent := [key for key in needed if key not in arrays]:
        raise InputError(f"{path} must hold {', '.join(needed)}, but lacks {', '.join(absent)}")
    return arrays


def class_names_of(arrays: dict[str, NDArray[Any]]) -> list[str]:
    """The class names in a file; an empty list if it has none."""
    names: list[str] = arrays.get(CLASS_NAMES, np.zeros(0, str)).astype(str).ravel().tolist()
    return names


# ── a file for each device ───────────────────────────────────────────────────────────────────────────────


Arrays = Mapping[str, NDArray[Any]]
INPUTS, LABELS = "x", "y"  # names of the arrays in each file
TEST = "test"  # name of the file with the test set, without its ending
ENDING = ".npz"
FILE_NAME = re.compile(r"[^\W_][\w .+-]*")  # begins with a letter or a digit; no slash, no control character


def holds_device_files(folder: Path) -> bool:
    """Whether a folder contains .npz files."""
    return bool(_paths(folder))


def read_device_files(name: str, folder: Path) -> Dataset:
    """Read all files of a folder; `shares` of the result says which samples each device holds.

    Images of uint8 are normalised by the mean and the standard deviation over the training samples of all
    devices.
    """
    paths = _paths(folder)
    if TEST not in paths or len(paths) == 1:
        missing = f"{TEST}{ENDING}" if TEST not in paths else "a file for each device, such as 1.npz"
        raise InputError(
            f"{folder} must hold {TEST}{ENDING} and a file for each device; {missing} is missing"
        )
    test = read_arrays(paths.pop(TEST), (INPUTS, LABELS))
    devices = sorted(paths, key=_by_numbers)
    files = [read_arrays(paths[device], (INPUTS, LABELS)) for device in devices]
    for device, arrays in zip(devices, files, strict=True):
        _check_alike(paths[device], arrays, paths[devices[0]], files[0])
    ends = np.cumsum([len(arrays[INPUTS]) for arrays in files])
    x, y = (np.concatenate([arrays[key] for arrays in files]) for key in (INPUTS, LABELS))
    with naming(str(folder)):
        data = Dataset.of_arrays(name, x, y, test[INPUTS], test[LABELS], class_names_of(test))
    parts = np.split(np.arange(ends[-1]), ends[:-1])
    return replace(data, shares=dict(zip(devices, parts, strict=True)))


def write_device_files(data: Dataset, shares: Sequence[IntN], names: Sequence[str], folder: Path) -> None:
    """Write the training samples of each device, and the test set, into a new folder.

    Images are written as they are in `data`, normalised already.
    """
    _check_names(names, shares)
    if folder.exists():
        raise InputError(f"{folder} exists already: remove it, or choose another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".device-files-") as staging:
        whole = Path(staging) / folder.name  # moved to `folder` when all files are written
        whole.mkdir()
        for device, share in zip(names, shares, strict=True):
            x, y = (tensor.cpu().numpy()[share] for tensor in (data.x_train, data.y_train))
            np.savez(whole / f"{device}{ENDING}", x=x, y=y)
        np.savez(
            whole / f"{TEST}{ENDING}",
            x=data.x_test.cpu().numpy(),
            y=data.y_test.cpu().numpy(),
            class_names=np.array(data.class_names, dtype=str),
        )
        whole.rename(folder)


def shares_of(data: Dataset, names: Sequence[str]) -> tuple[IntN, ...]:
    """The indices of the samples of each device of a fleet, from data that belong to devices already.

    Devices are matched by name. If any name differs, they are matched in order: the first device of the fleet
    gets the first file, where numbers in files' names are ordered by value.
    """
    assert data.shares is not None
    if len(data.shares) != len(names):
        raise InputError(
            f"{data.name} holds the samples of {len(data.shares)} devices but the fleet has {len(names)}: "
            "give one file for each device"
        )
    if set(data.shares) == set(names):
        return tuple(data.shares[name] for name in names)
    return tuple(data.shares.values())


def _paths(folder: Path) -> dict[str, Path]:
    """The .npz files of a folder by their names without the ending; hidden files do not count."""
    return {path.stem: path for path in folder.glob(f"[!.]*{ENDING}")}


def _by_numbers(name: str) -> list[tuple[int, str]]:
    """A sorting key with which pi-2 comes before pi-10."""
    pieces = re.findall(r"\d+|\D+", name)
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces]


def _check_alike(path: Path, arrays: Arrays, first_path: Path, first: Arrays) -> None:
    """Refuse a device's file whose arrays cannot be joined with those of the first device's file."""
    x, y = arrays[INPUTS], arrays[LABELS]
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y) or not len(x):
        raise InputError(
            f"{path} must hold samples and one label for each, got arrays of shape {x.shape} and {y.shape}"
        )
    for key in (INPUTS, LABELS):
        own, other = arrays[key], first[key]
        kinds = [array.dtype if key == INPUTS else array.dtype.kind in "biu" for array in (own, other)]
        if own.shape[1:] != other.shape[1:] or kinds[0] != kinds[1]:
            raise InputError(
                f"the files of all devices must hold one shape and type of {key}, got {own.shape[1:]} of "
                f"{own.dtype} in {path.name} and {other.shape[1:]} of {other.dtype} in {first_path.name}"
            )


def _check_names(names: Sequence[str], shares: Sequence[IntN]) -> None:
    if len(names) != len(shares):
        raise InputError(f"there are {len(names)} names but {len(shares)} shares: give one name for each")
    wrong = [name for name in names if not FILE_NAME.fullmatch(name) or name == TEST]
    if wrong or len(set(names)) != len(names):
        shown = repr(wrong[0]) if wrong else "one name twice"
        raise InputError(
            f"a device's file has its name, which must begin with a letter or a digit, have no slash and not "
            f"be {TEST!r}, got {shown}: rename the device"
        )
