"""The fed server's state folder: the settings of its host, and the orders of runs.

Each order has its own folder, through which the fed server's app and the process that ordered the run
communicate. Flower carries only the name of that folder, because every node can see the configuration of a
run. This file needs neither torch nor Flower.
"""

import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from hasfl.deployment.addresses import FED_ADDRESS, SUPERLINK_ADDRESS, log_file
from hasfl.errors import EXIT_FAILURE, HasflError, InputError, Interrupted, StorageError
from hasfl.replacing import replace_file, write_text
from hasfl.runs.request import RunRequest
from hasfl.runs.store import FolderLock, RunFolder, require_free

HOST_FILE = "fed.json"
ORDERS_FOLDER = "orders"
ORDER_FILE, STOP_FILE, END_FILE = "order.json", "stop", "end.json"  # files in the folder of an order
NAME = re.compile(r"[0-9a-f]{16}")  # name of an order
PATHS = ("scenario_file", "path")  # fields of a request that are paths
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class FedHost:
    """The keys and addresses of the fed server's host."""

    keys: Path  # folder of the fed server's keys
    superlink: str = SUPERLINK_ADDRESS  # host:port of Flower's SuperLink; loopback or private
    listen: str = FED_ADDRESS  # host:port where the edge server and devices connect during a run
    announce: str = ""  # host:port that the edge server and devices are told, if it differs from `listen`

    @classmethod
    def read(cls, state: Path) -> "FedHost":
        """Read the settings of the fed server with this state folder."""
        return _read(state / HOST_FILE, lambda found: cls(**{**found, "keys": Path(found["keys"])}))

    def write(self, state: Path) -> None:
        """Write the settings into the state folder."""
        _write(state / HOST_FILE, {**asdict(self), "keys": str(self.keys.resolve())})

    @property
    def told(self) -> str:
        """The address that the edge server and devices are told."""
        return self.announce or self.listen


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """An ordered training: what to train, and when to begin."""

    request: RunRequest
    resume: bool = False
    devices: int = 1  # number of devices that must be connected, with the edge server, before training begins
    patience: float = 600.0  # seconds to wait for these parties before the run fails; chosen by hand

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "RunOrder":
        """Read the values of `as_json`; TypeError or KeyError for other values."""
        request = dict(found["request"])
        request |= {name: Path(request[name]) for name in PATHS}
        return cls(**{**found, "request": RunRequest(**request)})

    def as_json(self) -> dict[str, Any]:
        """The order as plain values, with absolute paths because another process carries it out."""
        found = asdict(self)
        found["request"] |= {name: str(getattr(self.request, name).resolve()) for name in PATHS}
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The note in which the fed server's app says how it ended, if it was not killed."""

    sentence: str = ""  # reason for ending before the training was finished; empty if it was finished
    exit_code: int = 0  # exit code for the command that ordered the run
    stopped: bool = False  # whether the app stopped because it was asked to


@dataclass(frozen=True, slots=True)
class OrderFolder:
    """The folder of one order: the order, the wish to stop, and the note of the app's end.

    The fed server's app locks the folder while it works, so others notice at once when the app was killed.
    """

    path: Path

    @classmethod
    def write(cls, state: Path, order: RunOrder) -> "OrderFolder":
        """Write an order into a new folder in the fed server's state folder."""
        folder = cls(state.resolve() / ORDERS_FOLDER / secrets.token_hex(8))
        _write(folder.path / ORDER_FILE, order.as_json())
        return folder

    @classmethod
    def named(cls, state: Path, name: str) -> "OrderFolder":
        """The folder of the order with this name; the name is checked, as it came over the network."""
        if NAME.fullmatch(name) is None:
            raise InputError(f"the name of an order must have 16 hexadecimal digits, got {name!r:.40}")
        return cls(state.resolve() / ORDERS_FOLDER / name)

    @property
    def name(self) -> str:
        """The name of the order, which Flower carries."""
        return self.path.name

    def order(self) -> RunOrder:
        """Read the order."""
        return _read(self.path / ORDER_FILE, RunOrder.from_json)

    def ask_to_stop(self) -> None:
        """Ask the app to stop at the end of the interval, when everything is saved."""
        (self.path / STOP_FILE).touch()

    def stop_asked(self) -> bool:
        """Whether the app was asked to stop."""
        return (self.path / STOP_FILE).exists()

    def app_works(self) -> bool:
        """Whether the app is working now."""
        return FolderLock.is_taken(self.path)

    def ending(self) -> Ending | None:
        """The note of the app's end; None while the app works, and if it was killed."""
        try:
            return Ending(**json.loads((self.path / END_FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    @contextmanager
    def working(self) -> Iterator[None]:
        """Lock the folder while the app works, and note how the app ends; stopping as asked is no error."""
        lock = FolderLock.take(self.path)
        try:
            yield
            self._note(Ending())
        except Interrupted as error:
            self._note(Ending(sentence=str(error), exit_code=error.exit_code, stopped=True))
        except HasflError as error:
            self._note(Ending(sentence=str(error), exit_code=error.exit_code))
            raise
        except Exception as error:
            self._note(Ending(sentence=f"{type(error).__name__}: {error}", exit_code=EXIT_FAILURE))
            raise
        finally:
            lock.release()

    def _note(self, ending: Ending) -> None:
        text = json.dumps(asdict(ending))
        replace_file(self.path / END_FILE, lambda file: write_text(file, text))


def log_of_run(state: Path, number: int) -> Path:
    """The log file of the fed server's app for the run with this number at Flower."""
    return log_file(state, f"run-{number}")


def _write(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file that only its owner may read, in a folder that only its owner may use."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(value, file)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from None


def _read(path: Path, make: Callable[[Any], Value]) -> Value:
    try:
        found: Any = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read {path} ({error}): start the fed server, and order the run again"
        ) from None
    try:
        return make(found)
    except (TypeError, KeyError, ValueError):
        raise InputError(f"{path} is of another version of hasfl: order the run again") from None


# ── checks before a run is ordered ───────────────────────────────────────────────────────────────────────


def require_splitting(chosen: Any, folder: Path) -> None:
    """Refuse strategies whose training needs no edge server, or collects samples."""
    from hasfl.planning.strategies.catalogue import (
        strategy,  # imported here because SciPy, which it imports, takes half a second
    )

    found = strategy(chosen, folder)
    if found.paradigm.collects_data:
        raise InputError(
            f"{found.name} collects the samples of all devices at a server, and a fleet keeps its samples: "
            "choose a strategy that splits, such as hasfl or sfl"
        )
    if not found.paradigm.splits:
        raise InputError(
            f"{found.name} trains the whole model on every device, without an edge server: choose a "
            "strategy that splits, such as hasfl or sfl"
        )


def check_request(request: RunRequest, *, resume: bool) -> None:
    """Refuse early a request that the fed server would refuse later."""
    require_splitting(request.strategy, request.folder)
    if request.scenario().training.score_last:
        raise InputError(
            "training.score_last is for simulations, because parties of a deployment judge the served model "
            "alone: leave it out"
        )
    if not resume:
        require_free(request.path)
    elif request.path.exists():
        with RunFolder.open(request.path) as folder:
            if folder.in_use:
                raise InputError(f"{request.path} is being trained already: wait until that run ends")
