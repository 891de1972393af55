"""The apps that Flower starts end with the program that started them."""

import sys

from hasfl.deployment.hosting.launcher import end_with_parent

PARENT_OPTION = "--parent-pid"  # by which a SuperExec tells an app its process number


def end_with_flower() -> None:
    """End when the SuperExec that started this app ends.

    Flower's own watch looks for the process number, which stays taken until somebody asks how the process
    ended.
    """
    if PARENT_OPTION in sys.argv:
        end_with_parent(int(sys.argv[sys.argv.index(PARENT_OPTION) + 1]))
