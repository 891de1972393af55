"""Trains runs in several processes of this machine; each process trains one run after the other."""

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Self

from hasfl.errors import Interrupted, RunsMissing
from hasfl.runs.interruption import Interruption
from hasfl.runs.places.watching import (
    After,
    Ending,
    Endings,
    News,
    PlaceWatcher,
    QuietWatcher,
    State,
    attempt,
    continued_by_the_same_command,
    in_use,
    news_of,
)
from hasfl.runs.request import RunRequest

TICK = 0.5  # seconds between two reads of the folders of running trainings; chosen by hand
STANDARD_ERROR = 2  # a file number: what models print goes there, and the command's own output stays clean
SHARED_GPU = "cuda"  # a processor name without a GPU's number, so that each process may use another GPU


@dataclass(frozen=True, slots=True)
class LocalProcesses:
    """A place: several processes of this machine.

    Ctrl-C and SIGTERM stop every run after its round, with a checkpoint; a second signal stops at once. A
    wrong input stops the other runs in the same way, because it is most often wrong for them too. If a
    process is killed, or a loss diverges, the other runs go on, and RunsMissing names the run at the end.
    """

    processes: int  # number of processes

    def carry_out(self, requests: Sequence[RunRequest], after: After, watcher: PlaceWatcher) -> None:
        """Train the run of every request."""
        with continued_by_the_same_command(), Interruption() as interruption:
            with ExitStack() as at_the_end:
                crew = Crew(requests, after, watcher, self.processes, at_the_end)
                while crew.is_busy:
                    crew.listen(TICK)
                    if interruption.wanted:
                        crew.stop()
            interruption.act("interrupted")
        crew.endings.settle(len(requests))


@dataclass(eq=False, slots=True)
class Worker:
    """A process, the connection to it, and the run that it trains."""

    process: "subprocess.Popen[bytes]"
    line: Connection
    number: int  # the index of its environment
    request: RunRequest | None = None  # the run that the process trains; None if it is idle
    shown: News | None = None  # the last news of this run that the watcher was told

    @classmethod
    def start(cls, number: int, environment: Mapping[str, str]) -> Self:
        """Start a process in its own session, so that Ctrl-C in a terminal does not reach the new process."""
        here, there = Pipe()
        with there:
            command = [sys.executable, "-P", "-m", "hasfl.runs.places.processes", str(there.fileno())]
            process = subprocess.Popen(
                command,
                env=environment,
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=STANDARD_ERROR,
                start_new_session=True,
            )
        return cls(process, here, number)

    def end(self) -> None:
        """End the process. If it trains a run, kill it: the last checkpoint of the run is on disk."""
        self.line.close()
        if self.request is not None:
            self.process.kill()
        self.process.wait()

    def how_it_ended(self) -> str:
        """The signal or the exit code of a process that has ended, in words."""
        code = self.process.wait()
        return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


