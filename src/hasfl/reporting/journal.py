"""A file that only grows: one JSON line per row, every line complete but perhaps the last."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from hasfl.errors import InputError
from hasfl.reporting.replacing import RECORDED, json_text, writing


class Journal:
    """Rows that each say which `round` they belong to, in the order of rounds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def append(self, row: Mapping[str, Any]) -> None:
        """Hand one line to the operating system at once; a line that does not fit is taken back."""
        line = f"{json_text(row, self.path.name)}\n".encode()
        with writing(self.path, RECORDED):
            file = self._opened()
            size = os.fstat(file).st_size
            try:
                _write_all(file, line)
            except BaseException:
                self._take_back(file, size)
                raise

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every complete line; one that a killed process left half-written is passed over."""
        for number, line in enumerate(self._complete_lines(), start=1):
            if (row := _parsed(line)) is None:
                raise InputError(
                    f"line {number} of {self.path} must be a JSON object with a round, got {_short(line)}: "
                    "restore the file, or remove the run and begin it anew"
                )
            yield row

    def lines_of(self, rounds: int) -> int:
        """How many sound lines the file begins with that belong to the first `rounds` rounds."""
        return len(self._lines_of(rounds))

    def cut_after(self, rounds: int) -> None:
        """Drop every line of a later round, and what is left of a half-written one."""
        if self.path.exists():
            end = sum(map(len, self._lines_of(rounds)))
            with writing(self.path, RECORDED):
                os.ftruncate(self._opened(), end)
            self.sync()

    def sync(self) -> None:
        """Wait until every line is on disk."""
        with writing(self.path, RECORDED):
            os.fsync(self._opened())

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _opened(self) -> int:
        """The file to append to, without a half-written last line."""
        if self._descriptor is None:
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                self._drop_half_a_line(file)
            except BaseException:
                os.close(file)
                raise
            self._descriptor = file
        return self._descriptor

    def _drop_half_a_line(self, file: int) -> None:
        complete = sum(map(len, self._complete_lines()))
        if complete < os.fstat(file).st_size:
            os.ftruncate(file, complete)

    def _take_back(self, file: int, size: int) -> None:
        """Cut off the beginning of a line; where even that is refused, the next opening does it."""
        with contextlib.suppress(OSError):
            os.ftruncate(file, size)
        self.close()

    def _complete_lines(self) -> list[bytes]:
        try:
            with self.path.open("rb") as file:
                content = file.read(os.fstat(file.fileno()).st_size)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror}") from None
        return [line + b"\n" for line in content.split(b"\n")[:-1]]

    def _lines_of(self, rounds: int) -> list[bytes]:
        def belongs(line: bytes) -> bool:
            row = _parsed(line)
            return row is not None and row["round"] <= rounds

        return list(takewhile(belongs, self._complete_lines()))


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The row that a line holds, or None if it is damaged."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("round"), int) else None


def _write_all(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]


def _short(line: bytes) -> str:
    text = line.decode(errors="replace").strip()
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
