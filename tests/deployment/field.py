"""A fleet of real processes on loopback that trains, without Flower: fed server, edge server and devices."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from hasfl.deployment.addresses import SOCKET_FILE, free_port
from hasfl.deployment.keys import make_keys
from hasfl.deployment.programs import Program, Supervisor, WorkerSettings, start_program, worker_program
from hasfl.deployment.samples import export_samples
from hasfl.record import EDGE
from hasfl.runs.scenario import read_scenario
from hasfl.runs.task import shared_data
from tests.deployment.fleets import ordered

HERE = "127.0.0.1"
INTERVAL = 4
STRATEGY = "b=8+rms"  # cuts move by chance, from the seed alone: plans do not depend on what is measured
SCENARIO = """seed = 3
[data]
name = "digits"
[fleet]
devices = {devices}
[training]
interval = {interval}
learning_rate = 0.05
strategy = "{strategy}"
evaluate_every = 1000000
[stop]
rounds = {rounds}
"""


def until(condition: Callable[[], object], seconds: float, what: str = "it") -> float:
    """Wait until something is so, and say how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.02)
    return time.monotonic() - began


def write_scenario(folder: Path, devices: int, rounds: int) -> tuple[Path, list[Path]]:
    """A scenario, and the files with the samples of its devices; the last file is the test set."""
    path = folder / f"rounds{rounds}.toml"
    text = SCENARIO.format(devices=devices, interval=INTERVAL, strategy=STRATEGY, rounds=rounds)
    path.write_text(text)
    if (folder / "data").exists():
        return path, sorted((folder / "data").glob("*.npz"))
    scenario = read_scenario(path)
    names = scenario.draw().names
    data, shares = shared_data(scenario, names, folder=folder)
    return path, list(export_samples(data, shares, names, folder / "data"))


