"""Faults of a whole fleet that trains through Flower: SuperLink, SuperNode, ServerApp and workers killed.

The tests share a fleet and build on each other: one device is away from the first test to the last but one.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hasfl.deployment.hosting.orders import RunOrder
from hasfl.deployment.local import LocalDevice, LocalFleet
from tests.deployment.field import INTERVAL, STRATEGY, Run, takes_part, until, write_scenario
from tests.deployment.test_faults import keeping_what_is_complete, tell

pytestmark = pytest.mark.fleet

DEVICES = 3
KILLED, AWAY = 0, 2  # devices; nothing happens to device 1
ENDLESS = 1_000_000  # rounds


class Fleet:
    """Everything on this machine, in the middle of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        _, files = write_scenario(folder, DEVICES, ENDLESS)
        self.local = LocalFleet(
            folder / "fleet", [LocalDevice(data=str(file), link="2 Mbps") for file in files[:DEVICES]]
        )
        self.run = Run(folder / "run")
        self.number = 0
        self.gone = 0.0  # when the device that is away was killed

    def order(self, rounds: int, *, resume: bool = False) -> None:
        scenario, _ = write_scenario(self.folder, DEVICES, rounds)
        self.number = self.local.submit(
            RunOrder(
                scenario=str(scenario),
                path=str(self.run.path),
                strategy=STRATEGY,
                seed=3,
                devices=DEVICES,
                patience=120.0,
                resume=resume,
            )
        )

    def kill(self, name: str) -> int:
        """Kill a program, and say which process it was."""
        process = self.local.running()[name]
        os.kill(process, signal.SIGKILL)
        return process

    def kill_server_app(self) -> None:
        """Kill what the fed server's SuperExec has forked."""
        parent = self.local.running()["superexec"]
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        assert children
        for child in children:
            os.kill(int(child), signal.SIGKILL)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Its folder is near the root, since sockets have short paths."""
    fleet = Fleet(Path(os.path.realpath(tmp_path_factory.mktemp("f"))))
    began = time.monotonic()
    with fleet.local:
        fleet.order(ENDLESS)
        fleet.run.until_round(INTERVAL + 1, 300)
        tell("start of the fleet and of its first run", time.monotonic() - began)
        yield fleet


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
