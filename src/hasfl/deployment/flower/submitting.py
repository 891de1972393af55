"""Submitting a run to the fleet, and following it to its end in the process that ordered it.

The fed server's app trains, and writes the run's folder and a log. The process that ordered the run reads
both. If the app is killed, the run is ordered again and goes on from its checkpoint. The state folder tells
where the fed server on this machine is.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from hasfl.deployment.channels import EDGE_NAME
from hasfl.deployment.flower.control import Control, Node, Run, SuperLinkAway
from hasfl.deployment.orders import (
    HOST_FILE,
    ORDERS_FOLDER,
    Ending,
    FedHost,
    OrderFolder,
    RunOrder,
    log_of_run,
)
from hasfl.errors import EXIT_FAILURE, HasflError, InputError, Interrupted
from hasfl.record import RoundRecord
from hasfl.report.analysis import Outcome, outcome
from hasfl.runs.interruption import Interruption
from hasfl.runs.store import RunFolder

# The numbers below were chosen by hand.
LOOK_SECONDS = 0.2  # pause between two checks of the run's folder and log
ASK_SECONDS = 2.0  # pause between two questions to Flower
AWAY_SECONDS = 120.0  # time for which the SuperLink may be away, for example while its host restarts
MOST_DEATHS = 3  # times that the app may be killed without a new round between them
RESUME = "the same command with --resume continues the run"
STOPPED = f"stopped at the end of an interval; {RESUME}"
TIME = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")  # the time at the beginning of a log line


class RunFailed(HasflError):
    """A run on the fleet ended before it was finished."""

    def __init__(self, sentence: str, exit_code: int = EXIT_FAILURE) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


class FleetWatcher(Protocol):
    """An observer of a run on the fleet, such as the command line."""

    def prepares(self, step: str) -> None:
        """Called with each event before the first round."""

    def remarks(self, sentence: str) -> None:
        """Called with each other event that the user should know."""

    def recorded(self, record: RoundRecord) -> None:
        """Called after each round."""

    def finished(self, reached: Outcome) -> None:
        """Called when the training is finished."""


@dataclass(slots=True, eq=False)
class SubmittedRun:
    """A submitted run, through all attempts to carry out its order; `state` is the fed server's folder."""

    control: Control
    state: Path
    order: RunOrder
    watcher: FleetWatcher
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    number: int = field(init=False)  # Flower's number of the run
    folder: OrderFolder = field(init=False)  # folder of the last order
    log: "LogTail" = field(init=False)
    records: "RecordTail" = field(init=False)
    _prepares: bool = True  # whether no round has ended since the last order
    _deaths: int = 0  # times that the app was killed since the last round
    _begun: bool = False  # whether the app has begun to work
    _asked: float = 0.0  # time of the last question to Flower
    _answered: float = 0.0  # time of Flower's last answer

    def follow(self) -> Outcome:
        """Order the run, and follow it to its end. Ctrl-C stops it at the end of an interval."""
        self.records = RecordTail(self.order.request.path)
        if self.order.resume:
            list(self.records.records())  # skip the records of earlier rounds
        with Interruption() as interruption:
            self._start()
            try:
                while (reached := self._look(interruption)) is None:
                    self.sleep(LOOK_SECONDS)
            except KeyboardInterrupt:  # the second Ctrl-C
                self.control.stop(self.number)
                raise
            return reached

    def _start(self) -> None:
        self._begun, self._prepares = False, True
        self.folder = OrderFolder.write(self.state, self.order)
        self.number = self.control.start(self.state, self.folder.name)
        self.log = LogTail(log_of_run(self.state, self.number))
        self._asked = self._answered = self.now()

    def _look(self, interruption: Interruption) -> Outcome | None:
        """Tell the watcher what is new, and return the outcome once the run is finished."""
        works, ending = self.folder.app_works(), self.folder.ending()
        self._tell_news()
        if interruption.wanted and not (works or self._begun or ending):
            self.control.stop(self.number)
            interruption.act("stopped before the run began")
        if interruption.wanted and not self.folder.stop_asked():
            self.folder.ask_to_stop()
            self.watcher.remarks("the run stops at the end of this interval; Ctrl-C again stops it at once")
        if ending is not None:
            return self._end(ending, interruption)
        if works:
            self._begun = True
        elif self._begun or self._ended_at_flower():
            self._order_again(interruption)
        return None

    def _tell_news(self) -> None:
        for line in self.log.lines():
            (self.watcher.prepares if self._prepares else self.watcher.remarks)(line)
        for record in self.records.records():
            self._deaths, self._prepares = 0, False
            self.watcher.recorded(record)

    def _end(self, ending: Ending, interruption: Interruption) -> Outcome:
        """Handle the end of the app, if it was not killed: training is finished, was stopped, or failed."""
        with RunFolder(self.order.request.path) as folder:
            if folder.finished:
                self._tell_news()
                reached = outcome(self.order.request.strategy, folder.records())
                self.watcher.finished(reached)
                return reached
        if ending.stopped:
            interruption.act(STOPPED)
            raise Interrupted(STOPPED)
        sentence = ending.sentence or "the training ended without a result"
        raise RunFailed(f"{sentence} (the log is {self.log.path})", ending.exit_code or EXIT_FAILURE)

    def _ended_at_flower(self) -> bool:
        """Whether the run has ended at Flower before the app began to work; asks every ASK_SECONDS."""
        if self.now() - self._asked < ASK_SECONDS:
            return False
        self._asked = self.now()
        try:
            finished = self._finished_at_flower()
        except SuperLinkAway as away:
            if self.now() - self._answered > AWAY_SECONDS:
                raise RunFailed(f"{away}; {RESUME}") from None
            return False
        self._answered = self.now()
        return finished

    def _finished_at_flower(self) -> bool:
        run = self.control.run(self.number)
        if run.finished and run.outcome == "stopped":
            raise Interrupted(f"the run was stopped through Flower; {RESUME}")
        return run.finished

    def _order_again(self, interruption: Interruption) -> None:
        """Handle a killed app: stop its run at Flower, and order the run again."""
        interruption.act(f"the fed server's app was killed; {RESUME}")
        self._deaths += 1
        if self._deaths > MOST_DEATHS:
            raise RunFailed(
                f"the fed server's app was killed {self._deaths} times without a new round: "
                f"{self.log.path} and the logs beside it say more"
            )
        self.watcher.remarks("the fed server's app was killed; the run is ordered again")
        deadline = self.now() + AWAY_SECONDS
        while True:
            try:
                if not self._finished_at_flower():
                    self.control.stop(self.number)
                self.order = replace(self.order, resume=True)
                return self._start()
            except SuperLinkAway as away:
                if self.now() > deadline:
                    raise RunFailed(f"{away}; {RESUME}") from None
                interruption.act(f"{away}; {RESUME}")
                self.sleep(ASK_SECONDS)


