"""A whole deployment on this machine: fed server, edge server and devices, with TLS and node keys."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from hasfl.deployment.channels import EDGE, FED, device_name
from hasfl.deployment.flower import processes
from hasfl.deployment.hosting import worker
from hasfl.deployment.hosting.hosts import FedSettings, fed_host
from hasfl.deployment.hosting.nursery import Nursery
from hasfl.deployment.hosting.orders import RunOrder
from hasfl.deployment.hosting.places import Place, free_port
from hasfl.deployment.hosting.supervision import Program, Supervisor
from hasfl.deployment.hosting.worker import WorkerSettings
from hasfl.deployment.keys import DEVICES_FOLDER, admitted, make_keys
from hasfl.paths import is_there

if TYPE_CHECKING:
    from hasfl.deployment.flower.submission import Control

HERE = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDevice:
    """A device of a local fleet; quantities are as people write them."""

    data: str = ""
    memory: str = ""
    slow_to: str = ""
    link: str = ""


class LocalFleet:
    """Starts and ends everything: `with LocalFleet(folder, devices) as fleet: fleet.submit(order)`.

    The folder keeps the keys, and the state and logs of each party.
    """

    def __init__(
        self,
        folder: Path,
        devices: Sequence[LocalDevice],
        *,
        test: str = "",
        make: str | None = None,
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.folder = folder
        self.devices = tuple(devices)
        self._test = test
        self._make = make
        self._tell = tell
        self._parts = ExitStack()
        self._supervisors: list[Supervisor] = []
        self.control: Control

    @property
    def fed_state(self) -> Path:
        """The fed server's state folder."""
        return self.folder / FED

    def __enter__(self) -> "LocalFleet":
        with ExitStack() as parts:
            self._start(parts)
            self._parts = parts.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._parts.close()

    def submit(self, order: RunOrder) -> int:
        """Start a run, and give its number."""
        return self.control.start(self.fed_state, order)

    def running(self) -> Mapping[str, int]:
        """The process numbers of all programs that run now: superlink, superexec, device-0/supernode, …"""
        return {name: number for running in self._supervisors for name, number in running.running().items()}

    def _start(self, parts: ExitStack) -> None:
        """Start all programs; first the workers, which take a while to be ready."""
        keys = self._keys()
        superlink, listen = f"{HERE}:{free_port()}", f"{HERE}:{free_port()}"
        flower = parts.enter_context(self._nursery("flower", processes.MODULES))
        torch = parts.enter_context(self._nursery("workers", worker.MODULES))
        settings = self._workers(keys)
        workers = [_named(party, worker.worker_program(own)) for party, own in settings.items()]
        self._supervisors.append(parts.enter_context(Supervisor(workers, self._tell, torch.start)))
        fed = FedSettings(keys=keys / FED, state=self.fed_state, superlink=superlink, listen=listen)
        running = parts.enter_context(fed_host(fed, self._tell, flower.start))
        self.control = running.control
        self._supervisors.append(running.programs)
        nodes = [
            _named(party, program)
            for party, own in settings.items()
            for program in processes.node_programs(
                Place(Path(own.keys), Path(own.state)), superlink, free_port()
            )
        ]
        self._supervisors.append(parts.enter_context(Supervisor(nodes, self._tell, flower.start)))

    def _keys(self) -> Path:
        """The folder with all keys: those of an earlier fleet in this folder, or new ones."""
        keys, names = self.folder / "keys", [device_name(index) for index in range(len(self.devices))]
        if not is_there(keys) or admitted(keys) != names:
            make_keys(keys, devices=names, fed=[HERE], edge=[HERE])
        return keys

    def _nursery(self, name: str, modules: Sequence[str]) -> Nursery:
        log = self.folder / "logs" / f"{name}.log"
        return Nursery(modules, log, {**os.environ, **processes.OFFLINE})

    def _workers(self, keys: Path) -> dict[str, WorkerSettings]:
        """The settings of all workers, by party."""
        address = f"{HERE}:{free_port()}"
        edge = WorkerSettings(
            keys=str(keys / EDGE),
            state=str(self.folder / EDGE),
            listen=address,
            announce=address,
            test=self._test,
        )
        workers = {EDGE: edge}
        for index, device in enumerate(self.devices):
            name = device_name(index)
            workers[name] = WorkerSettings(
                keys=str(keys / DEVICES_FOLDER / name),
                state=str(self.folder / name),
                data=device.data,
                memory=device.memory,
                sharers=len(self.devices),
                slow_to=device.slow_to,
                link=device.link,
            )
        if self._make is None:
            return workers
        return {name: replace(own, make=self._make) for name, own in workers.items()}


def _named(party: str, program: Program) -> Program:
    return replace(program, name=f"{party}/{program.name}")
