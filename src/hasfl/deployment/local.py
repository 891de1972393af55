"""A whole deployment on this machine: fed server, edge server and devices, with TLS and node keys."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from hasfl.deployment.channels import EDGE, FED
from hasfl.deployment.flower.processes import node_programs
from hasfl.deployment.hosting.addresses import free_port
from hasfl.deployment.hosting.hosts import FedSettings, fed_host
from hasfl.deployment.hosting.orders import RunOrder
from hasfl.deployment.hosting.places import Place
from hasfl.deployment.hosting.supervision import Program, Supervisor
from hasfl.deployment.hosting.worker import WorkerSettings, worker_program
from hasfl.deployment.keys import DEVICES_FOLDER, make_keys

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

    Keys are made anew each time. The folder keeps the logs, in one folder for each party.
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
        self._supervisors: dict[str, Supervisor] = {}
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
        return {
            name: number
            for running in self._supervisors.values()
            for name, number in running.running().items()
        }

    def _start(self, parts: ExitStack) -> None:
        """Start all programs; first the workers, which take a while to be ready."""
        keys = self.folder / "keys"
        names = [f"device-{index}" for index in range(len(self.devices))]
        make_keys(keys, devices=names, fed=[HERE], edge=[HERE])
        superlink = f"{HERE}:{free_port()}"
        fed = FedSettings(
            keys=keys / FED, state=self.fed_state, superlink=superlink, listen=f"{HERE}:{free_port()}"
        )
        workers = self._workers(keys)
        self._supervise(
            parts, "workers", {name: [worker_program(worker)] for name, worker in workers.items()}
        )
        running = parts.enter_context(fed_host(fed, self._tell))
        self.control, self._supervisors[FED] = running.control, running.programs
        nodes = {
            name: node_programs(Place(Path(worker.keys), Path(worker.state)), superlink, free_port())
            for name, worker in workers.items()
        }
        self._supervise(parts, "nodes", nodes)

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
            name = f"device-{index}"
            workers[name] = WorkerSettings(
                keys=str(keys / DEVICES_FOLDER / name),
                state=str(self.folder / name),
                data=device.data,
                memory=device.memory,
                slow_to=device.slow_to,
                link=device.link,
            )
        if self._make is None:
            return workers
        return {name: replace(worker, make=self._make) for name, worker in workers.items()}

    def _supervise(self, parts: ExitStack, what: str, programs: Mapping[str, Sequence[Program]]) -> None:
        named = [
            replace(program, name=f"{party}/{program.name}")
            for party, own in programs.items()
            for program in own
        ]
        self._supervisors[what] = parts.enter_context(Supervisor(named, self._tell))
