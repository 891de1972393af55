"""The process of a worker, which runs a device or the edge server beside a SuperNode.

    python -m hasfl.deployment.worker SETTINGS

SETTINGS is a JSON file with the fields of `WorkerSettings`. SIGTERM and Ctrl-C end the process.
"""

import json
import logging
import signal
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from hasfl.deployment.channels import EDGE_NAME
from hasfl.deployment.device import DeviceInSession, DeviceSetup
from hasfl.deployment.edge_server import EdgeInSession, EdgeSetup
from hasfl.deployment.joining import DeviceWorker, EdgeWorker
from hasfl.deployment.keys import certificate_name
from hasfl.deployment.pacing import Link, SlowTo
from hasfl.deployment.programs import WorkerSettings
from hasfl.deployment.samples import load_samples
from hasfl.errors import HasflError, InputError
from hasfl.units import Dimension, parse_quantity

DEVICE = "device-"  # prefix of the common name in a device's certificate


def main() -> None:
    """Run the worker with the settings file that the command names, until SIGTERM or Ctrl-C."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    settings = WorkerSettings(**json.loads(Path(sys.argv[-1]).read_text()))
    try:
        with open_worker(settings):
            ending.wait()
    except HasflError as error:
        sys.exit(f"hasfl: {error}")


def open_worker(settings: WorkerSettings) -> AbstractContextManager[object]:
    """Open the worker of a device or of the edge server, as the name in its certificate says."""
    torch.set_num_threads(settings.threads)
    name = certificate_name(Path(settings.keys))
    if name == EDGE_NAME:
        return _edge_worker(settings)
    index = name.removeprefix(DEVICE)
    if not (name.startswith(DEVICE) and index.isascii() and index.isdecimal()):
        raise InputError(
            f"{settings.keys} must hold the keys of a device or of the edge server, but its certificate is "
            f"that of {name!r}"
        )
    return _device_worker(settings, int(index))


def _device_worker(settings: WorkerSettings, index: int) -> DeviceWorker:
    if not settings.data:
        raise InputError("a device needs its samples: give --data FILE, an .npz file with x and y")
    setup = DeviceSetup(
        index,
        load_samples(Path(settings.data)),
        memory=parse_quantity(settings.memory, Dimension.SIZE) if settings.memory else None,
        sharers=settings.sharers,
        slow=SlowTo.parse(settings.slow_to) if settings.slow_to else None,
        trusted=settings.trust,
    )
    return DeviceWorker(
        index,
        Path(settings.keys),
        Path(settings.state),
        lambda offer: DeviceInSession(setup),
        hello=setup.hello,
        fed_pace=Link.parse(settings.link) if settings.link else None,
        edge_pace=Link.parse(settings.link) if settings.link else None,
    )


def _edge_worker(settings: WorkerSettings) -> EdgeWorker:
    setup = EdgeSetup(
        Path(settings.state),
        settings.announce or settings.listen,
        test=load_samples(Path(settings.test)) if settings.test else None,
        trusted=settings.trust,
    )
    return EdgeWorker(
        settings.listen,
        Path(settings.keys),
        Path(settings.state),
        lambda offer, links: EdgeInSession(setup, links),
        hello=setup.hello,
        pace=Link.parse(settings.link) if settings.link else None,
    )


if __name__ == "__main__":
    main()
