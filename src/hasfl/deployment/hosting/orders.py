"""What the fed server's app reads when a run starts: how its host serves, and what was ordered.

Both are files in the fed server's state folder. Flower carries only the name of an order, since every node
can see the configuration of a run.
"""

import json
import os
import re
import secrets
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from hasfl.deployment.hosting.places import SUPERLINK_ADDRESS
from hasfl.errors import InputError, StorageError

HOST_FILE = "fed.json"
ORDERS_FOLDER = "orders"
NAME = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FedHost:
    """How the fed server serves its sessions."""

    keys: str  # the folder of the fed server's keys
    listen: str  # host:port where devices and the edge server connect
    announce: str  # host:port that they are told
    superlink: str = SUPERLINK_ADDRESS  # host:port of Flower


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """A training that somebody ordered."""

    scenario: str  # the scenario file
    path: str  # the folder of the run
    strategy: str = "hasfl"
    seed: int = 0
    resume: bool = False
    devices: int = 1  # training begins when so many devices, and the edge server, are connected …
    patience: float = 600.0  # … or fails after so many seconds
    desk: str = ""  # the folder of the order's desk, if whoever ordered it waits for it
    training: str = "hasfl.deployment.training:train_on_fleet"  # the function that trains


Value = TypeVar("Value", FedHost, RunOrder)


def write_host(state: Path, host: FedHost) -> None:
    """Keep how the fed server serves."""
    _write(state / HOST_FILE, host)


def read_host(state: Path) -> FedHost:
    """How the fed server serves."""
    return _read(state / HOST_FILE, FedHost)


def write_order(state: Path, order: RunOrder) -> str:
    """Keep an order, and give its name."""
    name = secrets.token_hex(8)
    _write(state / ORDERS_FOLDER / f"{name}.json", order)
    return name


def read_order(state: Path, name: str) -> RunOrder:
    """The order with this name, which came over the network."""
    if NAME.fullmatch(name) is None:
        raise InputError(f"the name of an order must have 16 hexadecimal digits, got {name!r:.40}")
    return _read(state / ORDERS_FOLDER / f"{name}.json", RunOrder)


def _write(path: Path, value: FedHost | RunOrder) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(asdict(value), file)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from None


def _read(path: Path, kind: type[Value]) -> Value:
    try:
        found: Any = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read {path} ({error}): start the fed server, and order the run again"
        ) from None
    if not isinstance(found, dict) or set(found) != {field.name for field in fields(kind)}:
        raise InputError(f"{path} is of another version of hasfl: order the run again")
    return kind(**found)
