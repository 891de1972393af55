"""Checked, read-only arrays: the numbers are checked once, when the array is created."""

from collections.abc import Mapping, Sized
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hasfl.errors import InputError

# The allowed range of a positive quantity. Chosen by hand: a product of five such quantities stays between
# 1e-300 and 1e300, so it neither underflows nor overflows float64 (about 1e-308 to 1e308).
SMALLEST, LARGEST = 1e-60, 1e60
# The largest whole number that a setting may have. Chosen by hand: the product of two of them fits in int64.
MOST = 10**9
SHOWN = 20  # characters of a wrong value that a message shows; chosen by hand

Dtype = TypeVar("Dtype", bound=np.generic)
FloatN = NDArray[np.float64]  # one number per device i
IntN = NDArray[np.int64]  # one whole number per device i
FloatL = NDArray[np.float64]  # one number per layer j
IntL = NDArray[np.int64]  # one whole number per layer j
BoolL = NDArray[np.bool_]  # one true or false per layer j


def quantities(field: str, numbers: ArrayLike, *, positive: bool = False) -> NDArray[np.float64]:
    """Copy a list of numbers into a read-only array.

    Every number must be finite and at least 0, or above 0 if `positive`. Messages call the list `field`.
    """
    try:
        values = np.array(numbers, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{field} must be a list of numbers, got {numbers!r}") from None
    if values.ndim != 1 or values.size == 0:
        raise InputError(f"{field} must be a list of at least one number, got shape {values.shape}")
    if (wrong := np.flatnonzero(~_in_range(values, positive=positive))).size:
        raise InputError(f"{field}[{wrong[0]}] {_must_be(positive)}, got {float(values[wrong[0]])!r}")
    return frozen(values)


def counts(field: str, numbers: ArrayLike) -> IntN:
    """Copy a list of whole numbers, each at least 1, into a read-only array."""
    values = np.array(numbers)
    if values.ndim != 1 or values.size == 0 or not np.issubdtype(values.dtype, np.integer):
        raise InputError(f"{field} must be a list of whole numbers, got {numbers!r}")
    if (wrong := np.flatnonzero(values < 1)).size:
        raise InputError(f"{field}[{wrong[0]}] must be at least 1, got {values[wrong[0]]}")
    return frozen(values.astype(np.int64))


def flags(field: str, booleans: ArrayLike) -> BoolL:
    """Copy a list of booleans into a read-only array."""
    values = np.array(booleans)
    if values.ndim != 1 or values.size == 0 or values.dtype != np.bool_:
        raise InputError(f"{field} must be a list of true and false, got {booleans!r}")
    return frozen(values)


def quantity(field: str, number: float, *, positive: bool = False) -> float:
    """Return `number` as a float; it must be finite and at least 0, or above 0 if `positive`."""
    if isinstance(number, bool) or not isinstance(number, int | float | np.number):
        raise InputError(f"{field} {_must_be(positive)}, got {str(number)[:SHOWN]!r}")
    value = float(number)
    if not _in_range(np.array(value), positive=positive):
        raise InputError(f"{field} {_must_be(positive)}, got {value!r}")
    return value


def _in_range(values: NDArray[np.float64], *, positive: bool) -> NDArray[np.bool_]:
    within = (values >= SMALLEST) & (values <= LARGEST)
    return within if positive else within | (values == 0)


def _must_be(positive: bool) -> str:
    return f"must be a finite number {'above 0' if positive else 'at least 0'} (and at most {LARGEST:g})"


def count(field: str, number: int) -> int:
    """Return `number` as an int; it must be a whole number from 1 to `MOST`."""
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 1 <= number <= MOST:
        raise InputError(f"{field} must be a whole number from 1 to {MOST:,}, got {str(number)[:SHOWN]}")
    return int(number)


def share(field: str, number: float) -> float:
    """Return `number` as a float; it must be above 0 and at most 1."""
    value = quantity(field, number)
    if not 0 < value <= 1:
        raise InputError(f"{field} must be above 0 and at most 1, which means all, got {value!r}")
    return value


def same_length(arrays: Mapping[str, Sized], per: str) -> None:
    """Require all arrays to be as long as the first one; `per` is what an entry stands for, e.g. "device"."""
    (first, reference), *others = arrays.items()
    for field, values in others:
        if len(values) != len(reference):
            raise InputError(
                f"{field} has {len(values)} entries but {first} has {len(reference)}: give one per {per}"
            )


def rising(field: str, values: NDArray[np.float64]) -> None:
    """Require an `_upto` array, whose entry j is a sum over layers 1 to j, never to decrease."""
    if (wrong := np.flatnonzero(np.diff(values) < 0)).size:
        j = int(wrong[0]) + 1
        raise InputError(
            f"{field}[{j}] = {values[j]:.6g} is below {field}[{j - 1}] = {values[j - 1]:.6g}: "
            "it must be the sum over layers 1 to j, not the value of layer j alone"
        )


def frozen(values: NDArray[Dtype]) -> NDArray[Dtype]:
    """Make an array read-only, and return the same array."""
    values.setflags(write=False)
    return values
