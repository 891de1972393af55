"""Run a program that is killed when its parent process ends for any reason.

    python -I -S lifetime.py PARENT PROGRAM [ARGUMENT …]

This process becomes PROGRAM. PARENT is the process number of the parent. Linux sends the signal, so it also
comes after `kill -9`. This file is run by its path and imports nothing of hasfl, because it runs before each
program.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # option of prctl, from <linux/prctl.h>
EXIT_ORPHAN = 1  # exit code of a process whose parent has ended already
PARENT_OPTION = "--parent-pid"  # option of Flower's apps: the process number of the SuperExec


def end_with_parent(parent: int) -> None:
    """Make Linux kill this process when `parent`, its parent process, ends; other systems do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before prctl
            os._exit(EXIT_ORPHAN)


def end_with_flower() -> None:
    """Make Linux kill this Flower app when the SuperExec that started it ends.

    Flower's own check is too weak: it looks for the process number, which stays in use until another process
    has collected the exit status of the SuperExec.
    """
    if PARENT_OPTION in sys.argv:
        end_with_parent(int(sys.argv[sys.argv.index(PARENT_OPTION) + 1]))


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
