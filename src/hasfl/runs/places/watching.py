"""How runs in other processes are watched: through their folders, and a few words from them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from hasfl.errors import InputError
from hasfl.record import RoundRecord
from hasfl.report.analysis import Outcome
from hasfl.runs.request import RunRequest
from hasfl.runs.run import Prepared, Watcher
from hasfl.runs.store import RunFolder

State = Literal["waits", "trains", "finished", "finished before", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What is known of a run that another process carries out."""

    request: RunRequest
    state: State
    round: int = 0  # the last one that is recorded
    clock: float = 0.0  # virtual seconds until its end
    accuracy: float | None = None  # of the last evaluation


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


class FewWords:
    """A watcher inside another process. Its words are remarks, and that a run was finished before."""

    def __init__(self, remarks: Callable[[str], None], found: Callable[[], None]) -> None:
        self._remarks, self._found = remarks, found

    def asked(self, request: RunRequest) -> None:
        """The process that gave the request knows it."""

    def prepares(self, step: str) -> None:
        """Nothing is told of steps before the first round."""

    def found(self, request: RunRequest) -> None:
        """The folder holds a finished training already."""
        self._found()

    def remarks(self, sentence: str) -> None:
        """Something that the user should know about the run before it goes on."""
        self._remarks(sentence)

    def started(self, request: RunRequest, prepared: Prepared, last: RoundRecord | None) -> None:
        """The run's folder tells it."""

    def recorded(self, record: RoundRecord) -> None:
        """The run's folder tells it."""

    def finished(self, reached: Outcome) -> None:
        """How the run ended is told at its end."""
