"""A run in another process: how it is carried out there, what its ending comes to, and how it is watched."""

import traceback
from collections.abc import Callable
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
from hasfl.runs.places.places import After
from hasfl.runs.request import RunRequest
from hasfl.runs.run import Watcher, carry_out
from hasfl.runs.store import RunFolder

# ── in the other process ─────────────────────────────────────────────────────────────────────────────────


# What an error is sent back as: the first of these that it is. Their messages are all that they have.
KINDS: tuple[type[HasflError], ...] = (InputError, MissingExtra, StorageError, Diverged, Interrupted)
# These would happen to the other runs too. Every other failure is that of one run.
OF_ALL = (InputError, MissingExtra, StorageError)
NAMED = 10  # missing runs that a message names


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended: without an error where it is finished."""

    error: type[HasflError] | None = None
    sentence: str = ""

    @property
    def concerns_all(self) -> bool:
        """Whether the other runs would end like this too: the input is wrong, or the disk is full."""
        return self.error is not None and issubclass(self.error, OF_ALL)


def attempt(
    request: RunRequest, after: After, watcher: Watcher, stop_asked: Callable[[], bool] = lambda: False
) -> Ending:
    """Carry out a request, then call `after`. The traceback of an unexpected error goes to standard error."""
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
    """What the endings of several runs come to."""

    lost: dict[str, str] = field(default_factory=dict)  # why a run is not finished, by its name
    refusal: Ending | None = None  # the first failure that concerns all runs

    def add(self, request: RunRequest, ending: Ending) -> None:
        """A run has ended."""
        if ending.concerns_all:
            self.refusal = self.refusal or ending
        elif ending.error is not None:
            self.lost[request.path.name] = ending.sentence

    def settle(self, runs: int) -> None:
        """Raise what concerned all of so many runs, or RunsMissing with the name of every missing run."""
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
    """A watcher inside another process. Its words are remarks, and that a run was finished before.

    The run's folder tells everything else.
    """

    def __init__(self, remarks: Callable[[str], None], found: Callable[[], None]) -> None:
        self._remarks, self._found = remarks, found

    def found(self, request: RunRequest) -> None:
        """The folder holds a finished training already."""
        self._found()

    def remarks(self, sentence: str) -> None:
        """Something that the user should know about the run before it goes on."""
        self._remarks(sentence)


# ── from this process, through the run's folder ──────────────────────────────────────────────────────────


State = Literal["waits", "trains", "finished", "finished before", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What is known of a run that another process carries out."""

    request: RunRequest
    state: State
    round: int = 0  # the last one that is recorded
    clock: float = 0.0  # virtual seconds until its end
    accuracy: float | None = None  # by the last evaluation


class PlaceWatcher(Watcher, Protocol):
    """Is told about trainings in this process, and about runs in other processes."""

    def news(self, news: News) -> None:
        """Something has changed for a run in another process."""


def in_use(request: RunRequest) -> bool:
    """Whether a process writes to the run's folder at this moment. The folder may be gone in the next one."""
    try:
        return RunFolder.open(request.path).in_use
    except InputError:
        return False


def news_of(request: RunRequest, state: State) -> News:
    """How far a run is, as its folder tells. Only the end of the record of rounds is read.

    Another process may rewrite the record at this moment; then nothing is known until the next look.
    """
    try:
        folder = RunFolder.open(request.path)
        last = next(folder.newest_records(), None)
        accuracies = (record.shown_accuracy for record in folder.newest_records())
        accuracy = next((value for value in accuracies if value is not None), None)
    except InputError:
        last = None
    if last is None:
        return News(request=request, state=state)
    return News(request=request, state=state, round=last.round, clock=last.clock, accuracy=accuracy)
