"""Keeps what HiGHS prints away from standard output, which is for our own words."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STANDARD_OUTPUT = 1


@contextmanager
def quiet_solver() -> Iterator[None]:
    """Send standard output nowhere for a while. HiGHS writes to the file descriptor itself, past Python."""
    sys.stdout.flush()
    libc, saved = ctypes.CDLL(None), os.dup(STANDARD_OUTPUT)
    try:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), STANDARD_OUTPUT)
            yield
            libc.fflush(None)
    finally:
        os.dup2(saved, STANDARD_OUTPUT)
        os.close(saved)
