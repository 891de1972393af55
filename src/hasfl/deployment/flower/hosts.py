"""The programs of a host: the fed server's host, the edge server's, a device's, or all on one machine."""

import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hasfl.deployment.addresses import free_port, log_file, require_free, split_address
from hasfl.deployment.channels import EDGE_NAME, FED_NAME, device_name
from hasfl.deployment.flower.processes import fed_programs, node_programs
from hasfl.deployment.keys import DEVICES_FOLDER, NODES_FOLDER, admitted, certificate_name, make_keys
from hasfl.deployment.orders import FedHost, OrderFolder, RunOrder
from hasfl.deployment.programs import Program, Supervisor, WorkerSettings, worker_program
from hasfl.errors import InputError
from hasfl.paths import is_there

if TYPE_CHECKING:
    from hasfl.deployment.flower.control import Control

READY_SECONDS = 120.0  # time limit for a SuperLink to answer after its start; chosen by hand
HERE = "127.0.0.1"
Tell = Callable[[str], None]


# ── the fed server's host ────────────────────────────────────────────────────────────────────────────────


@contextmanager
def fed_host(host: FedHost, state: Path, tell: Tell) -> Iterator[tuple["Control", Supervisor]]:
    """Run SuperLink and SuperExec, and admit the nodes whose public keys are in the fed server's folder."""
    split_address(host.told)
    programs = fed_programs(host.keys, state, host.superlink)
    require_free(host.superlink, "the SuperLink")
    require_free(host.listen, "the fed server")
    host.write(state)
    keys = node_keys(host.keys)
    with Supervisor(programs, tell) as running:
        from hasfl.deployment.flower.control import Control  # late, to import flwr while the programs start

        with Control(host.superlink, host.keys) as control:
            _wait_until_ready(control, state)
            control.admit(keys)
            yield control, running


def node_keys(fed_keys: Path) -> dict[str, Path]:
    """The public-key files of all nodes that the fed server admits, by the name of the party."""
    found = {path.stem: path for path in sorted((fed_keys / NODES_FOLDER).glob("*.pub"))}
    if not found:
        raise InputError(
            f"{fed_keys / NODES_FOLDER} must hold the public keys of the nodes, and has none: make them with "
            "hasfl keys"
        )
    return found


def _wait_until_ready(control: "Control", state: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not control.ready():
        if time.monotonic() > deadline:
            raise InputError(
                f"the SuperLink at {control.superlink} does not answer after {READY_SECONDS:g} s: "
                f"{log_file(state, 'superlink')} says why"
            )
        time.sleep(0.1)


# ── the edge server's host, and a device's ───────────────────────────────────────────────────────────────


@contextmanager
def node_host(worker: WorkerSettings, superlink: str, tell: Tell) -> Iterator[None]:
    """Run a worker with its SuperNode and SuperExec."""
    _require_own(worker)
    node = node_programs(Path(worker.keys), Path(worker.state), superlink, free_port())
    with Supervisor([worker_program(worker), *node], tell):
        yield


def _require_own(worker: WorkerSettings) -> None:
    """Refuse keys, addresses and files with which the worker could not start."""
    name = certificate_name(Path(worker.keys))
    wanted = "the edge server" if worker.listen else "a device"
    if name == FED_NAME or (name == EDGE_NAME) != bool(worker.listen):
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


# ── all hosts on this machine ────────────────────────────────────────────────────────────────────────────


class LocalFleet:
    """A whole fleet on this machine: `with LocalFleet(folder, devices) as fleet: fleet.submit(order)`.

    The folder holds the keys, and the state and logs of each party. `devices` are settings without keys and
    state.
    """

    def __init__(
        self,
        folder: Path,
        devices: Sequence[WorkerSettings],
        *,
        test: str = "",
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.folder = folder
        self.devices = tuple(devices)
        self._test = test
        self._tell = tell
        self._open = ExitStack()
        self._supervisors: list[Supervisor] = []
        self.control: Control

    @property
    def fed_state(self) -> Path:
        """The fed server's state folder."""
        return self.folder / FED_NAME

    def __enter__(self) -> "LocalFleet":
        keys = self._keys()
        superlink = f"{HERE}:{free_port()}"
        workers = self._workers(keys)
        with ExitStack() as parts:
            # Workers are first because they start slowest.
            self._supervise(parts, {party: [worker_program(own)] for party, own in workers.items()})
            fed = FedHost(keys=keys / FED_NAME, superlink=superlink, listen=f"{HERE}:{free_port()}")
            self.control, running = parts.enter_context(fed_host(fed, self.fed_state, self._tell))
            self._supervisors.append(running)
            nodes = {
                party: node_programs(Path(own.keys), Path(own.state), superlink, free_port())
                for party, own in workers.items()
            }
            self._supervise(parts, nodes)
            self._open = parts.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def submit(self, order: RunOrder) -> int:
        """Start a run, and return its number at Flower."""
        return self.control.start(self.fed_state, OrderFolder.write(self.fed_state, order).name)

    def running(self) -> Mapping[str, int]:
        """The process numbers of running programs, by name: superlink, superexec, device-0/supernode, …"""
        return {name: number for running in self._supervisors for name, number in running.running().items()}

    def _supervise(self, parts: ExitStack, programs: Mapping[str, Sequence[Program]]) -> None:
        """Keep programs running under names that begin with their party."""
        named = [
            replace(program, name=f"{party}/{program.name}")
            for party, own in programs.items()
            for program in own
        ]
        self._supervisors.append(parts.enter_context(Supervisor(named, self._tell)))

    def _keys(self) -> Path:
        """The folder with all keys; makes new keys unless an earlier fleet left those of the same devices."""
        keys, names = self.folder / "keys", [device_name(index) for index in range(len(self.devices))]
        if not is_there(keys) or admitted(keys) != names:
            make_keys(keys, devices=names, fed=[HERE], edge=[HERE])
        return keys

    def _workers(self, keys: Path) -> dict[str, WorkerSettings]:
        """The settings of all workers, by party."""
        edge = WorkerSettings(
            keys=str(keys / EDGE_NAME),
            state=str(self.folder / EDGE_NAME),
            listen=f"{HERE}:{free_port()}",
            test=self._test,
        )
        workers = {EDGE_NAME: edge}
        for index, device in enumerate(self.devices):
            name = device_name(index)
            own = str(keys / DEVICES_FOLDER / name)
            workers[name] = replace(
                device, keys=own, state=str(self.folder / name), sharers=len(self.devices)
            )
        return workers
