"""Runs a fleet of worker processes without Flower; the fed server is in the benchmark's process.

TLS, tokens, streams and workers are those of a deployment. In a deployment, Flower carries the offers of
sessions; here they are handed to the workers' sockets.
"""

import json
import secrets
import socket
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from hasfl.deployment.addresses import SOCKET_FILE, free_port
from hasfl.deployment.asking import PartyServer, party_name
from hasfl.deployment.channels import EDGE_NAME, FED_NAME, device_name
from hasfl.deployment.fields import Message
from hasfl.deployment.keys import DEVICES_FOLDER, make_keys
from hasfl.deployment.links import Answer
from hasfl.deployment.orders import RunOrder
from hasfl.deployment.programs import Program, Supervisor, WorkerSettings, worker_program
from hasfl.deployment.samples import export_samples
from hasfl.deployment.training import train_on_fleet
from hasfl.record import EDGE, RoundRecord
from hasfl.runs.request import RunRequest
from hasfl.runs.scenario import read_scenario
from hasfl.runs.store import RunFolder
from hasfl.runs.task import shared_data

HERE = "127.0.0.1"
CONNECTING_SECONDS = 300.0  # time limit for all workers to connect
SCENARIO = """seed = 0
[data]
name = "digits"
[fleet]
devices = {devices}
[training]
interval = {interval}
learning_rate = 0.05
serve = "last"
evaluate_every = {rounds}
[stop]
rounds = {rounds}
"""


class TimedServer(PartyServer):
    """A party server that records the waiting times for answers, by kind of question and party."""

    def __init__(self, keys: Path, host: str = HERE) -> None:
        self.waited: dict[tuple[str, str], list[float]] = defaultdict(list)
        super().__init__(FED_NAME, f"{host}:0", keys / FED_NAME)

    def ask(self, questions: Mapping[int, Message], seconds: float) -> Mapping[int, Answer[Message]]:
        began = time.perf_counter()
        answers = super().ask(questions, seconds)
        for party, message in questions.items():
            asked = "edge server" if party == EDGE else "devices"
            self.waited[message.kind, asked].append(time.perf_counter() - began)
            break
        return answers

    def milliseconds(self, kind: str, asked: str) -> float:
        """The median waiting time for the answers to one kind of question, in milliseconds."""
        return 1e3 * statistics.median(self.waited[kind, asked])


def write_scenario(folder: Path, *, devices: int, rounds: int, interval: int) -> Path:
    path = folder / "scenario.toml"
    path.write_text(SCENARIO.format(devices=devices, rounds=rounds, interval=interval))
    return path


class WorkerFleet:
    """Workers for a scenario's devices and the edge server, connected to a fed server in this process."""

    def __init__(
        self,
        folder: Path,
        scenario: Path,
        *,
        hosts: tuple[str, str] = (HERE, HERE),  # addresses of the fed server and of the edge server
        prefix: Mapping[int, Sequence[str]] | None = None,  # words before a party's command, by party
    ) -> None:
        self.folder, self.scenario = folder, scenario
        self.hosts, self.prefix = hosts, prefix or {}
        self.keys = folder / "keys"
        self.devices = 0
        self.server: TimedServer
        self.programs: Supervisor

    def processes(self) -> Mapping[str, int]:
        """The process numbers of all parties, by name."""
        return self.programs.running()

    @contextmanager
    def running(self) -> Iterator["WorkerFleet"]:
        settings = self._settings()
        programs = [self._program(party, each) for party, each in settings.items()]
        with (
            Supervisor(programs) as self.programs,
            closing(TimedServer(self.keys, self.hosts[0])) as self.server,
        ):
            self._connect(settings)
            yield self

    def train(self, strategy: str, name: str) -> list[RoundRecord]:
        """Train with a strategy, and return the records."""
        path = self.folder / name
        request = RunRequest.of(self.scenario, self.folder, strategy_name=strategy, seed=0, name=name)
        order = RunOrder(request=request, devices=self.devices)
        train_on_fleet(self.server, order)
        with RunFolder.open(path) as run:
            return run.records()

    def _settings(self) -> dict[int, WorkerSettings]:
        scenario = read_scenario(self.scenario)
        names = scenario.draw().names
        self.devices = len(names)
        data, shares = shared_data(scenario, names, folder=self.folder)
        *files, test = export_samples(data, shares, names, self.folder / "data")
        make_keys(
            self.keys,
            devices=[device_name(index) for index in range(self.devices)],
            fed=[self.hosts[0]],
            edge=[self.hosts[1]],
        )
        address = f"{self.hosts[1]}:{free_port()}"
        edge = WorkerSettings(
            keys=str(self.keys / EDGE_NAME), state=str(self.folder / EDGE_NAME), listen=address,
            announce=address, test=str(test),
        )  # fmt: skip
        settings = {EDGE: edge}
        for index, file in enumerate(files):
            keys = self.keys / DEVICES_FOLDER / device_name(index)
            state = str(self.folder / str(index))
            settings[index] = WorkerSettings(keys=str(keys), state=state, data=str(file))
        return settings

    def _program(self, party: int, settings: WorkerSettings) -> Program:
        program = replace(worker_program(settings), name=party_name(party))
        if party not in self.prefix:
            return program
        return replace(program, command=(*self.prefix[party], *program.command))

    def _connect(self, settings: Mapping[int, WorkerSettings]) -> None:
        tokens = {party: secrets.token_hex(32) for party in settings}
        self.server.allow(tokens)
        for party, each in settings.items():
            offer = {"fed": f"{self.hosts[0]}:{self.server.port}", "token": tokens[party], "run": "bench"}
            hand_over(Path(each.state) / SOCKET_FILE, offer)
        missing = settings.keys() - self.server.wait_until_present(settings, CONNECTING_SECONDS)
        if missing:
            raise TimeoutError(f"{sorted(missing)} did not connect")


def hand_over(worker_socket: Path, offer: Mapping[str, str]) -> None:
    """Offer a session to a worker as soon as the worker listens."""
    end = time.monotonic() + CONNECTING_SECONDS
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(worker_socket))
                connection.sendall(json.dumps(offer).encode() + b"\n")
                connection.makefile("rb").readline()
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def outside_steps(record: RoundRecord) -> float:
    """Seconds of a round outside steps a1 to a5: its span, minus Eq. (38) with the measured steps."""
    assert record.measured is not None
    steps = record.measured.measured
    up = _slowest(steps["device_forward"], steps["activation_upload"])
    down = _slowest(steps["gradient_download"], steps["device_backward"])
    server = steps["server_forward"][EDGE] + steps["server_backward"][EDGE]
    return record.measured.spans["split_training"] - up - server - down


def _slowest(one: Mapping[int, float], other: Mapping[int, float]) -> float:
    return max(one[party] + other[party] for party in one.keys() & other.keys())
