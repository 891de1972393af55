"""Trains a run in another process, reports how it ended, and watches it through its folder."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, Protocol

from hasfl.errors import (
    Diverged,
    HasflError,
    InputError,
    Interrupted,
    MissingExtra,
    RunsMissing,
    StorageError,
)
from hasfl.runs.overview import last_evaluated
from hasfl.runs.request import RunRequest
from hasfl.runs.run import Watcher, carry_out
from hasfl.runs.store import RunFolder

After = Callable[[RunRequest], None]  # called for every finished run, in the process that trained it


def nothing_more(request: RunRequest) -> None:
    """Do nothing: an `after` for places."""


@contextmanager
def continued_by_the_same_command() -> Iterator[None]:
    """Give an interruption of several runs a message that tells how all of them are continued."""
    try:
        yield
    except Interrupted as stop:
        raise type(stop)("interrupted; the same command continues from there") from None


# ── in the other process ─────────────────────────────────────────────────────────────────────────────────


# The classes as which errors are sent to the first process: an error gets the first of these that it is an
# instance of. All of them can be made from a message alone.
KINDS: tuple[type[HasflError], ...] = (InputError, MissingExtra, StorageError, Diverged, Interrupted)
# Errors that would happen to the other runs too. All other errors concern one run.
OF_ALL = (InputError, MissingExtra, StorageError)
NAMED = 10  # number of unfinished runs that a message names; chosen by hand


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended. A finished run has no error."""

    error: type[HasflError] | None = None
    sentence: str = ""

    @property
    def concerns_all(self) -> bool:
        """Whether the other runs would fail in the same way, such as by a wrong input or a full disk."""
        return self.error is not None and issubclass(self.error, OF_ALL)


def attempt(
    request: RunRequest, after: After, watcher: Watcher, stop_asked: Callable[[], bool] = lambda: False
) -> Ending:
    """Train the run of a request, then call `after`. Returns how the run ended, and raises no Exception.

    The traceback of an unexpected error goes to standard error.
    """
    try:
        carry_out(request, watcher, resume=True, stop_asked=stop_asked)
        after(request)
    except HasflError as error:
        kind = next((kind for kind in KINDS if isinstance(error, kind)), RunsMissing)
        return Ending(kind, str(error))
    except ModuleNotFoundError as error:
        return Ending(MissingExtra, f"a run needs {error.name}: pip install 'hasfl[train]'")
    except OSError as error:
        return Ending(StorageError, f"cannot write: {error.strerror or error}")
    except Exception as error:
        traceback.print_exc()
        return Ending(RunsMissing, f"failed with {type(error).__name__}: {error}")
    return Ending()


@dataclass(slots=True)
class Endings:
    """Collects how several runs ended, and raises the error that follows."""

    lost: dict[str, str] = field(default_factory=dict)  # for each unfinished run, by name, the reason
    refusal: Ending | None = None  # the first failure that concerns all runs

    def add(self, request: RunRequest, ending: Ending) -> None:
        """Add the ending of a run."""
        if ending.concerns_all:
            self.refusal = self.refusal or ending
        elif ending.error is not None:
            self.lost[request.path.name] = ending.sentence

    def settle(self, runs: int) -> None:
        """Raise the error that concerned all runs, or RunsMissing with unfinished ones; `runs` counts all."""
        if self.refusal is not None and self.refusal.error is not None:
            raise self.refusal.error(self.refusal.sentence)
        if self.lost:
            named = ", ".join(f"{name} ({reason})" for name, reason in islice(self.lost.items(), NAMED))
            more = f" and {len(self.lost) - NAMED} more" if len(self.lost) > NAMED else ""
            raise RunsMissing(
                f"{len(self.lost)} of {runs} runs did not finish: {named}{more}; the same command continues "
                "what is missing"
            )


class QuietWatcher(Watcher):
    """A watcher inside another process. It reports remarks, and runs that were finished before.

    Everything else can be read from the folder of the run.
    """

    def __init__(self, remarks: Callable[[str], None], found: Callable[[], None]) -> None:
        self._remarks, self._found = remarks, found

    def found(self, request: RunRequest) -> None:
        """The folder of the run holds a finished training already."""
        self._found()

    def remarks(self, sentence: str) -> None:
        """A sentence that the user should read before the run goes on."""
        self._remarks(sentence)


# ── from this process, through the run's folder ──────────────────────────────────────────────────────────


State = Literal["waits", "trains", "finished", "finished before", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """The progress of a run that another process trains."""

    request: RunRequest
    state: State
    round: int = 0  # the last round that is recorded
    clock: float = 0.0  # virtual time at the end of this round, s
    accuracy: float | None = None  # accuracy of the last evaluation


class PlaceWatcher(Watcher, Protocol):
    """A watcher of trainings in this process and of runs in other processes."""

    def news(self, news: News) -> None:
        """The state or the progress of a run in another process has changed."""


def in_use(request: RunRequest) -> bool:
    """Whether a process writes to the folder of a run at this moment; False if there is no such folder."""
    try:
        return RunFolder.open(request.path).in_use
    except InputError:
        return False


def news_of(request: RunRequest, state: State) -> News:
    """The progress of a run, read from its folder. Only the end of the file of rounds is read.

    Another process may be rewriting the file at this moment; then the progress is empty until the next call.
    """
    try:
        folder = RunFolder.open(request.path)
        last, evaluated = next(folder.newest_records(), None), last_evaluated(folder)
    except InputError:
        last = evaluated = None
    if last is None:
        return News(request=request, state=state)
    accuracy = None if evaluated is None else evaluated.shown_accuracy
    return News(request=request, state=state, round=last.round, clock=last.clock, accuracy=accuracy)
