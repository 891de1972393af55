"""The command line in this process, and in processes that may be killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import hasfl as hasfl

OWN_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


@dataclass
class Child:
    """A command that runs in a process of its own."""

    pid: int
    output: Path
    parent: "subprocess.Popen[str]"
    code: int | None = None

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def end(self) -> int:
        """Wait for it; its exit code, or minus the signal that ended it."""
        if self.code is None:
            self.code = int(_ask(self.parent, ""))
        return self.code


@dataclass
class Forking:
    """Starts commands in processes of their own, one at a time."""

    parent: "subprocess.Popen[str]"
    folder: Path
    last: Child | None = None

    def start(self, *arguments: object) -> Child:
        self.stop()
        output = self.folder / "output.txt"
        command = {"arguments": list(map(str, arguments)), "output": str(output)}
        self.last = Child(int(_ask(self.parent, json.dumps(command))), output, self.parent)
        return self.last

    def stop(self) -> None:
        """End what a failed test has left."""
        if self.last is not None and self.last.code is None:
            self.last.kill()
            self.last.end()


def _ask(parent: "subprocess.Popen[str]", line: str) -> str:
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(line + "\n")
    parent.stdin.flush()
    return parent.stdout.readline()


@pytest.fixture(scope="session")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forking]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.runs.forking"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | OWN_ENVIRONMENT,
        cwd=Path(__file__).parents[2],
    )
    with process:
        forking = Forking(process, tmp_path_factory.mktemp("forking"))
        yield forking
        forking.stop()
