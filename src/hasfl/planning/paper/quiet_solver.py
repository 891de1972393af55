"""Keep the messages of HiGHS out of standard output, which is reserved for the output of hasfl."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STANDARD_OUTPUT = 1  # its file descriptor


@contextmanager
def quiet_solver() -> Iterator[None]:
    """Discard everything that is written to standard output inside the `with` block.

    HiGHS writes to the file descriptor directly and not to `sys.stdout`, so the descriptor is redirected.
    """
    sys.stdout.flush()
    libc, saved = ctypes.CDLL(None), os.dup(STANDARD_OUTPUT)
    try:
        with Path(os.devnull).open("w") as null_device:
            os.dup2(null_device.fileno(), STANDARD_OUTPUT)
            yield
            libc.fflush(None)  # the C library buffers too: empty its buffer before the descriptor is restored
    finally:
        os.dup2(saved, STANDARD_OUTPUT)
        os.close(saved)