class Crew:
    """The processes, and the requests that wait for a process."""

    def __init__(
        self,
        requests: Sequence[RunRequest],
        after: After,
        watcher: PlaceWatcher,
        processes: int,
        at_the_end: ExitStack,
    ) -> None:
        self.after, self.watcher, self.at_the_end = after, watcher, at_the_end
        self.waiting = deque(requests)
        self.environments = environments(requests, processes)
        self.endings = Endings()
        self.stopping = False
        self.workers: list[Worker] = []
        for number in range(min(processes, len(requests))):
            self._start(number)

    @property
    def is_busy(self) -> bool:
        """Whether a process trains a run."""
        return any(worker.request is not None for worker in self.workers)

    def listen(self, seconds: float) -> None:
        """Handle messages from processes for at most `seconds`, then tell the watcher the runs' progress."""
        ready = set(wait([worker.line for worker in self.workers], seconds))
        for worker in [worker for worker in self.workers if worker.line in ready]:
            try:
                told = worker.line.recv()
            except (EOFError, ConnectionResetError):
                self._replace(worker)
                continue
            self._hear(worker, told)
        for worker in self.workers:
            if worker.request is not None:
                begins = not worker.request.path.exists()
                self._show(worker, "trains" if begins or in_use(worker.request) else "waits")

    def stop(self) -> None:
        """Stop every run after its round, and start no other run."""
        if not self.stopping:
            self.stopping = True
            self.waiting.clear()
            for worker in self.workers:
                self._send(worker, None)

    def _start(self, number: int) -> None:
        worker = Worker.start(number, self.environments[number])
        self.at_the_end.callback(worker.end)
        self.workers.append(worker)
        self._give(worker)

    def _give(self, worker: Worker) -> None:
        """Give a process its next run, if there is one."""
        worker.request, worker.shown = None, None
        if self.waiting:
            worker.request = self.waiting.popleft()
            self._send(worker, (worker.request, self.after))

    def _send(self, worker: Worker, order: object) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # the process has ended; `listen` handles this
            worker.line.send(order)

    def _hear(self, worker: Worker, told: Ending | tuple[str, str]) -> None:
        if isinstance(told, Ending):
            self._settle(worker, told)
            self._give(worker)
        elif told[0] == FOUND:
            self._show(worker, "finished before")
        elif worker.request is not None:
            self.watcher.remarks(f"{worker.request.path.name}: {told[1]}")

    def _settle(self, worker: Worker, ending: Ending) -> None:
        """Record the ending of the run that a process trained."""
        if worker.request is None:
            return
        if ending.error is None:
            before = worker.shown is not None and worker.shown.state == "finished before"
            self._show(worker, "finished before" if before else "finished")
            return
        self._show(worker, "stopped")
        if self.stopping and issubclass(ending.error, Interrupted):
            return
        self.endings.add(worker.request, ending)
        if ending.concerns_all:
            self.stop()
        else:
            self._say_it_is_lost(worker.request, ending.sentence)

    def _replace(self, worker: Worker) -> None:
        """Handle a process that has ended: its run is lost, and a new process starts if runs are left."""
        how = worker.how_it_ended()
        self.workers.remove(worker)
        if worker.request is not None:
            self._show(worker, "stopped")
            ending = Ending(RunsMissing, f"its process was ended {how}")
            self.endings.add(worker.request, ending)
            self._say_it_is_lost(worker.request, ending.sentence)
            worker.request = None
        if self.waiting:
            self._start(worker.number)

    def _say_it_is_lost(self, request: RunRequest, reason: str) -> None:
        self.watcher.remarks(f"{request.path.name} is not finished: {reason}; the other runs go on")

    def _show(self, worker: Worker, state: State) -> None:
        """Tell the watcher the progress of a process's run, if it has changed."""
        if worker.request is None:
            return
        if worker.shown is not None and worker.shown.state == "finished before":
            return
        news = news_of(worker.request, state)
        if news != worker.shown:
            worker.shown = news
            self.watcher.news(news)


def environments(requests: Sequence[RunRequest], processes: int) -> list[dict[str, str]]:
    """The environment variables of each process: threads for its share of the cores, and perhaps a GPU.

    Processes get different GPUs if all runs are to train on "cuda" without a number. Threads and GPUs must be
    chosen before torch is imported.
    """
    threads = str(max(1, len(os.sched_getaffinity(0)) // processes))
    common = {"OMP_NUM_THREADS": threads, **os.environ}
    devices = {request.scenario().training.device for request in requests}
    gpus = _gpus() if devices == {SHARED_GPU} else []
    if len(gpus) < 2:
        return [common] * processes
    return [common | {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} for number in range(processes)]


def _gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return named or [str(number) for number in range(torch.cuda.device_count())]


# ── in each of the processes ─────────────────────────────────────────────────────────────────────────────


REMARK, FOUND = "remark", "found"  # kinds of messages before a run ends


def work(line: Connection) -> None:
    """Train the runs of requests from a connection until it sends None or is closed.

    Only the process that started this one can write to the connection, so its pickles are trusted. A run
    stops after its round, with a checkpoint, as soon as there is anything to read: a None, or the end of the
    other process.
    """
    watcher = QuietWatcher(lambda sentence: line.send((REMARK, sentence)), lambda: line.send((FOUND, "")))
    while (order := line.recv()) is not None:
        request, after = order
        stopped = Ending(Interrupted, "interrupted before it began") if line.poll() else None
        line.send(stopped or attempt(request, after, watcher, stop_asked=line.poll))


if __name__ == "__main__":  # the argument is the file number of the connection
    with suppress(EOFError, BrokenPipeError):  # the other process has ended
        work(Connection(int(sys.argv[1])))
