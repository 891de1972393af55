"""Runs in several processes of this machine. Each process carries out many runs, one after the other."""

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
from hasfl.runs.places.places import After, continued_by_the_same_command
from hasfl.runs.places.watching import (
    Ending,
    Endings,
    News,
    PlaceWatcher,
    QuietWatcher,
    State,
    attempt,
    in_use,
    news_of,
)
from hasfl.runs.request import RunRequest

TICK = 0.5  # seconds between two looks at the runs that train; chosen by hand
STANDARD_ERROR = 2  # the file number; the command's own output stays free of what models print
SHARED_GPU = "cuda"  # a device that names no GPU, so that each process may have another one


@dataclass(frozen=True, slots=True)
class LocalProcesses:
    """Processes of this machine.

    Ctrl-C and SIGTERM stop every run after its round, with a checkpoint; a second signal stops at once. A
    wrong input stops the other runs in the same way, because it is most often wrong for them too. Where a
    process is killed, or a loss diverges, the other runs go on, and RunsMissing names the run at the end.
    """

    processes: int

    def carry_out(self, requests: Sequence[RunRequest], after: After, watcher: PlaceWatcher) -> None:
        """Carry out every request."""
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
    """A process, the line to it, and the run that it carries out."""

    process: "subprocess.Popen[bytes]"
    line: Connection
    number: int
    request: RunRequest | None = None
    shown: News | None = None  # what was last told of its run

    @classmethod
    def start(cls, number: int, environment: Mapping[str, str]) -> Self:
        """Start a process in a session of its own, so that Ctrl-C in a terminal reaches only this process."""
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
        """End the process, at once if a run is not over: its last checkpoint is on the disk."""
        self.line.close()
        if self.request is not None:
            self.process.kill()
        self.process.wait()

    def how_it_ended(self) -> str:
        """What ended a process that has ended by itself."""
        code = self.process.wait()
        return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


class Crew:
    """The processes, and what they still have to do."""

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
        """Whether a process carries out a run."""
        return any(worker.request is not None for worker in self.workers)

    def listen(self, seconds: float) -> None:
        """Wait so long for what processes tell, then look at the runs."""
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
        """Let every run stop after its round; no other one begins."""
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
        with suppress(BrokenPipeError, ConnectionResetError):  # it has ended; `listen` finds out how
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
        """A run is over."""
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
        """A process has ended. Another one takes its place, where runs are left."""
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
        """Tell of a run, if there is something new."""
        if worker.request is None:
            return
        if worker.shown is not None and worker.shown.state == "finished before":
            return
        news = news_of(worker.request, state)
        if news != worker.shown:
            worker.shown = news
            self.watcher.news(news)


def environments(requests: Sequence[RunRequest], processes: int) -> list[dict[str, str]]:
    """The environment of each process: its share of the cores, and one GPU where runs leave the choice open.

    Threads and GPUs must be chosen before torch is imported.
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


REMARK, FOUND = "remark", "found"  # what is told before a run ends


def work(line: Connection) -> None:
    """Carry out one request after the other, until there is a None, or until nobody is at the other end.

    Only the process that started this one can write to the line, so what comes over it is trusted. A run
    stops after its round, with a checkpoint, as soon as anything is on the line: a None, or the end of that
    process.
    """
    watcher = QuietWatcher(lambda sentence: line.send((REMARK, sentence)), lambda: line.send((FOUND, "")))
    while (order := line.recv()) is not None:
        request, after = order
        stopped = Ending(Interrupted, "interrupted before it began") if line.poll() else None
        line.send(stopped or attempt(request, after, watcher, stop_asked=line.poll))


if __name__ == "__main__":  # its argument is the number of an open file, the line
    with suppress(EOFError, BrokenPipeError):  # the other process has ended
        work(Connection(int(sys.argv[1])))
