"""Reads recorded rates from a CSV file with a line for each change of a device in a round.

    round,device,up_rate,flops
    40,pi-3,20 Mbps,
    40,pi-7,,0.8 TFLOPS

An empty cell means no change; a number without a unit is in bit/s or FLOP/s.
"""

import csv
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

from hasfl.arrays import quantity
from hasfl.errors import InputError
from hasfl.fleet import Fleet
from hasfl.units import Dimension, parse_quantity
from hasfl.world import VARYING, Change, Trace

KEYS = ("round", "device")
MOST_DIGITS = 9  # the most digits of a round; chosen by hand
MOST_NAMES = 20  # the most names of devices that a message lists; chosen by hand


def read_trace(path: str | Path, fleet: Fleet) -> Trace:
    """Read a CSV file with the columns round, device and fields of `VARYING`; devices are given by name."""
    changes: dict[tuple[int, int], list[Change]] = {}
    columns: list[str] = []
    index = {name: i for i, name in enumerate(fleet.names)}
    for line, cells in _lines(path):
        try:
            if not columns:
                columns = _header(cells)
                continue
            if len(cells) != len(columns):
                raise InputError(f"expected {len(columns)} cells as in the header, got {len(cells)}")
            row = dict(zip(columns, cells, strict=True))
            key = _round(row["round"]), _device(row["device"], index)
            if key in changes:
                raise InputError(f"round {row['round']} of device {row['device']!r} was given before")
            changes[key] = [
                Change(*key, field, _value(field, row[field])) for field in VARYING if row.get(field)
            ]
        except InputError as fault:
            raise InputError(f"{path} line {line}: {fault}") from None
    if not columns:
        raise InputError(f"{path} line 1: expected a header such as round,device,up_rate, got nothing")
    return Trace(tuple(change for row in changes.values() for change in row))


def _lines(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """The cells of every line that is not blank, with the number of the line."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            for cells in reader:
                if any(cells):
                    yield reader.line_num, [cell.strip() for cell in cells]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise InputError(f"cannot read {path}: {reason}") from None
    except csv.Error as error:
        raise InputError(f"{path} line {reader.line_num}: not a line of CSV ({error})") from None


def _header(columns: list[str]) -> list[str]:
    for name in columns:
        if name not in (*KEYS, *VARYING) or columns.count(name) > 1:
            raise InputError(
                f"expected columns out of {', '.join((*KEYS, *VARYING))}, each once, got {name!r}"
            )
    if missing := [name for name in KEYS if name not in columns]:
        raise InputError(f"the column {missing[0]} is missing")
    return columns


def _round(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS and int(text) >= 1):
        raise InputError(f"round must be a whole number of at least 1, got {text[:20]!r}")
    return int(text)


def _device(name: str, index: Mapping[str, int]) -> int:
    if name not in index:
        near = get_close_matches(name, index, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(list(index)[:MOST_NAMES])}"
        raise InputError(f"the fleet has no device {name!r}: {hint}")
    return index[name]


def _value(field: str, text: str) -> float:
    dimension = Dimension.COMPUTE if field == "flops" else Dimension.RATE
    return quantity(field, parse_quantity(text, dimension), positive=True)
