"""A process that carries out one request after the other, as the process that started it asks.

Its only argument is the number of an open file, the line to the process that started it. Only that process
can write there, so what comes over the line is trusted.
"""

import contextlib
import sys
from multiprocessing.connection import Connection

from hasfl.errors import Interrupted
from hasfl.runs.places.attempt import Ending, attempt
from hasfl.runs.places.watching import FewWords

REMARK, FOUND = "remark", "found"  # what is told before a run ends


def work(line: Connection) -> None:
    """Carry out requests until there is a None, or until nobody is at the other end.

    A run stops after its round, with a checkpoint, as soon as anything is on the line: a None, or the end of
    the other process.
    """
    watcher = FewWords(lambda sentence: line.send((REMARK, sentence)), lambda: line.send((FOUND, "")))
    while (order := line.recv()) is not None:
        request, after = order
        stopped = Ending(Interrupted, "interrupted before it began") if line.poll() else None
        line.send(stopped or attempt(request, after, watcher, stop_asked=line.poll))


if __name__ == "__main__":
    with contextlib.suppress(EOFError, BrokenPipeError):  # the other process has ended
        work(Connection(int(sys.argv[1])))
