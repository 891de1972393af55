"""Programs in processes of their own: a supervisor that keeps them running, and the program of a worker."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from hasfl.deployment import lifetime
from hasfl.deployment.addresses import listened_at, log_file, make_state_folder
from hasfl.errors import HasflError, StorageError

SETTINGS_FILE = "worker.json"

# The numbers below were chosen by hand.
FIRST_PAUSE = 0.5  # seconds before a program is started again; doubled each time
# Longest pause in seconds. Flower refuses a node that was killed for 40 s, and it should be back soon after.
LONGEST_PAUSE = 4.0
SETTLED = 30.0  # seconds of running after which a program's next pause is FIRST_PAUSE again
POLL = 0.1  # seconds between two checks of a program


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program to keep running: its command, its log, and its environment."""

    name: str
    command: tuple[str, ...]
    log: Path  # file for the output
    environment: Mapping[str, str] | None = None  # None: the environment of this process
    after: str = ""  # host:port; the program starts when another program accepts connections there
    grace: float = 5.0  # seconds that the program has to end after SIGTERM; chosen by hand


def start_program(program: Program) -> "subprocess.Popen[bytes]":
    """Start a program as leader of a new process group; the program ends with the calling thread."""
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


# ── a supervisor ─────────────────────────────────────────────────────────────────────────────────────────


class Supervisor:
    """Keeps programs running: `with Supervisor(programs): …`.

    A program that ends is started again, after pauses that grow. Each program leads its own process group, so
    Ctrl-C reaches only this process. When this process ends for any reason, the programs end too.
    """

    def __init__(
        self, programs: Sequence[Program], tell: Callable[[str], None] = lambda sentence: None
    ) -> None:
        self._keepers = [_Keeper(program, tell) for program in programs]

    def __enter__(self) -> "Supervisor":
        for keeper in self._keepers:
            keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Tell all programs to end, and kill those that do not end within their `grace`."""
        for keeper in self._keepers:
            keeper.ending.set()
        for keeper in self._keepers:
            keeper.join()

    def running(self) -> Mapping[str, int]:
        """The process numbers of all running programs, by name."""
        return {keeper.program.name: pid for keeper in self._keepers if (pid := keeper.pid) is not None}

    def starts(self) -> Mapping[str, int]:
        """The number of starts of each program, by name."""
        return {keeper.program.name: keeper.starts for keeper in self._keepers}


class _Keeper(threading.Thread):
    """The thread that starts one program again and again.

    Linux kills a program when the thread that started it ends, so this thread lives as long as the program.
    """

    def __init__(self, program: Program, tell: Callable[[str], None]) -> None:
        super().__init__(name=f"keeper of {program.name}", daemon=True)
        self.program = program
        self.starts = 0
        self.ending = threading.Event()  # set when the program shall end
        self._tell = tell
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process number of the program; None while it does not run."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def run(self) -> None:
        """Start the program, and again whenever it ends, until `ending` is set."""
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
        """Run the program until it ends, or until `ending` is set; return what happened, in words."""
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
    """End a program and the programs that it started: with SIGTERM, and after `grace` with SIGKILL."""
    deadline = time.monotonic() + grace
    with suppress(ProcessLookupError, PermissionError):  # raised once all have ended
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(POLL)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# ── the worker of a device or of the edge server ─────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The settings of a worker. Quantities are texts such as "2 GB"; an empty text means "not given"."""

    keys: str = ""  # folder of this party, made by hasfl keys; its certificate names the party
    state: str = ""  # state folder
    listen: str = ""  # edge server: host:port where devices connect
    announce: str = ""  # edge server: host:port that devices are told
    data: str = ""  # device: file with its samples
    test: str = ""  # edge server: file with the test set
    memory: str = ""  # device: memory that training may take at most, such as "2 GB"
    slow_to: str = ""  # device: speed of a slower machine to imitate, such as "50 GFLOPS"
    link: str = ""  # rate of slower links to imitate, such as "20 Mbps"
    threads: int = 1  # number of torch's threads
    sharers: int = 1  # number of devices on this machine, which share its memory
    trust: tuple[str, ...] = ()  # modules whose callables a scenario may name


def worker_program(settings: WorkerSettings) -> Program:
    """The program of a worker, for a supervisor; its settings are written into the state folder."""
    state = Path(settings.state)
    make_state_folder(state)
    path = state.resolve() / SETTINGS_FILE
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(asdict(settings), file)
    command = (sys.executable, "-m", "hasfl.deployment.worker", str(path))
    return Program(name="worker", command=command, log=log_file(state, "worker"))
