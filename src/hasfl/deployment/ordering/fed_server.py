"""The fed server on this machine, found by its state folder: its address, nodes and runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hasfl.deployment.channels import EDGE
from hasfl.deployment.flower.submission import Control, Node, Run, control
from hasfl.deployment.hosting.desks import Desk
from hasfl.deployment.hosting.orders import HOST_FILE, ORDERS_FOLDER, read_host, read_order
from hasfl.deployment.hosting.places import LOGS_FOLDER
from hasfl.errors import HasflError, InputError


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A run that Flower knows, with what was ordered."""

    number: int
    state: str  # pending, starting, running, completed, failed or stopped
    details: str  # why it failed
    log: str  # the file that the fed server's app writes
    folder: str  # of the run; empty if the order is gone
    strategy: str = ""


@contextmanager
def fed_server(state: Path, superlink: str | None = None, keys: Path | None = None) -> Iterator[Control]:
    """The control API of the fed server with this state folder; addresses and keys may be given instead."""
    if not (state / HOST_FILE).is_file():
        raise InputError(
            f"{state} must be the state folder of a fed server, but has no {HOST_FILE}: start hasfl serve "
            "fed on this machine, or give its folder with --state"
        )
    host = read_host(state)
    with control(superlink or host.superlink, keys or Path(host.keys)) as found:
        if not found.ready():
            raise InputError(
                f"no SuperLink answers at {found.superlink} with the keys of {keys or host.keys}: start "
                "hasfl serve fed, or give its address with --superlink"
            )
        yield found


def devices_of_run(state: Path, run: Path) -> int | None:
    """How many devices a run began with, as its order says; None if it was not ordered here."""
    files = sorted((state / ORDERS_FOLDER).glob("*.json"), key=lambda file: file.stat().st_mtime)
    began = None
    for file in files:
        try:
            order = read_order(state, file.stem)
        except HasflError:  # of another version
            continue
        if Path(order.path) == run.resolve() and (began is None or not order.resume):
            began = order.devices  # a folder may have been removed and the run ordered anew
    return began


def devices_to_wait_for(found: Control, wanted: int | None) -> int:
    """With how many devices a run begins: as many as wanted, or all that are admitted."""
    admitted = sum(node.name != EDGE for node in found.nodes())
    if admitted == 0:
        raise InputError("the fed server must admit a device, but admits none: make keys with hasfl keys")
    if wanted is not None and wanted > admitted:
        raise InputError(
            f"--devices must be at most {admitted}, the devices that the fed server admits, got {wanted}: "
            "admit more with hasfl keys --add"
        )
    return admitted if wanted is None else wanted


def sorted_nodes(nodes: Sequence[Node]) -> list[Node]:
    """The edge server, then devices in the order of the fleet."""
    return sorted(nodes, key=lambda node: (node.name != EDGE, len(node.name), node.name))


def known_run(state: Path, run: Run) -> KnownRun:
    """A run, with what was ordered."""
    log = state.resolve() / LOGS_FOLDER / f"run-{run.number}.log"
    folder = strategy = ""
    word = run.outcome if run.finished else run.status
    try:
        order = read_order(state, run.order)
        folder, strategy = order.path, order.strategy
        ending = Desk(Path(order.desk)).ending() if order.desk else None
        if word == "completed" and ending is not None and ending.stopped:  # Flower counts this as success
            word = "stopped"
    except HasflError:  # it was ordered elsewhere, or by another version
        pass
    return KnownRun(run.number, word, run.details, str(log), folder, strategy)
