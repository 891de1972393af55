"""Writes files so that a crash or a power failure leaves either the old file or the complete new file."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hasfl.errors import Diverged, StorageError

RECORDED = "the earlier records are intact, and --resume continues from there"
READ_WRITE = 0o666  # permission to read and write for all users, which the umask or the folder restricts


@contextmanager
def writing(path: Path, advice: str) -> Iterator[None]:
    """Convert an OSError inside the block to a StorageError that names `path` and ends in `advice`."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}; {advice}") from None


def replace_file(path: Path, write: Callable[[Path], None], *, advice: str = RECORDED) -> None:
    """Let `write` write a new file, wait until it is on disk, then put it in the place of `path`.

    The new file is written in a temporary folder beside `path`. If the process is killed, the folder stays,
    and the next call for the same `path` removes it.
    """
    temporary = path.parent / f".{path.name}.part"
    with writing(path, advice):
        temporary.mkdir(exist_ok=True)
        try:
            new_file = temporary / path.name
            write(new_file)
            new_file.chmod(temporary.stat().st_mode & READ_WRITE)  # the folder's permissions follow the umask
            sync(new_file)
            new_file.replace(path)
            sync(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until the contents of a file, or the list of files of a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write text in UTF-8, with the same line endings on every system."""
    path.write_bytes(text.encode())


def json_text(content: Mapping[str, Any], file: str, *, indent: int | None = None) -> str:
    """The content as standard JSON, compact unless indented.

    Raise Diverged if a number is infinite or NaN. The message names `file`.
    """
    separators = (",", ": ") if indent else (",", ":")
    try:
        return json.dumps(content, indent=indent, separators=separators, allow_nan=False)
    except ValueError:
        wrong = ", ".join(f"{name} = {value}" for name, value in content.items() if not _finite(value))
        raise Diverged(
            f"{file} must hold finite numbers, got {wrong}: the training has diverged, so lower the learning "
            "rate"
        ) from None


def _finite(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True
