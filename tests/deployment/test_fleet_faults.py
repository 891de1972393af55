"""Faults of a whole fleet that trains through Flower: SuperLink, SuperNodes, ServerApp and workers killed.

The tests share a fleet and build on each other: one device is away from the third test to the last but one.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

import pytest

from hasfl.deployment.addresses import free_port, log_file
from hasfl.deployment.flower.hosts import LocalFleet
from hasfl.deployment.flower.processes import node_programs
from hasfl.deployment.keys import add_devices
from hasfl.deployment.programs import Supervisor, WorkerSettings
from tests.deployment.field import INTERVAL, STRATEGY, Run, takes_part, until, write_scenario
from tests.deployment.fleets import ordered
from tests.deployment.test_faults import keeping_what_is_complete, tell
from tests.deployment.test_programs import descendants, lives

pytestmark = pytest.mark.fleet

DEVICES = 3
KILLED, AWAY = 0, 2  # devices; nothing happens to the worker of device 1
ENDLESS = 1_000_000  # rounds


class Fleet:
    """Everything on this machine, in the middle of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        _, files = write_scenario(folder, DEVICES, ENDLESS)
        self.local = LocalFleet(
            folder / "fleet", [WorkerSettings(data=str(file), link="2 Mbps") for file in files[:DEVICES]]
        )
        self.run = Run(folder / "run")
        self.number = 0
        self.gone = 0.0  # when the device that is away was killed
        self.accepted = 0  # how often the SuperLink had accepted device 1 when its SuperNode was killed

    def order(self, rounds: int, *, resume: bool = False) -> None:
        scenario, _ = write_scenario(self.folder, DEVICES, rounds)
        order = ordered(
            self.run.path,
            scenario,
            strategy=STRATEGY,
            seed=3,
            devices=DEVICES,
            patience=300.0,
            resume=resume,
        )
        self.number = self.local.submit(order)

    def kill(self, name: str) -> int:
        """Kill a program, and say which process it was."""
        process = self.local.running()[name]
        os.kill(process, signal.SIGKILL)
        return process

    def kill_server_app(self) -> None:
        """Kill what the fed server's SuperExec has started."""
        parent = self.local.running()["superexec"]
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        assert children
        for child in children:
            os.kill(int(child), signal.SIGKILL)

    def acceptances(self, device: int) -> int:
        """How often the SuperLink has accepted the SuperNode of a device."""
        log = log_file(self.folder / "fleet" / f"device-{device}", "supernode")
        return log.read_text().count("SuperNode ID")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Its folder is near the root, since sockets have short paths. No process is left when it ends."""
    fleet = Fleet(Path(os.path.realpath(tmp_path_factory.mktemp("f"))))
    began, before = time.monotonic(), descendants(os.getpid())
    with fleet.local:
        fleet.order(ENDLESS)
        fleet.run.until_round(INTERVAL + 1, 300)
        tell("start of the fleet and of its first run", time.monotonic() - began)
        yield fleet
        started = descendants(os.getpid()) - before
    until(lambda: not any(lives(process) for process in started), 10, "the end of all processes")


def test_a_key_that_is_not_admitted_is_refused(fleet: Fleet) -> None:
    control, keys, state = fleet.local.control, fleet.folder / "fleet" / "keys", fleet.folder / "stranger"
    admitted = {"edge", "device-0", "device-1", "device-2"}
    assert {node.name for node in control.nodes() if node.status == "online"} == admitted
    add_devices(keys, devices=["stranger"])
    node = node_programs(keys / "devices" / "stranger", state, control.superlink, free_port())[:1]
    with Supervisor(node) as running:
        until(lambda: running.starts()["supernode"] >= 2, 90, "the second try")
    assert "Failed to initialize the connection to the SuperLink" in log_file(state, "supernode").read_text()
    assert {node.name for node in control.nodes()} == admitted
    control.admit({path.stem: path for path in (keys / "fed" / "nodes").glob("*.pub")})
    assert {node.name for node in control.nodes()} == {*admitted, "device-3"}
    rmtree(keys / "devices" / "stranger")


def test_supernode_killed_while_its_worker_goes_on(fleet: Fleet) -> None:
    """The tests that follow see that device 1 takes part in every round; a later one, that it came back."""
    fleet.accepted = fleet.acceptances(1)
    fleet.kill("device-1/supernode")
    fleet.run.until_next_interval()
    assert fleet.run.trains(1)


def test_worker_and_supernode_killed_together(fleet: Fleet) -> None:
    run = fleet.run
    run.until_middle_of_round()
    before = run.rounds()
    with keeping_what_is_complete(run):
        fleet.kill(f"device-{AWAY}/worker")
        fleet.kill(f"device-{AWAY}/supernode")
        fleet.gone = time.monotonic()
        tell("worker and SuperNode killed: training went on", run.until_round(before + 2))
    assert run.drop_after(before, AWAY) is not None
    assert not run.trains(AWAY)
    assert run.trains(1)


def test_edge_server_killed(fleet: Fleet) -> None:
    run = fleet.run
    run.until_middle_of_round()
    before = run.rounds()
    with keeping_what_is_complete(run):
        fleet.kill("edge/worker")
        tell("edge server killed", run.until_round(before + 2, 120))
    assert run.trains(1)


def test_superlink_killed(fleet: Fleet) -> None:
    run, began = fleet.run, time.monotonic()
    process, lines = fleet.kill("superlink"), run.lines()
    until(lambda: fleet.local.running().get("superlink", process) != process, 30)
    until(fleet.local.control.ready, 120)
    tell("SuperLink killed: it answers again", time.monotonic() - began)
    run.until_next_interval()
    assert run.lines()[: len(lines)] == lines
    assert all(takes_part(record, 1) and takes_part(record, 0) for record in run.records()[len(lines) :])


def test_worker_killed_after_the_superlink(fleet: Fleet) -> None:
    run = fleet.run
    run.until_middle_of_round()
    before = run.rounds()
    fleet.kill(f"device-{KILLED}/worker")
    tell("worker killed: training went on", run.until_round(before + 2))
    assert run.drop_after(before, KILLED) is not None
    tell("worker killed: it took part again", until(lambda: run.trains(KILLED), 180))


def test_worker_and_supernode_come_back(fleet: Fleet) -> None:
    until(lambda: fleet.run.trains(AWAY), 180, "the return")
    tell("worker and SuperNode killed: it took part again", time.monotonic() - fleet.gone)
    until(lambda: fleet.acceptances(1) > fleet.accepted, 150, "the return of the SuperNode")


def test_server_app_killed_and_the_run_ordered_again(fleet: Fleet) -> None:
    run = fleet.run
    run.until_middle_of_round()
    fleet.kill_server_app()
    time.sleep(0.5)
    rounds = (run.rounds() // INTERVAL + 2) * INTERVAL
    with keeping_what_is_complete(run):
        before = run.rounds()
        fleet.order(rounds, resume=True)
        tell("ServerApp killed, run ordered again", run.until_round(before + 1, 120))
        until(lambda: fleet.local.control.run(fleet.number).finished, 120)
    assert fleet.local.control.run(fleet.number).outcome == "completed"
    assert run.rounds() == rounds
    assert run.trains(AWAY)
