"""The process of a worker: the device or the edge server beside a SuperNode.

    python -m hasfl.deployment.hosting.worker SETTINGS

SETTINGS is a JSON file of `WorkerSettings`. The process ends at SIGTERM and at Ctrl-C.
"""

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from hasfl.callables import find
from hasfl.deployment.hosting.places import Place
from hasfl.deployment.hosting.supervision import Program
from hasfl.errors import HasflError

SETTINGS_FILE = "worker.json"
MODULES = ("hasfl.deployment.joining",)  # that workers import


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a worker needs to know. Quantities are as people write them; an empty text says: not given."""

    keys: str  # the folder of this party, made by hasfl keys; its certificate says who this is
    state: str
    listen: str = ""  # the edge server: host:port where devices connect
    announce: str = ""  # the edge server: host:port that devices are told
    data: str = ""  # a device: the file with its samples
    test: str = ""  # the edge server: a file with samples to test the model on
    memory: str = ""  # a device: how much of its memory it lends, like "2 GB"
    slow_to: str = ""  # a device's rehearsal: be as slow as a box with so many FLOP/s, like "50 GFLOPS"
    link: str = ""  # … and with such links, like "20 Mbps"
    threads: int = 1  # that torch computes with
    sharers: int = 1  # devices on this machine, which share its memory
    trust: tuple[str, ...] = ()  # modules whose callables a scenario may name
    make: str = "hasfl.deployment.workers:open_worker"  # the function that makes the worker


Make = Callable[[WorkerSettings], AbstractContextManager[object]]  # the worker, while it works


def worker_program(settings: WorkerSettings) -> Program:
    """The worker as a program that a supervisor keeps running."""
    place = Place(Path(settings.keys), Path(settings.state))
    place.make()
    path = place.state.resolve() / SETTINGS_FILE
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(asdict(settings), file)
    module = "hasfl.deployment.hosting.worker"
    command = (sys.executable, "-m", module, str(path))
    return Program(name="worker", command=command, log=place.log("worker"), entry=f"{module}:main")


def main() -> None:
    """Run the worker whose settings the command names, until the process is told to end."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    settings = WorkerSettings(**json.loads(Path(sys.argv[-1]).read_text()))
    try:
        make = cast(Make, find(settings.make, "the worker"))
        with make(settings):
            ending.wait()
    except HasflError as error:
        sys.exit(f"hasfl: {error}")


if __name__ == "__main__":
    main()