class LogTail:
    """The new lines of a log that another process writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0  # number of bytes read so far

    def lines(self) -> list[str]:
        """The complete lines since the last call, without their times and without tracebacks."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except OSError:
            return []
        complete = new[: new.rfind(b"\n") + 1]
        self._read += len(complete)
        lines = complete.decode(errors="replace").splitlines()
        return [TIME.sub("", line) for line in lines if TIME.match(line)]


class RecordTail:
    """The new records of a run that another process writes, also if the run goes back to its checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen = 0  # round of the last record that was returned

    def records(self) -> Iterator[RoundRecord]:
        """The records since the last call; rounds after a checkpoint that are trained again come again."""
        if not (self.path / "settings.json").exists():
            return
        with RunFolder.open(self.path) as folder:
            newest = next(folder.newest_records(), None)
            self.seen = min(self.seen, newest.round if newest else 0)
            new = list(takewhile(lambda record: record.round > self.seen, folder.newest_records()))
        for record in reversed(new):
            self.seen = record.round
            yield record


# ── the fed server on this machine ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A run that Flower knows, with the folder and strategy of its order."""

    number: int  # Flower's number of the run
    state: str  # pending, starting, running, completed, failed or stopped
    details: str  # reason of a failure
    log: str  # log file of the fed server's app
    folder: str  # folder of the run; empty if the order is missing
    strategy: str = ""


@contextmanager
def fed_server(state: Path, superlink: str | None = None, keys: Path | None = None) -> Iterator[Control]:
    """The control API of the fed server with this state folder; `superlink` and `keys` replace its own."""
    if not (state / HOST_FILE).is_file():
        raise InputError(
            f"{state} must be the state folder of a fed server, but has no {HOST_FILE}: start hasfl serve "
            "fed on this machine, or give its folder with --state"
        )
    host = FedHost.read(state)
    with Control(superlink or host.superlink, keys or host.keys) as found:
        if not found.ready():
            raise InputError(
                f"no SuperLink answers at {found.superlink} with the keys of {keys or host.keys}: start "
                "hasfl serve fed, or give its address with --superlink"
            )
        yield found


def devices_of_run(state: Path, run: Path) -> int | None:
    """The number of devices in the order with which a run began; None if no order is in this folder."""
    files = sorted((state / ORDERS_FOLDER).glob("*/order.json"), key=lambda file: file.stat().st_mtime)
    began = None
    for file in files:
        try:
            order = OrderFolder(file.parent).order()
        except HasflError:  # an order of another version of hasfl
            continue
        if order.request.path == run.resolve() and (began is None or not order.resume):
            began = order.devices  # the last order without --resume counts, as the run may have begun again
    return began


def devices_to_wait_for(found: Control, wanted: int | None) -> int:
    """The number of devices with which a run begins: `wanted`, or all admitted devices."""
    admitted = sum(node.name != EDGE_NAME for node in found.nodes())
    if admitted == 0:
        raise InputError("the fed server must admit a device, but admits none: make keys with hasfl keys")
    if wanted is not None and wanted > admitted:
        raise InputError(
            f"--devices must be at most {admitted}, the devices that the fed server admits, got {wanted}: "
            "admit more with hasfl keys --add"
        )
    return admitted if wanted is None else wanted


def sorted_nodes(nodes: Sequence[Node]) -> list[Node]:
    """Sort nodes: the edge server, then devices in the order of the fleet."""
    return sorted(nodes, key=lambda node: (node.name != EDGE_NAME, len(node.name), node.name))


def known_run(state: Path, run: Run) -> KnownRun:
    """Add the folder and strategy of its order to a run of Flower."""
    folder = strategy = ""
    word = run.outcome if run.finished else run.status
    try:
        ordered = OrderFolder.named(state, run.order)
        request, ending = ordered.order().request, ordered.ending()
        folder, strategy = str(request.path), request.strategy
        if word == "completed" and ending is not None and ending.stopped:  # Flower counts this as success
            word = "stopped"
    except HasflError:  # the order is in another state folder, or of another version of hasfl
        pass
    return KnownRun(run.number, word, run.details, str(log_of_run(state, run.number)), folder, strategy)
