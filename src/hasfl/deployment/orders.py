"""What the fed server's app reads when a run starts: how its host serves, and what was ordered.

The fed server's state folder holds both. An order has a folder of its own there, in which its app and whoever
ordered it leave each other notes. Flower carries only the name of that folder, since every node can see the
configuration of a run. Nothing here needs torch or Flower.
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
ORDER_FILE, STOP_FILE, END_FILE = "order.json", "stop", "end.json"  # in the folder of an order
NAME = re.compile(r"[0-9a-f]{16}")
PATHS = ("scenario_file", "path")  # of a request
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class FedHost:
    """How the fed server's host serves."""

    keys: Path  # the folder of the fed server's keys
    superlink: str = SUPERLINK_ADDRESS  # host:port of Flower; loopback or private
    listen: str = FED_ADDRESS  # host:port where the edge server and devices connect during a run
    announce: str = ""  # host:port that they are told, if it is not the same

    @classmethod
    def read(cls, state: Path) -> "FedHost":
        """How the fed server with this state folder serves."""
        return _read(state / HOST_FILE, lambda found: cls(**{**found, "keys": Path(found["keys"])}))

    def write(self, state: Path) -> None:
        """Keep how the fed server serves."""
        _write(state / HOST_FILE, {**asdict(self), "keys": str(self.keys.resolve())})

    @property
    def told(self) -> str:
        """The address that the edge server and devices are told."""
        return self.announce or self.listen


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """A training that somebody ordered: what to train, and how to begin."""

    request: RunRequest
    resume: bool = False
    devices: int = 1  # training begins when so many devices, and the edge server, are connected …
    patience: float = 600.0  # … or fails after so many seconds

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "RunOrder":
        """Read what `as_json` gave; TypeError or KeyError if it is something else."""
        request = dict(found["request"])
        request |= {name: Path(request[name]) for name in PATHS}
        return cls(**{**found, "request": RunRequest(**request)})

    def as_json(self) -> dict[str, Any]:
        """The order as plain values; paths are absolute, since another process carries it out."""
        request = self.request
        asked = {
            "scenario_file": str(request.scenario_file.resolve()),
            "text": request.text,
            "path": str(request.path.resolve()),
            "strategy": request.strategy,
            "seed": request.seed,
            "device": request.device,
        }
        return {
            "request": asked,
            "resume": self.resume,
            "devices": self.devices,
            "patience": self.patience,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an app ended that was not killed."""

    sentence: str = ""  # why it ended before the training was finished; empty if it was
    exit_code: int = 0  # of a command that hears of it
    stopped: bool = False  # whether it was asked to stop, and did


@dataclass(frozen=True, slots=True)
class OrderFolder:
    """The folder of one order, with the notes of its app and of whoever ordered it.

    The app locks it while it works, so it is known at once when the app was killed.
    """

    path: Path

    @classmethod
    def write(cls, state: Path, order: RunOrder) -> "OrderFolder":
        """Keep an order in the fed server's state folder."""
        folder = cls(state.resolve() / ORDERS_FOLDER / secrets.token_hex(8))
        _write(folder.path / ORDER_FILE, order.as_json())
        return folder

    @classmethod
    def named(cls, state: Path, name: str) -> "OrderFolder":
        """The folder of the order with this name, which came over the network."""
        if NAME.fullmatch(name) is None:
            raise InputError(f"the name of an order must have 16 hexadecimal digits, got {name!r:.40}")
        return cls(state.resolve() / ORDERS_FOLDER / name)

    @property
    def name(self) -> str:
        """The name of the order, which Flower carries."""
        return self.path.name

    def order(self) -> RunOrder:
        """What was ordered."""
        return _read(self.path / ORDER_FILE, RunOrder.from_json)

    def ask_to_stop(self) -> None:
        """Have the app stop at the end of its interval, when everything is saved."""
        (self.path / STOP_FILE).touch()

    def stop_asked(self) -> bool:
        """Whether the app is to stop."""
        return (self.path / STOP_FILE).exists()

    def app_works(self) -> bool:
        """Whether the app works at this moment."""
        return FolderLock.is_taken(self.path)

    def ending(self) -> Ending | None:
        """How the app ended; None while it works, and if it was killed."""
        try:
            return Ending(**json.loads((self.path / END_FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    @contextmanager
    def working(self) -> Iterator[None]:
        """The app works. How it ends is noted before it unlocks. To stop as asked is no failure."""
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
    """The log that the fed server's app writes of the run with this number, which Flower gave it."""
    return log_file(state, f"run-{number}")


def _write(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file that its owner alone may read, in a folder for its owner alone."""
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


# ── what is checked before a run is ordered ─────────────────────────────────────────────────────────────────


def require_splitting(chosen: Any, folder: Path) -> None:
    """Refuse ways of training that need no edge server, or that collect samples."""
    from hasfl.planning.strategies.catalogue import (
        strategy,  # brings SciPy, which takes half a second to import
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
    """Refuse a request that the fed server would refuse too, but later."""
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
