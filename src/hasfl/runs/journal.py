"""A file of rows, one JSON object per line, to which rows are appended.

If a process is killed while it writes, the last line may be incomplete. All other lines are complete.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import IO, Any

from hasfl.errors import InputError
from hasfl.replacing import READ_WRITE, RECORDED, json_text, writing

SHOWN = 40  # characters of a damaged line that a message shows; chosen by hand
BLOCK = 1 << 16  # bytes that are read at once from the end of a file; chosen by hand
ELLIPSIS = "..."


class Journal:
    """A file of rows in the order of rounds; every row has a field `round`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def append(self, row: Mapping[str, Any]) -> None:
        """Append one line, without a buffer. If only a part of the line can be written, remove that part."""
        line = f"{json_text(row, self.path.name)}\n".encode()
        with writing(self.path, RECORDED):
            file = self._opened()
            size = os.fstat(file).st_size
            try:
                _write_all(file, line)
            except BaseException:
                self._cut_back(file, size)
                raise

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of all complete lines; an incomplete last line is skipped."""
        for number, line in enumerate(self._complete_lines(), start=1):
            yield self._row(line, f"line {number}")

    def newest_rows(self) -> Iterator[dict[str, Any]]:
        """The rows from the last one back to the first; no more of the file is read than is asked for."""
        for line in self._complete_lines_backwards():
            yield self._row(line, "a line")

    def lines_of(self, rounds: int) -> int:
        """The number of intact lines of rounds 1 to `rounds` at the beginning of the file."""
        return len(self._lines_of(rounds))

    def cut_after(self, rounds: int) -> None:
        """Remove the lines of all rounds after `rounds`, and an incomplete last line."""
        if self.path.exists():
            end = sum(map(len, self._lines_of(rounds)))
            with writing(self.path, RECORDED):
                os.ftruncate(self._opened(), end)
            self.sync()

    def sync(self) -> None:
        """Wait until all lines are on disk."""
        with writing(self.path, RECORDED):
            os.fsync(self._opened())

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _opened(self) -> int:
        """The open file, without an incomplete last line."""
        if self._descriptor is None:
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, READ_WRITE)
            try:
                self._remove_incomplete_line(file)
            except BaseException:
                os.close(file)
                raise
            self._descriptor = file
        return self._descriptor

    def _remove_incomplete_line(self, file: int) -> None:
        complete = sum(map(len, self._complete_lines()))
        if complete < os.fstat(file).st_size:
            os.ftruncate(file, complete)

    def _cut_back(self, file: int, size: int) -> None:
        """Cut the file back to its old size. If this fails, the next opening removes the incomplete line."""
        with contextlib.suppress(OSError):
            os.ftruncate(file, size)
        self.close()

    def _opened_to_read(self) -> IO[bytes]:
        """The file; one that does not exist yet is empty."""
        try:
            return self.path.open("rb")
        except FileNotFoundError:
            return Path(os.devnull).open("rb")
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror}") from None

    def _complete_lines(self) -> list[bytes]:
        with self._opened_to_read() as file:
            content = file.read(os.fstat(file.fileno()).st_size)  # a device such as /dev/full has no end
        return [line + b"\n" for line in content.split(b"\n")[:-1]]

    def _complete_lines_backwards(self) -> Iterator[bytes]:
        with self._opened_to_read() as file:
            start, beginning = file.seek(0, os.SEEK_END), b""
            is_complete = False  # what stands after the last line break is not
            while start > 0:
                end, start = start, max(start - BLOCK, 0)
                file.seek(start)
                beginning, *lines = (file.read(end - start) + beginning).split(b"\n")
                for line in reversed(lines):
                    if is_complete:
                        yield line
                    is_complete = True
            if is_complete:
                yield beginning

    def _row(self, line: bytes, which: str) -> dict[str, Any]:
        if (row := _parsed(line)) is None:
            raise InputError(
                f"{which} of {self.path} must be a JSON object with a round, got {_short(line)}: "
                "restore the file, or remove the run's folder and begin it anew"
            )
        return row

    def _lines_of(self, rounds: int) -> list[bytes]:
        def is_wanted(line: bytes) -> bool:
            row = _parsed(line)
            return row is not None and row["round"] <= rounds

        return list(takewhile(is_wanted, self._complete_lines()))


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The row of a line, or None if the line is damaged."""
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
    return repr(text if len(text) <= SHOWN else text[: SHOWN - len(ELLIPSIS)] + ELLIPSIS)
