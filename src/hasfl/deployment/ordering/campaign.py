"""A run on the fleet from its order to its end, as the person who ordered it sees it.

The fed server's app trains, and writes the run's folder and a log. Whoever ordered the run reads both. If the
app is killed, the run is ordered again and goes on from its checkpoint.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from hasfl.deployment.flower.submission import Control, SuperLinkAway
from hasfl.deployment.hosting.desks import Desk, Ending
from hasfl.deployment.hosting.orders import RunOrder
from hasfl.deployment.hosting.places import LOGS_FOLDER
from hasfl.deployment.ordering.following import LogTail, RecordTail
from hasfl.errors import EXIT_FAILURE, HasflError, Interrupted
from hasfl.record import RoundRecord
from hasfl.report.analysis import Outcome, outcome
from hasfl.runs.interruption import Interruption
from hasfl.runs.store import RunFolder

LOOK_SECONDS = 0.2  # between two looks at what the run has written
ASK_SECONDS = 2.0  # between two questions to Flower
AWAY_SECONDS = 120.0  # that the SuperLink may be away, such as while the fed server's host restarts
MOST_DEATHS = 3  # of the app without a new round between them
RESUME = "the same command with --resume continues the run"
STOPPED = f"stopped at the end of an interval; {RESUME}"


class RunFailed(HasflError):
    """A run on the fleet ended before it was finished."""

    def __init__(self, sentence: str, exit_code: int = EXIT_FAILURE) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


class FleetWatcher(Protocol):
    """Is told about a run on the fleet."""

    def prepares(self, step: str) -> None:
        """Something happened before the first round."""

    def remarks(self, sentence: str) -> None:
        """Something happened that the user should know."""

    def began(self, first: RoundRecord) -> None:
        """The first round that is seen is over."""

    def recorded(self, record: RoundRecord) -> None:
        """A round is over."""

    def finished(self, reached: Outcome) -> None:
        """The training is over."""


@dataclass(slots=True, eq=False)
class Campaign:
    """An order at the fed server with this state folder, through all attempts to carry it out."""

    control: Control
    state: Path
    order: RunOrder
    watcher: FleetWatcher
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    number: int = field(init=False)  # that Flower gave the run
    desk: Desk = field(init=False)
    log: LogTail = field(init=False)
    records: RecordTail = field(init=False)
    _rounds: int = 0  # that were told
    _prepares: bool = True  # whether no round is over since the last order
    _deaths: int = 0  # of the app since the last round
    _attended: bool = False  # whether the app has begun to work
    _asked: float = 0.0  # when Flower was asked last
    _answered: float = 0.0  # when Flower answered last

    def carry_out(self) -> Outcome:
        """Order the run, and follow it to its end. Ctrl-C stops it at the end of an interval."""
        self.records = RecordTail(Path(self.order.path))
        if self.order.resume:
            list(self.records.records())  # those were told before
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
        """Order the run, with a desk of its own."""
        self.desk, self._attended, self._prepares = Desk.new(self.state), False, True
        self.order = replace(self.order, desk=str(self.desk.folder))
        self.number = self.control.start(self.state, self.order)
        self.log = LogTail(self.state.resolve() / LOGS_FOLDER / f"run-{self.number}.log")
        self._asked = self._answered = self.now()

    def _look(self, interruption: Interruption) -> Outcome | None:
        """Tell what is new; the outcome if the run is finished."""
        attended, ending = self.desk.attended, self.desk.ending()
        self._tell_news()
        if interruption.wanted and not (attended or self._attended or ending):
            self.control.stop(self.number)
            interruption.act("stopped before the run began")
        if interruption.wanted and not self.desk.stop_asked:
            self.desk.ask_to_stop()
            self.watcher.remarks("the run stops at the end of this interval; Ctrl-C again stops it at once")
        if ending is not None:
            return self._end(ending, interruption)
        if attended:
            self._attended = True
        elif self._attended or self._ended_at_flower():
            self._order_again(interruption)
        return None

    def _tell_news(self) -> None:
        for line in self.log.lines():
            (self.watcher.prepares if self._prepares else self.watcher.remarks)(line)
        for record in self.records.records():
            if not self._rounds:
                self.watcher.began(record)
            self._rounds, self._deaths, self._prepares = self._rounds + 1, 0, False
            self.watcher.recorded(record)

    def _end(self, ending: Ending, interruption: Interruption) -> Outcome:
        """The app ended by itself: the training is finished, was stopped, or has failed."""
        with RunFolder(Path(self.order.path)) as folder:
            if folder.finished:
                self._tell_news()
                reached = outcome(self.order.strategy, folder.records())
                self.watcher.finished(reached)
                return reached
        if ending.stopped:
            interruption.act(STOPPED)
            raise Interrupted(STOPPED)
        sentence = ending.sentence or "the training ended without a result"
        raise RunFailed(f"{sentence} (the log is {self.log.path})", ending.exit_code or EXIT_FAILURE)

    def _ended_at_flower(self) -> bool:
        """Whether Flower says that the run has ended. This is asked while the app does not work yet."""
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
        """The app was killed: have Flower forget it, and order the run again."""
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
