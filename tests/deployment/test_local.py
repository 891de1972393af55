"""`hasfl serve local` as a person types it: a deployment on this machine, interrupted, killed and resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hasfl.deployment.orders import ORDERS_FOLDER
from hasfl.runs.store import LOCK
from tests.deployment.test_programs import descendants, lives
from tests.runs.scenarios import rounds, write

SECONDS = 180.0  # for everything, on a small machine that others use too
DEVICES = 2
CHANGES = {"training.strategy": '"rbs+rms"', "training.interval": "5", "fleet.devices": str(DEVICES)}


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {SECONDS:g} s"
        time.sleep(0.1)


def serve(folder: Path, *options: str) -> subprocess.Popen[str]:
    """Start the command; its fleet is in folder/fleet, its run in folder/runs/run."""
    command = [sys.executable, "-m", "hasfl", "serve", "local", str(folder / "small.toml"), "--json"]
    kept = ["--out", str(folder / "runs"), "--run", "run", "--keep", str(folder / "fleet")]
    return subprocess.Popen(
        [*command, *kept, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
    )


def processes_of(folder: Path) -> list[int]:
    """The processes whose environment or command names the fleet's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            said = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if entry.name.isdecimal() and str(folder / "fleet").encode() in said:
            found.append(int(entry.name))
    return found


def app_of(folder: Path) -> int:
    """The fed server's app, which holds the lock of its order."""
    (lock,) = (folder / "fleet" / "fed" / ORDERS_FOLDER).glob(f"*/{LOCK}")
    inode = lock.stat().st_ino
    held: Sequence[list[str]] = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return next(int(words[4]) for words in held if words[5].endswith(f":{inode}"))


def status(folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "hasfl", "status", "--state", str(folder / "fleet" / "fed"), "--json"]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found


def ended(process: subprocess.Popen[str], folder: Path) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=SECONDS)
    until(lambda: not processes_of(folder), "the end of all processes")
    return process.returncode, out, err


@pytest.mark.fleet
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_it_starts_ends_all_processes(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    write(tmp_path, CHANGES)
    with serve(tmp_path) as command:
        try:
            until(lambda: len(descendants(command.pid)) >= 5, "the start of some processes")
            started = descendants(command.pid)
            command.send_signal(number)
            err = command.communicate(timeout=SECONDS)[1]
        finally:
            command.kill()
    assert command.returncode == code, err
    assert err.splitlines()[-1].endswith("hasfl: ended")
    until(lambda: not any(lives(process) for process in started), "the end of all processes")


@pytest.mark.fleet
def test_nothing_is_lost_by_a_killed_app_sigterm_and_a_killed_command(tmp_path: Path) -> None:
    """The run goes on three times, ends with every round once, and leaves no process behind."""
    write(tmp_path, CHANGES | {"stop.rounds": "1000000"})
    run = tmp_path / "runs" / "run"
    first = serve(tmp_path)
    until(lambda: len(rounds(run)) > 5, "round 6")
    told = status(tmp_path)
    assert [(node["name"], node["status"]) for node in told["nodes"]] == [
        (name, "online") for name in ("edge", "device-0", "device-1")
    ]
    assert [(each["state"], each["folder"]) for each in told["runs"]] == [("running", str(run))]
    assert Path(told["runs"][0]["log"]).exists()
    app, seen = app_of(tmp_path), len(rounds(run))
    os.kill(app, signal.SIGKILL)
    until(lambda: len(rounds(run)) > seen + 10, "a round after the app was killed")
    first.terminate()
    code, _, err = ended(first, tmp_path)
    assert code == 143, err
    assert "the fed server's app was killed; the run is ordered again" in err
    assert err.splitlines()[-1].endswith("the same command with --resume continues the run")
    stopped = len(rounds(run))
    assert stopped % 5 == 0

    second = serve(tmp_path, "--resume")
    until(lambda: len(rounds(run)) > stopped + 5, "a round after --resume")
    second.kill()
    ended(second, tmp_path)
    killed = len(rounds(run))

    write(tmp_path, CHANGES | {"stop.rounds": str(killed + 5)})
    code, out, err = ended(serve(tmp_path, "--resume", "--link", "200 Mbps,100 Mbps"), tmp_path)
    assert code == 0, err
    result = json.loads(out)
    assert (result["rounds"], result["measured_on"]) == (killed + 5, "the test set")
    assert all(row["measured"]["seconds"] > 0 for row in rounds(run))
    assert [row["round"] for row in rounds(run)] == list(range(1, killed + 6))
    for folder in (tmp_path / "fleet", tmp_path / "fleet" / "keys" / "fed"):
        assert folder.stat().st_mode & 0o077 == 0
