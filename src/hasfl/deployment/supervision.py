"""Programs that are kept running, and that never outlive the process that started them."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from hasfl.deployment import lifetime
from hasfl.deployment.addresses import listened_at
from hasfl.errors import HasflError, StorageError

FIRST_PAUSE = 0.5  # seconds before a program starts again; doubled each time …
LONGEST_PAUSE = 4.0  # … up to this: a node that was killed is refused for 40 s, and should be back soon after
SETTLED = 30.0  # a program that ran so many seconds begins with the first pause again
POLL = 0.1  # seconds between two looks at a program


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run, and where its output goes."""

    name: str
    command: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] | None = None  # the environment of this process, if not given
    after: str = ""  # host:port that somebody must listen at before the program starts
    grace: float = 5.0  # seconds that the program has to end by itself when it is told to


def start_program(program: Program) -> "subprocess.Popen[bytes]":
    """Start a program at the head of a process group, tied to the calling thread."""
    try:
        program.log.parent.mkdir(parents=True, exist_ok=True)
        with program.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", lifetime.__file__, str(os.getpid()), *program.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=program.environment,
                process_group=0,
            )
    except OSError as error:
        raise StorageError(
            f"cannot start {program.name} with the log {program.log}: {error.strerror}"
        ) from None


class Supervisor:
    """Keeps programs running: `with Supervisor(programs): …`.

    A program that ends is started again, after pauses that grow. Each program leads a process group of its
    own, so that Ctrl-C reaches this process first; when this process ends in any way, the programs end too.
    """

    def __init__(
        self, programs: Sequence[Program], tell: Callable[[str], None] = lambda sentence: None
    ) -> None:
        self._keepers = [_Keeper(program, tell) for program in programs]

    def __enter__(self) -> "Supervisor":
        for keeper in self._keepers:
            keeper.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tell all programs to end, and kill those that do not within a few seconds."""
        for keeper in self._keepers:
            keeper.ending.set()
        for keeper in self._keepers:
            keeper.join()

    def running(self) -> Mapping[str, int]:
        """The process numbers of the programs that run now, by name."""
        return {keeper.program.name: pid for keeper in self._keepers if (pid := keeper.pid) is not None}

    def starts(self) -> Mapping[str, int]:
        """How often each program was started, by name."""
        return {keeper.program.name: keeper.starts for keeper in self._keepers}


class _Keeper(threading.Thread):
    """Runs one program again and again.

    Linux ties a program to the thread that started it, so this thread lives as long as it keeps the program.
    """

    def __init__(self, program: Program, tell: Callable[[str], None]) -> None:
        super().__init__(name=f"keeper of {program.name}", daemon=True)
        self.program = program
        self.starts = 0
        self.ending = threading.Event()  # set when the program is to end
        self._tell = tell
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process number, while the program runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def run(self) -> None:
        """Start the program, and start it again whenever it ends, until it is to end."""
        pause = FIRST_PAUSE
        while self.program.after and not listened_at(self.program.after):
            if self.ending.wait(POLL):
                return
        while not self.ending.is_set():
            began = time.monotonic()
            why = self._run_once()
            if self.ending.is_set():
                return
            pause = FIRST_PAUSE if time.monotonic() - began > SETTLED else pause
            self._tell(f"{self.program.name} {why}, and starts again in {pause:g} s")
            self.ending.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _run_once(self) -> str:
        """Run the program until it ends, or until it is to end; say what happened."""
        try:
            self._process = process = start_program(self.program)
        except HasflError as error:
            return f"did not start ({error})"
        self.starts += 1
        while process.poll() is None and not self.ending.wait(POLL):
            pass
        _end_group(process, self.program.grace)
        return f"ended, as {self.program.log} explains"


def _end_group(process: "subprocess.Popen[bytes]", grace: float) -> None:
    """End a program and the programs that it started: by asking first, then by force."""
    deadline = time.monotonic() + grace
    with suppress(ProcessLookupError, PermissionError):  # then all have ended
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(POLL)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
