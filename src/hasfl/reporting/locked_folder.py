"""Folders that appear complete with all their files, and that only one process at a time may write."""

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hasfl.errors import InputError
from hasfl.reporting.replacing import READ_WRITE, sync, write_text, writing

# The error codes of a rename to the path of a file or of a folder with files.
TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
LOCK = "lock"  # the file inside the folder that is locked
# A look at a lock holds it for a moment. So a lock is asked for a few times. Both are chosen by hand.
ATTEMPTS, PAUSE = 5, 0.02  # seconds
ELSEWHERE = "free some space, or choose another place with --out"


@dataclass(frozen=True, slots=True)
class FolderLock:
    """A lock on a folder. The operating system releases it when the process ends, even by a kill."""

    descriptor: int

    @classmethod
    def take(cls, folder: Path) -> Self:
        """Lock a folder; InputError if another process holds the lock."""
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, READ_WRITE)
        try:
            for _ in range(ATTEMPTS):
                if _can_lock(descriptor, fcntl.LOCK_EX):
                    return cls(descriptor)
                time.sleep(PAUSE)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        raise InputError(
            f"{folder} is being written by another process: wait until it ends, or choose another name "
            "with --run"
        )

    @classmethod
    def is_taken(cls, folder: Path) -> bool:
        """Whether a process holds the lock of a folder at this moment."""
        try:
            descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return not _can_lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def release(self) -> None:
        """Release the lock, even if a child process has inherited it."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        os.close(self.descriptor)


def _can_lock(descriptor: int, kind: int) -> bool:
    """Lock an open file, if no other process has locked it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def make_locked_folder(path: Path, texts: Mapping[str, str]) -> FolderLock:
    """Create a locked folder with these files. `path` must not exist, or be an empty folder."""
    with writing(path, ELSEWHERE), ExitStack() as undo:
        require_free(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".{path.name}.{os.getpid()}.part"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        undo.callback(shutil.rmtree, temporary, ignore_errors=True)
        for name, text in texts.items():
            write_text(temporary / name, text)
            sync(temporary / name)
        lock = FolderLock.take(temporary)
        undo.callback(lock.release)
        _move_into_place(temporary, path)
        undo.pop_all()
    return lock


def require_free(path: Path) -> None:
    """Raise InputError if `path` is a file or a folder with files."""
    if path.parent.exists() and not path.parent.is_dir():
        raise InputError(f"{path.parent} must be a folder, but is a file: choose another place with --out")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(_taken(path))


def _move_into_place(temporary: Path, path: Path) -> None:
    """Rename the temporary folder to `path`.

    The rename fails if another process has created a folder with files at `path` after `require_free`.
    """
    sync(temporary)
    try:
        temporary.rename(path)
    except OSError as error:
        if error.errno in TAKEN:
            raise InputError(_taken(path)) from None
        raise
    sync(path.parent)


def _taken(path: Path) -> str:
    return f"{path} exists already: continue it with --resume, choose another name with --run, or remove it"