@dataclass
class Run:
    """The folder of a run, while somebody trains it or afterwards."""

    path: Path

    def lines(self) -> list[str]:
        """The whole lines of the records."""
        with suppress(OSError):
            return (self.path / "rounds.jsonl").read_text().split("\n")[:-1]
        return []

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines()]

    def rounds(self) -> int:
        return len(self.lines())

    def losses(self) -> list[float]:
        return [record["loss"] for record in self.records()]

    def until_round(self, number: int, seconds: float = 60.0) -> float:
        return until(lambda: self.rounds() >= number, seconds, f"round {number}")

    def until_next_interval(self, seconds: float = 60.0) -> float:
        """Wait until the present interval is over."""
        return self.until_round((self.rounds() // INTERVAL + 1) * INTERVAL, seconds)

    def until_middle_of_round(self, seconds: float = 60.0) -> None:
        """Wait until a round that does not end an interval has just begun."""
        before = self.rounds()
        until(lambda: (now := self.rounds()) > before and now % INTERVAL == 1, seconds, "a new interval")
        time.sleep(0.05)

    def drop_after(self, rounds: int, device: int) -> tuple[int, str] | None:
        """After so many rounds, the round in which a device was dropped and why; None if it was not."""
        for record in self.records()[rounds:]:
            if (reason := record["measured"]["dropped"].get(str(device))) is not None:
                return record["round"], str(reason)
        return None

    def trains_after(self, rounds: int, device: int) -> bool:
        """Whether a device took part in a round after so many."""
        return any(takes_part(record, device) for record in self.records()[rounds:])

    def trains(self, device: int) -> bool:
        """Whether a device took part in the last round."""
        return takes_part(self.records()[-1], device)


def takes_part(record: Mapping[str, Any], device: int) -> bool:
    """Whether a device sent activations in a round and took its gradients."""
    return str(device) in record["measured"]["measured"].get("device_backward", {})


class Field:
    """`with Field(folder, devices) as field: run = field.train("a", 20)`; devices are settings to change."""

    def __init__(self, folder: Path, devices: Sequence[Mapping[str, Any]]) -> None:
        self.folder, self.count = folder, len(devices)
        self.listen = f"{HERE}:{free_port()}"
        self.edge_listen = f"{HERE}:{free_port()}"
        self.keys = folder / "keys"
        names = [f"device-{i}" for i in range(self.count)]
        make_keys(self.keys, devices=names, fed=[HERE], edge=[HERE])
        _, files = write_scenario(folder, self.count, 1)
        edge = WorkerSettings(
            keys=str(self.keys / "edge"),
            state=str(folder / "edge"),
            listen=self.edge_listen,
            announce=self.edge_listen,
            test=str(files[-1]),
        )
        self.settings = {EDGE: edge}
        for i, changed in enumerate(devices):
            plain = WorkerSettings(
                keys=str(self.keys / "devices" / names[i]), state=str(folder / names[i]), data=str(files[i])
            )
            self.settings[i] = replace(plain, **changed)
        self.faulty: dict[int, str] = {}  # workers with a fault, and which one
        self._parts = ExitStack()
        self.fed: subprocess.Popen[bytes] | None = None
        self.old_tokens: dict[str, str] = {}  # of the run before

    def change(self, party: int, **changed: Any) -> None:
        """Give a worker other settings, before it starts."""
        self.settings[party] = replace(self.settings[party], **changed)

    def __enter__(self) -> Self:
        with ExitStack() as parts:
            programs = [self._program(party) for party in self.settings]
            self.workers = parts.enter_context(Supervisor(programs))
            parts.callback(self.kill_fed)
            self._parts = parts.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._parts.close()

    def _program(self, party: int) -> Program:
        program = replace(worker_program(self.settings[party]), name=str(party))
        if party not in self.faulty:
            return program
        command = (sys.executable, "-m", "tests.deployment.fault_workers", self.faulty[party])
        return replace(program, command=(*command, program.command[-1]))

    def train(self, name: str, rounds: int, *, resume: bool = False) -> Run:
        """Start a fed server that trains; it ends the one before by force."""
        self.kill_fed()
        if (tokens := self.folder / "tokens.json").exists():
            self.old_tokens = json.loads(tokens.read_text())
        scenario, _ = write_scenario(self.folder, self.count, rounds)
        order = ordered(
            self.folder / name,
            scenario,
            strategy=STRATEGY,
            seed=3,
            devices=self.count,
            patience=60.0,
            resume=resume,
        )
        (self.folder / "done").unlink(missing_ok=True)
        told = {
            "order": order.as_json(),
            "keys": str(self.keys / "fed"),
            "listen": self.listen,
            "sockets": {p: str(Path(own.state).resolve() / SOCKET_FILE) for p, own in self.settings.items()},
            "tokens": str(tokens),
            "done": str(self.folder / "done"),
        }
        path = self.folder / "order.json"
        path.write_text(json.dumps(told))
        program = Program(
            name="fed",
            command=(sys.executable, "-m", "tests.deployment.field_fed", str(path)),
            log=self.folder / "fed.log",
        )
        self.fed = start_program(program)
        return Run(self.folder / name)

    def kill_fed(self) -> None:
        """Kill the process that trains."""
        if self.fed is not None and self.fed.poll() is None:
            os.kill(self.fed.pid, signal.SIGKILL)
            self.fed.wait(10.0)

    @property
    def trains(self) -> bool:
        """Whether the fed server still works."""
        return self.fed is not None and self.fed.poll() is None

    def until_done(self, seconds: float = 120.0) -> float:
        """Wait until the run is finished, and say how long it took."""
        took = until(lambda: not self.trains, seconds, "the end of the run")
        assert (self.folder / "done").exists(), self.log()[-3000:]
        return took

    def log(self) -> str:
        return (self.folder / "fed.log").read_text()

    def signal(self, party: int, number: signal.Signals) -> int:
        """Send a signal to a worker; returns its process."""
        pid = self.workers.running()[str(party)]
        os.kill(pid, number)
        return pid

    @contextmanager
    def stopped(self, party: int) -> Iterator[None]:
        """A worker hangs for a while."""
        pid = self.signal(party, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


class Cord:
    """Carries bytes to an address on another port; can be cut, and can hold everything back."""

    def __init__(self, target: str) -> None:
        self._target = (HERE, int(target.rpartition(":")[2]))
        self._listener = socket.create_server((HERE, 0))
        self._ends: list[socket.socket] = []
        self._flows = threading.Event()
        self._flows.set()
        self.is_cut = False
        self.address = f"{HERE}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break all connections, and refuse new ones."""
        self.is_cut = True
        while self._ends:
            with suppress(OSError):
                self._ends.pop().shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Carry again."""
        self.is_cut = False
        self._flows.set()

    def hold(self) -> None:
        """Carry nothing, and tell nobody, as a cable that was pulled out."""
        self._flows.clear()

    def close(self) -> None:
        self.cut()
        self._flows.set()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        with near, suppress(OSError):
            self._flows.wait()
            if self.is_cut:
                return
            with socket.create_connection(self._target) as far:
                self._ends += [near, far]
                back = threading.Thread(target=self._carry, args=(near, far), daemon=True)
                back.start()
                self._carry(far, near)
                back.join()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
