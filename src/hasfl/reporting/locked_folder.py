"""A folder that appears at once with all its files, and that one process at a time may write."""

import errno
import fcntl
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hasfl.errors import InputError
from hasfl.reporting.replacing import sync, write_text, writing

TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)  # what renaming onto something else than nothing gives
LOCK = "lock"
ELSEWHERE = "make room there, or choose another place with --out"


@dataclass(frozen=True, slots=True)
class FolderLock:
    """The right to write a folder; the system takes it back when the process ends, however it ends."""

    descriptor: int

    @classmethod
    def take(cls, folder: Path) -> Self:
        """Lock a folder, or refuse if someone holds it."""
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise InputError(
                f"{folder} is being written by another process: wait until it ends, or choose another name "
                "with --run"
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor)

    def release(self) -> None:
        """Let others write, also where a child process has inherited the lock."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        os.close(self.descriptor)


def make_locked_folder(path: Path, texts: Mapping[str, str]) -> FolderLock:
    """Make a folder that holds these files, locked from its first moment; `path` must still be free."""
    with writing(path, ELSEWHERE), ExitStack() as undo:
        _require_free(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        workshop = path.parent / f".{path.name}.{os.getpid()}.part"
        shutil.rmtree(workshop, ignore_errors=True)
        workshop.mkdir()
        undo.callback(shutil.rmtree, workshop, ignore_errors=True)
        for name, text in texts.items():
            write_text(workshop / name, text)
            sync(workshop / name)
        lock = FolderLock.take(workshop)
        undo.callback(lock.release)
        _move_into_place(workshop, path)
        undo.pop_all()
    return lock


def _require_free(path: Path) -> None:
    if path.parent.exists() and not path.parent.is_dir():
        raise InputError(f"{path.parent} must be a folder, but is a file: choose another place with --out")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(_taken(path))


def _move_into_place(workshop: Path, path: Path) -> None:
    """Rename, which succeeds only where nothing or an empty folder is: the check that no one can outrun."""
    sync(workshop)
    try:
        workshop.rename(path)
    except OSError as error:
        if error.errno in TAKEN:
            raise InputError(_taken(path)) from None
        raise
    sync(path.parent)


def _taken(path: Path) -> str:
    return f"{path} exists already: continue it with --resume, choose another name with --run, or remove it"
