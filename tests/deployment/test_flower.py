"""Flower's programs on this machine: a fleet of real processes, their faults, and their end."""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from shutil import rmtree

import pytest

from hasfl.deployment import answering
from hasfl.deployment.answering import Offer, SessionHolder
from hasfl.deployment.flower.bundle import FILES, build_bundle
from hasfl.deployment.flower.client_app import hand_over
from hasfl.deployment.flower.processes import OFFLINE, fed_programs, node_programs
from hasfl.deployment.flower.submission import Control, SuperLinkAway
from hasfl.deployment.hosting.orders import FedHost, RunOrder, read_host, read_order, write_host, write_order
from hasfl.deployment.hosting.places import SOCKET_FILE, Place, free_port
from hasfl.deployment.hosting.supervision import Supervisor
from hasfl.deployment.keys import add_devices
from hasfl.deployment.local import LocalDevice, LocalFleet
from hasfl.errors import InputError, MissingExtra
from hasfl.record import EDGE
from tests.deployment.test_supervision import lives

DEVICES = 2
EVERYBODY = {EDGE, 0, 1}
FAKES = "tests.deployment.flower_fakes"
OFFER = {"fed": "10.0.0.1:9201", "token": "secret", "run": "7"}


def until(condition: Callable[[], object], seconds: float) -> float:
    """Wait until something is so, and say how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "it did not happen in time"
        time.sleep(0.1)
    return time.monotonic() - began


def test_the_bundle_builds_and_holds_no_more_than_it_must(tmp_path: Path) -> None:
    with zipfile.ZipFile(BytesIO(build_bundle(tmp_path))) as bundle:
        names = set(bundle.namelist())
        assert {name for name in names if not name.startswith(".info")} == set(FILES)
        assert "hasfl.deployment.flower.client_app" in bundle.read("hasfl_run/client_app.py").decode()


def test_the_app_of_a_node_needs_no_torch() -> None:
    code = "import hasfl.deployment.flower.client_app, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, **OFFLINE}).returncode == 0


def test_an_offer_goes_to_the_worker_and_its_answer_comes_back(tmp_path: Path) -> None:
    assert SOCKET_FILE == answering.SOCKET_FILE
    state, taken = tmp_path / "state", list[Offer]()
    with SessionHolder(state, lambda offer, stop: taken.append(offer)):
        assert hand_over(state / SOCKET_FILE, OFFER) == {"taken": True}
        answer = hand_over(state / SOCKET_FILE, {"fed": 1})
    assert taken == [Offer("10.0.0.1:9201", "secret", "7")]
    assert answer["taken"] is False
    with pytest.raises(OSError, match="No such file"):
        hand_over(state / SOCKET_FILE, OFFER)


def test_orders_come_back_as_they_were_written(tmp_path: Path) -> None:
    order = RunOrder(scenario="a.toml", path="runs/a", strategy="b=16+hams", seed=3, resume=True, devices=4)
    name = write_order(tmp_path, order)
    assert read_order(tmp_path, name) == order
    host = FedHost(keys="keys/fed", listen="0.0.0.0:9201", announce="fed.lan:9201")
    write_host(tmp_path, host)
    assert read_host(tmp_path) == host
    assert (tmp_path / "orders" / f"{name}.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["", "../fed", "0123456789abcdeg", "0123456789abcdef/", "0123456789ABCDEF"])
def test_an_order_is_not_looked_for_elsewhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="16 hexadecimal digits"):
        read_order(tmp_path, name)


def test_an_order_of_another_version_is_refused(tmp_path: Path) -> None:
    name = write_order(tmp_path, RunOrder(scenario="a.toml", path="runs/a"))
    path = tmp_path / "orders" / f"{name}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pickle": "no"}))
    with pytest.raises(InputError, match="another version"):
        read_order(tmp_path, name)


def test_programs_are_offline_and_keep_to_the_state_folder(keys: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    programs = [
        *fed_programs(Place(keys / "fed", state), "127.0.0.1:8000"),
        *node_programs(Place(keys / "edge", state), "10.0.0.1:8000", 9095),
    ]
    for program in programs:
        environment = program.environment or {}
        assert set(OFFLINE.items()) <= set(environment.items())
        assert Path(environment["FLWR_HOME"]).is_relative_to(state.resolve())
        assert program.log.is_relative_to(state.resolve())
    link, _, node, _ = [" ".join(program.command) for program in programs]
    assert "--isolation process" in link
    assert "--enable-supernode-auth" in link
    assert "--insecure" not in link + node
    assert "--auth-supernode-private-key" in node
    assert state.stat().st_mode & 0o077 == 0
    assert (state / "superexec.secret").stat().st_mode & 0o077 == 0


def test_a_public_control_api_is_refused_before_anything_starts(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="loopback or private"):
        fed_programs(Place(keys / "fed", tmp_path / "state"), "0.0.0.0:8000")
    assert not (tmp_path / "state").exists()


def test_missing_keys_and_programs_are_named(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"must hold ca\.crt"):
        fed_programs(Place(tmp_path, tmp_path / "state"), "127.0.0.1:8000")
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(MissingExtra, match=r"hasfl\[deploy\]"):
        fed_programs(Place(keys / "fed", tmp_path / "state"), "127.0.0.1:8000")


def test_a_superlink_that_is_not_there_is_named(keys: Path) -> None:
    api = Control(f"127.0.0.1:{free_port()}", keys / "fed")
    assert not api.ready()
    with pytest.raises(SuperLinkAway, match="does not answer"):
        api.nodes()
    api.close()


# Fleets of real processes from here on.


class Stage:
    """A fleet whose parties answer every question, and a run that asks them until it is told to end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        self.order = RunOrder(
            scenario="none",
            path=str(self.run),
            devices=DEVICES,
            patience=300.0,
            training=f"{FAKES}:ask_and_note",
        )
        self.said: list[str] = []
        self.fleet = LocalFleet(
            folder / "fleet", [LocalDevice()] * DEVICES, make=f"{FAKES}:open_worker", tell=self.said.append
        )

    def answered(self) -> list[set[int]]:
        """Who answered, question by question."""
        with suppress(OSError):
            lines = (self.run / "answers.txt").read_text().splitlines()
            return [{int(party) for party in line.split()} for line in lines]
        return []

    def now(self, parties: set[int]) -> bool:
        """Whether these parties, and nobody else, answered the last question."""
        before = self.answered()
        return bool(before) and before[-1] == parties

    def kill(self, name: str) -> int:
        """Kill a program, and say which process it was."""
        process = self.fleet.running()[name]
        os.kill(process, signal.SIGKILL)
        return process


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A fleet in the middle of a run. Its folder is near the root, since sockets have short paths."""
    stage = Stage(Path(os.path.realpath(tmp_path_factory.mktemp("f"))))
    began = time.monotonic()
    with stage.fleet:
        number = stage.fleet.submit(stage.order)
        until(lambda: stage.now(EVERYBODY), 400)
        print(f"a fleet of {DEVICES} devices trains after {time.monotonic() - began:.1f} s")  # noqa: T201
        yield stage
        (stage.run / "end").touch()
        until(lambda: stage.fleet.control.run(number).finished, 60)
        assert stage.fleet.control.run(number).outcome == "completed"
        started = descendants(os.getpid())
    until(lambda: not any(lives(process) for process in started), 10)


def descendants(ancestor: int) -> set[int]:
    """The processes that a process started, those that these started, and so on."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            number, _, rest = stat.read_text().partition(" (")
            parents[int(number)] = int(rest.rpartition(")")[2].split()[1])
    found, new = set[int](), {ancestor}
    while new:
        new = {number for number, parent in parents.items() if parent in new} - found
        found |= new
    return found


@pytest.mark.fleet
def test_everybody_is_offered_a_session_and_answers(stage: Stage) -> None:
    assert stage.answered()[0] == EVERYBODY
    assert {node.name: node.status for node in stage.fleet.control.nodes()} == {
        "edge": "online",
        "device-0": "online",
        "device-1": "online",
    }


@pytest.mark.fleet
def test_a_killed_worker_comes_back_into_the_run(stage: Stage) -> None:
    stage.kill("device-0/worker")
    until(lambda: stage.now({EDGE, 1}), 10)
    print(f"back after {until(lambda: stage.now(EVERYBODY), 120):.1f} s")  # noqa: T201


@pytest.mark.fleet
def test_a_key_that_is_not_admitted_is_refused(stage: Stage) -> None:
    keys = stage.folder / "fleet" / "keys"
    add_devices(keys, devices=["stranger"])
    place = Place(keys / "devices" / "stranger", stage.folder / "stranger")
    with Supervisor(node_programs(place, stage.fleet.control.superlink, free_port())[:1]) as running:
        until(lambda: running.starts()["supernode"] >= 2, 60)
    assert "Failed to initialize the connection to the SuperLink" in place.log("supernode").read_text()
    assert {node.name for node in stage.fleet.control.nodes()} == {"edge", "device-0", "device-1"}
    stage.fleet.control.admit({path.stem: path for path in (keys / "fed" / "nodes").glob("*.pub")})
    assert "device-2" in {node.name for node in stage.fleet.control.nodes()}
    rmtree(keys / "devices" / "stranger")


@pytest.mark.fleet
def test_a_killed_superlink_comes_back_and_the_run_goes_on(stage: Stage) -> None:
    before = len(stage.answered())
    process = stage.kill("superlink")
    until(lambda: stage.fleet.running().get("superlink", process) != process, 20)
    until(stage.fleet.control.ready, 120)
    assert all(answers == EVERYBODY for answers in stage.answered()[before:])
    stage.kill("device-1/worker")  # the roster offers sessions again
    until(lambda: stage.now({EDGE, 0}), 10)
    until(lambda: stage.now(EVERYBODY), 180)


@pytest.mark.fleet
def test_a_killed_supernode_comes_back_while_its_worker_goes_on(stage: Stage) -> None:
    before, accepted = len(stage.answered()), acceptances(stage, "device-0")
    stage.kill("device-0/supernode")
    took = until(lambda: acceptances(stage, "device-0") > accepted, 150)
    print(f"the SuperNode was back after {took:.1f} s")  # noqa: T201
    assert all(answers == EVERYBODY for answers in stage.answered()[before:])


def acceptances(stage: Stage, party: str) -> int:
    """How often the SuperNode of a party was accepted by the SuperLink."""
    return (stage.folder / "fleet" / party / "logs" / "supernode.log").read_text().count("SuperNode ID")


FLEET = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(Path.cwd())!r})
from tests.deployment.test_flower import EVERYBODY, Stage, until
stage = Stage(Path(sys.argv[1]))
with stage.fleet:
    stage.fleet.submit(stage.order)
    until(lambda: stage.now(EVERYBODY), 400)
    (stage.folder / "trains").touch()
    time.sleep(1000)
"""


@pytest.mark.fleet
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left(tmp_path_factory: pytest.TempPathFactory, number: signal.Signals) -> None:
    folder = Path(os.path.realpath(tmp_path_factory.mktemp("f")))
    with subprocess.Popen([sys.executable, "-c", FLEET, str(folder)], stderr=subprocess.DEVNULL) as parent:
        try:
            until(lambda: (folder / "trains").exists() or parent.poll() is not None, 400)
            started = descendants(parent.pid)
            # Workers, SuperNodes and SuperExecs; the SuperLink, its SuperExec, the app; two nurseries.
            assert len(started) >= 3 * (DEVICES + 1) + 3 + 2
            parent.send_signal(number)
            parent.wait(60)
        finally:
            parent.kill()
    until(lambda: not any(lives(process) for process in started), 10)
