"""Programs that are kept running, and that never outlive the process that started them."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hasfl.deployment import programs
from hasfl.deployment.addresses import free_port, require_free, require_private, split_address
from hasfl.deployment.programs import Program, Supervisor
from hasfl.errors import InputError

SLEEP = ("sleep", "1000")
FAMILY = ("sh", "-c", "sleep 1001 & echo $! > child; wait")  # a program that starts another one


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def lives(process: int) -> bool:
    """Whether a process runs; one that has ended and that nobody asked for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


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


def program(folder: Path, *command: str, grace: float = 5.0) -> Program:
    return Program(name="it", command=command, log=folder / "it.log", grace=grace)


def child_of(folder: Path) -> int:
    until(lambda: (folder / "child").exists() and (folder / "child").read_text().strip())
    return int((folder / "child").read_text())


def test_a_killed_program_starts_again(tmp_path: Path) -> None:
    told: list[str] = []
    with Supervisor([program(tmp_path, *SLEEP)], told.append) as running:
        until(lambda: running.running())
        first = running.running()["it"]
        os.kill(first, signal.SIGKILL)
        until(lambda: running.running().get("it", first) != first)
        second = running.running()["it"]
        assert running.starts() == {"it": 2}
    assert not lives(first)
    assert not lives(second)
    assert len(told) == 1
    assert told[0] == f"it ended, as {tmp_path / 'it.log'} explains, and starts again in 0.5 s"


def test_pauses_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(programs, "LONGEST_PAUSE", 0.04)
    told: list[str] = []
    with Supervisor([program(tmp_path, "false")], told.append):
        until(lambda: len(told) >= 4)
    assert [sentence.split()[-2] for sentence in told[:4]] == [
        "0.01",
        "0.02",
        "0.04",
        "0.04",
    ]


def test_a_program_starts_after_somebody_listens(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with Supervisor([replace(program(tmp_path, *SLEEP), after=address)]) as running:
        time.sleep(0.3)
        assert running.starts() == {"it": 0}
        with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
            until(lambda: running.starts() == {"it": 1})
    with Supervisor([replace(program(tmp_path, *SLEEP), after=address)]):
        pass  # it ends, although nobody ever listens


def test_output_goes_to_the_log(tmp_path: Path) -> None:
    with Supervisor([program(tmp_path, "sh", "-c", "echo out; echo err >&2; sleep 1000")]):
        until(lambda: "err" in (tmp_path / "it.log").read_text() if (tmp_path / "it.log").exists() else False)
    assert set((tmp_path / "it.log").read_text().split()) == {"out", "err"}


def test_programs_that_a_program_started_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Supervisor([program(tmp_path, *FAMILY)]) as running:
        child = child_of(tmp_path)
        assert lives(child)
        (tmp_path / "child").unlink()
        os.kill(running.running()["it"], signal.SIGKILL)  # its child is an orphan, and must not stay
        until(lambda: not lives(child))
        child = child_of(tmp_path)
    assert not lives(child)


def test_a_program_that_does_not_want_to_end_is_killed(tmp_path: Path) -> None:
    stubborn = program(tmp_path, "sh", "-c", "trap '' TERM; while :; do sleep 0.1; done", grace=0.3)
    began = time.monotonic()
    with Supervisor([stubborn]) as running:
        until(lambda: running.running())
        time.sleep(0.3)  # so that it has heard of the trap
        process = running.running()["it"]
        began = time.monotonic()
    assert 0.3 <= time.monotonic() - began < 3.0
    assert not lives(process)


PARENT = """
import sys, time
from pathlib import Path
from hasfl.deployment.programs import Program, Supervisor
folder = Path(sys.argv[1])
with Supervisor([Program(name="it", command=("sleep", "1000"), log=folder / "it.log")]) as running:
    while not running.running():
        time.sleep(0.01)
    (folder / "started").write_text(str(running.running()["it"]))
    time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_programs_end_with_their_supervisor(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stderr=subprocess.DEVNULL) as parent:
        try:
            until(lambda: (tmp_path / "started").exists() and (tmp_path / "started").read_text())
            process = int((tmp_path / "started").read_text())
            assert lives(process)
            parent.send_signal(number)
            parent.wait(10)
        finally:
            parent.kill()
    until(lambda: not lives(process), seconds=5.0)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:8000", "localhost:8000", "[::1]:8000", "10.1.2.3:80", "192.168.0.7:1", "[fd00::1]:9"],
)
def test_private_addresses(address: str) -> None:
    assert require_private(address) == address


@pytest.mark.parametrize(
    "address", ["0.0.0.0:8000", "[::]:8000", "8.8.8.8:8000", "example.org:8000", "[2001:db9::1]:1"]
)
def test_public_addresses_are_refused(address: str) -> None:
    with pytest.raises(InputError, match="must listen at a loopback or private address"):
        require_private(address)


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":80", "host:0", "host:65536", "host:8a", "host:-1"]
)
def test_addresses_have_a_host_and_a_port(address: str) -> None:
    with pytest.raises(InputError, match="must be host:port"):
        split_address(address)


def test_an_address_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match="the SuperLink cannot listen at"):
            require_free(address, "the SuperLink")
    require_free(address, "the SuperLink")
