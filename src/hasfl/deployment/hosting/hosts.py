"""The programs that run on the host of the fed server, of the edge server and of a device."""

import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hasfl.deployment.channels import EDGE, FED
from hasfl.deployment.flower.processes import fed_programs, node_programs
from hasfl.deployment.hosting.orders import FedHost, write_host
from hasfl.deployment.hosting.places import (
    FED_ADDRESS,
    SUPERLINK_ADDRESS,
    Place,
    free_port,
    require_free,
    require_private,
    split_address,
)
from hasfl.deployment.hosting.supervision import Program, Started, Supervisor, start_program
from hasfl.deployment.hosting.worker import WorkerSettings, worker_program
from hasfl.deployment.keys import NODES_FOLDER, certificate_name
from hasfl.errors import InputError

if TYPE_CHECKING:
    from hasfl.deployment.flower.submission import Control

READY_SECONDS = 120.0  # that a SuperLink has to answer after its start
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FedSettings:
    """How the fed server's host serves."""

    keys: Path
    state: Path
    superlink: str = SUPERLINK_ADDRESS  # of Flower; loopback or private
    listen: str = FED_ADDRESS  # where the edge server and devices connect during a run
    announce: str = ""  # what they are told to connect to, if it is not the same


@dataclass(frozen=True, slots=True)
class RunningFed:
    """The fed server's host while it serves."""

    control: "Control"
    programs: Supervisor


@contextmanager
def fed_host(
    settings: FedSettings, tell: Tell, start: Callable[[Program], Started] = start_program
) -> Iterator[RunningFed]:
    """Run SuperLink and SuperExec, and admit the nodes whose public keys are in the fed server's folder."""
    place = Place(settings.keys, settings.state)
    split_address(settings.announce or settings.listen)
    programs = fed_programs(place, require_private(settings.superlink))
    require_free(settings.superlink, "the SuperLink")
    require_free(settings.listen, "the fed server")
    host = FedHost(
        keys=str(settings.keys.resolve()),
        listen=settings.listen,
        announce=settings.announce or settings.listen,
        superlink=settings.superlink,
    )
    write_host(settings.state, host)
    keys = node_keys(settings.keys)
    with Supervisor(programs, tell, start) as running:
        from hasfl.deployment.flower.submission import control  # flwr is imported while the programs start

        with control(settings.superlink, settings.keys) as api:
            _wait_until_ready(api, place)
            api.admit(keys)
            yield RunningFed(api, running)


@contextmanager
def node_host(worker: WorkerSettings, superlink: str, tell: Tell) -> Iterator[Supervisor]:
    """Run a worker with its SuperNode and SuperExec."""
    place = Place(Path(worker.keys), Path(worker.state))
    _require_own(worker)
    with Supervisor([worker_program(worker), *node_programs(place, superlink, free_port())], tell) as running:
        yield running


def _require_own(worker: WorkerSettings) -> None:
    """Refuse keys, addresses and files with which the worker could only fail again and again."""
    name = certificate_name(Path(worker.keys))
    wanted = "the edge server" if worker.listen else "a device"
    if name == FED or (name == EDGE) != bool(worker.listen):
        raise InputError(
            f"{worker.keys} must hold the keys of {wanted}, but its certificate is that of {name}: give the "
            "folder that hasfl keys made for this party"
        )
    if worker.listen:
        split_address(worker.announce or worker.listen)
        require_free(worker.listen, "the edge server")
    for file in filter(None, (worker.data, worker.test)):
        if not zipfile.is_zipfile(file):
            raise InputError(
                f"{file} must be an .npz file with samples x and labels y, but is another kind of file: make "
                "it with hasfl data SCENARIO --export DIR, or with numpy.savez"
            )


def node_keys(fed_keys: Path) -> dict[str, Path]:
    """The public keys of all nodes that the fed server admits, by the names of their parties."""
    found = {path.stem: path for path in sorted((fed_keys / NODES_FOLDER).glob("*.pub"))}
    if not found:
        raise InputError(
            f"{fed_keys / NODES_FOLDER} must hold the public keys of the nodes, and has none: make them with "
            "hasfl keys"
        )
    return found


def _wait_until_ready(api: "Control", place: Place) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not api.ready():
        if time.monotonic() > deadline:
            raise InputError(
                f"the SuperLink at {api.superlink} does not answer after {READY_SECONDS:g} s: "
                f"{place.log('superlink')} says why"
            )
        time.sleep(0.1)
