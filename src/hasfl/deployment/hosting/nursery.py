"""A process that has imported what many programs need, and forks itself for each of them.

    python -m hasfl.deployment.hosting.nursery MODULE …

Flower's programs and workers import for one or two seconds each before they do anything. On one machine with
many of them, one process imports once. It reads one line of JSON on its standard input for each program that
it shall start, and answers with the number of the process. Programs end when it ends.
"""

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType

from hasfl.deployment.hosting import launcher
from hasfl.deployment.hosting.launcher import end_with_parent
from hasfl.deployment.hosting.supervision import Program, Started, start_program

UNKNOWN = 255  # the exit code of a program that has ended, and that nobody asked


class Nursery:
    """Starts programs that have an entry by forking: `with Nursery(modules, log) as nursery: …`.

    It ends with the thread that entered it. Programs without an entry start in the usual way, and so do all
    programs after the nursery has died.
    """

    def __init__(self, modules: Sequence[str], log: Path, environment: dict[str, str] | None = None) -> None:
        self._modules = tuple(modules)
        self._log = log
        self._environment = environment
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Nursery":
        self._log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "hasfl.deployment.hosting.nursery", *self._modules]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                process_group=0,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def start(self, program: Program) -> Started:
        """Start a program at the head of a process group; it ends when this process ends."""
        number = self._fork(program) if program.entry and sys.platform == "linux" else None
        return start_program(program) if number is None else Forked(number)

    def _fork(self, program: Program) -> int | None:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return None
        request = {
            "name": program.name,
            "entry": program.entry,
            "command": program.command,
            "log": str(program.log),
            "environment": dict(os.environ if program.environment is None else program.environment),
        }
        with self._turn:
            try:
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
                return int(process.stdout.readline())
            except (OSError, ValueError):  # it has died; ValueError: an empty line
                return None


class Forked:
    """A program that a nursery started. Linux tells when it ends, but not with which code."""

    def __init__(self, number: int) -> None:
        self.pid = number
        self.returncode: int | None = None
        self._turn = threading.Lock()
        try:
            self._handle = os.pidfd_open(number)
        except ProcessLookupError:  # it has ended already
            self.returncode = UNKNOWN

    def poll(self) -> int | None:
        """None while the program runs."""
        return self.wait(0.0)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until the program ends."""
        with self._turn:
            if self.returncode is None and select.select([self._handle], [], [], timeout)[0]:
                os.close(self._handle)
                self.returncode = UNKNOWN
            return self.returncode


def main(modules: Sequence[str]) -> None:
    """Import modules, then fork for each request."""
    for module in modules:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how children ended
    for line in sys.stdin:
        request = json.loads(line)
        number = fork(request["entry"], request["command"], partial(_move_in, **request))
        with suppress(ProcessLookupError, PermissionError):
            os.setpgid(number, number)  # the child does so too; whoever is first
        os.write(sys.stdout.fileno(), b"%d\n" % number)


def fork(entry: str, command: Sequence[str], prepare: Callable[[], None]) -> int:
    """Start a process in which module:function is the main program, and give its number.

    It ends when this process ends. It shares what is imported here. This process should have one thread.
    """
    parent = os.getpid()
    number = os.fork()
    if number != 0:
        return number
    code = UNKNOWN
    try:
        end_with_parent(parent)
        for each in (signal.SIGCHLD, signal.SIGTERM, signal.SIGQUIT):
            signal.signal(each, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        prepare()
        sys.argv = list(command)
        code = _exit_code(entry)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _exit_code(entry: str) -> int:
    """Call a function, and give the exit code of a program that does no more."""
    module, _, name = entry.partition(":")
    try:
        getattr(importlib.import_module(module), name)()
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(end.code + "\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _move_in(*, name: str, log: str, environment: dict[str, str], **_: object) -> None:
    """Have the name, the log and the environment of a program, and lead a process group."""
    launcher.show_name(name)
    os.setpgid(0, 0)
    _redirect(log)
    os.environ.clear()
    os.environ.update(environment)


def _redirect(log: str) -> None:
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)


if __name__ == "__main__":
    main(sys.argv[1:])
