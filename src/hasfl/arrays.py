"""Arrays that are checked once, when a value is made, and can never be written again."""

from collections.abc import Mapping, Sized
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hasfl.errors import InputError

# Beyond these, products of a few quantities leave what floating point can hold.
SMALLEST, LARGEST = 1e-60, 1e60
MOST = 10**9

Dtype = TypeVar("Dtype", bound=np.generic)
FloatN = NDArray[np.float64]  # one number per device i
IntN = NDArray[np.int64]
FloatL = NDArray[np.float64]  # one number per layer j
IntL = NDArray[np.int64]
BoolL = NDArray[np.bool_]


def quantities(field: str, given: ArrayLike, *, positive: bool = False) -> NDArray[np.float64]:
    """Freeze one number per device or layer: finite and at least 0, or above 0 if `positive`."""
    try:
        values = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{field} must be a list of numbers, got {given!r}") from None
    if values.ndim != 1 or values.size == 0:
        raise InputError(f"{field} must be a list of at least one number, got shape {values.shape}")
    if (wrong := np.flatnonzero(~_sensible(values, positive=positive))).size:
        raise InputError(f"{field}[{wrong[0]}] {_must(positive)}, got {float(values[wrong[0]])!r}")
    return frozen(values)


def counts(field: str, given: ArrayLike) -> IntN:
    """Freeze a list of whole numbers of at least 1."""
    values = np.array(given)
    if values.ndim != 1 or values.size == 0 or not np.issubdtype(values.dtype, np.integer):
        raise InputError(f"{field} must be a list of whole numbers, got {given!r}")
    if (wrong := np.flatnonzero(values < 1)).size:
        raise InputError(f"{field}[{wrong[0]}] must be at least 1, got {values[wrong[0]]}")
    return frozen(values.astype(np.int64))


def flags(field: str, given: ArrayLike) -> BoolL:
    """Freeze a list of true and false."""
    values = np.array(given)
    if values.ndim != 1 or values.size == 0 or values.dtype != np.bool_:
        raise InputError(f"{field} must be a list of true and false, got {given!r}")
    return frozen(values)


def quantity(field: str, given: float, *, positive: bool = False) -> float:
    """Return one finite number of at least 0, or above 0 if `positive`."""
    value = float(given)
    if not _sensible(np.array(value), positive=positive):
        raise InputError(f"{field} {_must(positive)}, got {value!r}")
    return value


def _sensible(values: NDArray[np.float64], *, positive: bool) -> NDArray[np.bool_]:
    within = (values >= SMALLEST) & (values <= LARGEST)
    return within if positive else within | (values == 0)


def _must(positive: bool) -> str:
    return f"must be a finite number {'above 0' if positive else 'at least 0'} (and at most {LARGEST:g})"


def count(field: str, given: int) -> int:
    """Return one whole number of at least 1."""
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or not 1 <= given <= MOST:
        raise InputError(f"{field} must be a whole number from 1 to {MOST:,}, got {str(given)[:20]}")
    return int(given)


def same_length(arrays: Mapping[str, Sized], per: str) -> None:
    """Require one entry per device or layer in every array; the first one sets the length."""
    (first, reference), *others = arrays.items()
    for field, values in others:
        if len(values) != len(reference):
            raise InputError(
                f"{field} has {len(values)} entries but {first} has {len(reference)}: give one per {per}"
            )


def rising(field: str, values: NDArray[np.float64]) -> None:
    """Require an `_upto` array, which sums layers 1 to j, never to fall."""
    if (wrong := np.flatnonzero(np.diff(values) < 0)).size:
        j = int(wrong[0]) + 1
        raise InputError(
            f"{field}[{j}] = {values[j]:.6g} is below {field}[{j - 1}] = {values[j - 1]:.6g}: "
            "it must be the sum over layers 1 to j, not the value of layer j alone"
        )


def frozen(values: NDArray[Dtype]) -> NDArray[Dtype]:
    """Return the array itself, made read-only."""
    values.setflags(write=False)
    return values
