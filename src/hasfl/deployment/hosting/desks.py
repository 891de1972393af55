"""Where whoever ordered a run and the fed server's app leave each other notes: a folder for each order.

The app locks the folder while it works, so it is known at once when the app was killed. A file asks the app
to stop at the end of an interval. Another file says how the app ended.
"""

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hasfl.errors import EXIT_FAILURE, HasflError, Interrupted, StorageError
from hasfl.replacing import replace_file, write_text
from hasfl.runs.store import FolderLock

DESKS_FOLDER = "desks"
STOP_FILE, END_FILE = "stop", "end.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an app ended that was not killed."""

    sentence: str = ""  # why it ended before the training was finished; empty if it was
    exit_code: int = 0  # of a command that hears of it
    stopped: bool = False  # whether it was asked to stop, and did


@dataclass(frozen=True, slots=True)
class Desk:
    """The folder of one order."""

    folder: Path

    @classmethod
    def new(cls, state: Path) -> "Desk":
        """A desk for an order, in the fed server's state folder."""
        desk = cls(state.resolve() / DESKS_FOLDER / secrets.token_hex(8))
        try:
            desk.folder.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise StorageError(f"cannot make the folder {desk.folder}: {error.strerror}") from None
        return desk

    def ask_to_stop(self) -> None:
        """Have the app stop at the end of its interval, when everything is saved."""
        (self.folder / STOP_FILE).touch()

    @property
    def stop_asked(self) -> bool:
        """Whether the app is to stop."""
        return (self.folder / STOP_FILE).exists()

    def leave_if_asked(self) -> None:
        """Stop now, if the app is to stop; for moments when nothing is trained."""
        if self.stop_asked:
            raise Interrupted("stopped between two intervals, as asked")

    @property
    def attended(self) -> bool:
        """Whether the app works at this moment."""
        return FolderLock.is_taken(self.folder)

    def ending(self) -> Ending | None:
        """How the app ended; None while it works, and if it was killed."""
        try:
            return Ending(**json.loads((self.folder / END_FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    @contextmanager
    def occupied(self) -> Iterator[None]:
        """The app works. How it ends is noted before it unlocks. To stop as asked is no failure."""
        lock = FolderLock.take(self.folder)
        try:
            yield
            self._note(Ending())
        except Interrupted as error:
            self._note(_ending_of(error))
        except Exception as error:
            self._note(_ending_of(error))
            raise
        finally:
            lock.release()

    def _note(self, ending: Ending) -> None:
        text = json.dumps({name: getattr(ending, name) for name in Ending.__slots__})
        replace_file(self.folder / END_FILE, lambda file: write_text(file, text))


def _ending_of(error: Exception) -> Ending:
    if isinstance(error, HasflError):
        return Ending(sentence=str(error), exit_code=error.exit_code, stopped=isinstance(error, Interrupted))
    return Ending(sentence=f"{type(error).__name__}: {error}", exit_code=EXIT_FAILURE)
