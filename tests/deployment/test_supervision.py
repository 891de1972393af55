"""Programs that are kept running, and that never outlive the process that started them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hasfl.deployment.hosting import supervision
from hasfl.deployment.hosting.nursery import Nursery
from hasfl.deployment.hosting.places import require_free, require_private, split_address
from hasfl.deployment.hosting.supervision import Program, Supervisor
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
    monkeypatch.setattr(supervision, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(supervision, "LONGEST_PAUSE", 0.04)
    told: list[str] = []
    with Supervisor([program(tmp_path, "false")], told.append):
        until(lambda: len(told) >= 4)
    assert [sentence.split()[-2] for sentence in told[:4]] == [
        "0.01",
        "0.02",
        "0.04",
        "0.04",
    ]


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
from hasfl.deployment.hosting.nursery import Nursery
from hasfl.deployment.hosting.supervision import Program, Supervisor
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
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match="the SuperLink cannot listen at"):
            require_free(address, "the SuperLink")
    require_free(address, "the SuperLink")


def test_a_nursery_forks_programs_with_their_own_log_and_environment(tmp_path: Path) -> None:
    entry = f"{__name__}:say_where"
    one, other = (
        Program(
            name=name,
            command=("it", name),
            log=tmp_path / f"{name}.log",
            entry=entry,
            environment={**os.environ, "WHO": name},
        )
        for name in ("one", "other")
    )
    with (
        Nursery([__name__], tmp_path / "nursery.log") as nursery,
        Supervisor([one, other], start=nursery.start) as running,
    ):
        until(lambda: all("ready" in text(program.log) for program in (one, other)))
        processes = dict(running.running())
        groups = {os.getpgid(process) for process in processes.values()}
        assert groups == set(processes.values())  # each leads a group of its own
        os.kill(processes["one"], signal.SIGKILL)
        until(lambda: running.running().get("one", processes["one"]) != processes["one"])
        processes["again"] = running.running()["one"]
    assert text(one.log).splitlines()[0] == "one ['it', 'one'] ready"
    assert text(other.log).splitlines() == ["other ['it', 'other'] ready"]
    assert not any(lives(process) for process in processes.values())


def test_programs_start_without_a_nursery_that_has_died(tmp_path: Path) -> None:
    plain = Program(name="it", command=SLEEP, log=tmp_path / "it.log", entry=f"{__name__}:say_where")
    with Nursery([__name__], tmp_path / "nursery.log") as nursery:
        first = nursery.start(plain)
        until(lambda: "ready" in text(plain.log))
        nursery._process.kill()
        until(lambda: first.poll() is not None)  # programs end with their nursery
        with Supervisor([plain], start=nursery.start) as running:
            until(lambda: running.running())
            line = Path(f"/proc/{running.running()['it']}/cmdline")
            until(lambda: b"sleep" in line.read_bytes())  # a new process has no command line yet


@pytest.mark.parametrize(
    ("code", "said"), [("raise SystemExit(3)", ""), ("raise SystemExit('no')", "no"), ("1 / 0", "Zero")]
)
def test_a_forked_program_ends_as_it_would_by_itself(tmp_path: Path, code: str, said: str) -> None:
    (tmp_path / "ending.py").write_text(f"def main():\n    {code}\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    ending = Program(name="it", command=("it",), log=tmp_path / "it.log", entry="ending:main")
    with Nursery(["ending"], tmp_path / "nursery.log", environment) as nursery:
        started = nursery.start(ending)
        until(lambda: started.poll() is not None)
    assert said in text(ending.log)


def say_where() -> None:
    """A program for nurseries."""
    sys.stdout.write(f"{os.environ.get('WHO')} {sys.argv} ready\n")
    sys.stdout.flush()
    time.sleep(1000)


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
