"""Files that are either as they were or completely new, whenever the power fails."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hasfl.errors import Diverged, StorageError

RECORDED = "what was recorded before is intact, and --resume goes on from there"


@contextmanager
def writing(path: Path, advice: str) -> Iterator[None]:
    """Turn whatever the system refuses inside into one sentence that names `path` and ends in `advice`."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}; {advice}") from None


def replace_file(path: Path, write: Callable[[Path], None], *, advice: str = RECORDED) -> None:
    """Let `write` fill a new file, bring it safely to disk, then put it in the place of `path`.

    It grows in a folder of its own beside `path`; what a killed process leaves there is cleared away by the
    next one that writes the same file.
    """
    workshop = path.parent / f".{path.name}.part"
    with writing(path, advice):
        workshop.mkdir(exist_ok=True)
        try:
            write(workshop / path.name)
            _publish(workshop / path.name, path)
        finally:
            shutil.rmtree(workshop, ignore_errors=True)


def _publish(made: Path, path: Path) -> None:
    made.chmod(made.parent.stat().st_mode & 0o666)
    sync(made)
    made.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write text in UTF-8 as it is, on every system."""
    path.write_bytes(text.encode())


def json_text(content: Mapping[str, Any], file: str, *, indent: int | None = None) -> str:
    """JSON as the standard has it: compact unless indented, and with nothing that is not a number."""
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
