"""A process that imports what training needs once, then forks for every command it is given.

A fork can be killed, and the next one starts within milliseconds. Run with OMP_NUM_THREADS=1: threads do not
survive a fork.
"""

import importlib
import json
import os
import sys

from hasfl.cli.main import main
from hasfl.models.costs import count_layers
from hasfl.models.networks import network


def serve() -> None:
    """For each line, a JSON object with arguments and a file for the output, tell the number of the process.

    With the next line tell how it ended; until then nobody else gets its number, so that it can be killed.
    """
    while line := sys.stdin.readline():
        command = json.loads(line)
        child = os.fork()
        if child == 0:
            carry_out(command["arguments"], command["output"])
        tell(child)
        sys.stdin.readline()
        tell(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def carry_out(arguments: list[str], output: str) -> None:
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["hasfl", *arguments]
    main()


def tell(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def warm_up() -> None:
    """Import what a training imports when it needs it; no gradients, which would start threads."""
    for module in ("sklearn.datasets", "hasfl.cli.training_view"):
        importlib.import_module(module)
    count_layers(network("small-cnn"))


if __name__ == "__main__":
    warm_up()
    serve()
