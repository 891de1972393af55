"""Become another program that ends when the process that started this one ends, however that one ends.

    python -I -S launcher.py PARENT PROGRAM [ARGUMENT …]

Linux sends the signal, so it comes after `kill -9` too. This file is run by its path and imports nothing of
hasfl, since it runs before each program.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>
PR_SET_NAME = 15
EXIT_ORPHAN = 1


def end_with_parent(parent: int) -> None:
    """Have this process killed when `parent`, which started it, ends. Elsewhere than on Linux: do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before it could be watched
            os._exit(EXIT_ORPHAN)


def show_name(name: str) -> None:
    """Let `ps` and `top` show a name for this process; Linux keeps 15 bytes of it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_NAME, ctypes.c_char_p(name.encode()), 0, 0, 0)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
