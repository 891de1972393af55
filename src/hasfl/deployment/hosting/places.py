"""Where a host keeps its keys and its state, and what is in the state folder."""

from dataclasses import dataclass
from pathlib import Path

from hasfl.errors import StorageError

STATE_VARIABLE = "HASFL_STATE"  # the state folder, in the environment of every program of a host
SOCKET_FILE = "worker.sock"  # where the worker takes sessions
LOGS_FOLDER = "logs"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a host keeps its keys, and where its processes may write."""

    keys: Path  # the folder of this party, made by hasfl keys
    state: Path  # for its owner alone

    def log(self, name: str) -> Path:
        """The file that a program's output goes to."""
        return self.state.resolve() / LOGS_FOLDER / f"{name}.log"

    def make(self) -> None:
        """Make the state folder, for its owner alone."""
        try:
            self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make the folder {self.state}: {error.strerror}") from None
