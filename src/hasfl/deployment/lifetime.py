"""Become another program that ends when the process that started this one ends, however that one ends.

    python -I -S lifetime.py PARENT PROGRAM [ARGUMENT …]

Linux sends the signal, so it comes after `kill -9` too. This file is run by its path and imports nothing of
hasfl, since it runs before each program.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>
EXIT_ORPHAN = 1
PARENT_OPTION = "--parent-pid"  # by which Flower's SuperExec tells an app its process number


def end_with_parent(parent: int) -> None:
    """Have this process killed when `parent`, which started it, ends. Elsewhere than on Linux: do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before it could be watched
            os._exit(EXIT_ORPHAN)


def end_with_flower() -> None:
    """Have this app of Flower's killed when the SuperExec that started it ends.

    Flower's own watch looks for the process number, which stays taken until somebody asks how the process
    ended.
    """
    if PARENT_OPTION in sys.argv:
        end_with_parent(int(sys.argv[sys.argv.index(PARENT_OPTION) + 1]))


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
