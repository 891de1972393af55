"""A client of Flower's control API: admits nodes, and starts, lists and stops runs.

The API is at the SuperLink's address, which is private to the fed server's machine or network.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.run_pb2 import Run as ProtoRun
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from hasfl.deployment.channels import AUTHORITY_FILE
from hasfl.deployment.flower.bundle import ORDER_KEY, build_bundle
from hasfl.errors import HasflError, InputError

Request = TypeVar("Request")
Result = TypeVar("Result")


class SuperLinkAway(HasflError):
    """The SuperLink cannot be reached, or refuses a request."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Node:
    """A node that the SuperLink knows."""

    name: str  # "edge" or "device-INDEX"
    number: int  # Flower's number of the node
    status: str  # registered (never seen), online, offline or unregistered
    since: str = ""  # time of coming online or going offline, in ISO 8601; empty if the node was never seen


@dataclass(frozen=True, slots=True)
class Run:
    """A run that was submitted to the SuperLink."""

    number: int  # Flower's number of the run
    status: str  # pending, starting, running or finished
    outcome: str  # completed, failed or stopped, once the run is finished
    details: str  # reason of a failure
    order: str = ""  # name of the order that the run carries out

    @property
    def finished(self) -> bool:
        """Whether the run has ended in any way."""
        return self.status == "finished"


class Control:
    """The control API of the SuperLink at host:port, checked against the authority in a folder of keys."""

    def __init__(self, superlink: str, keys: Path) -> None:
        self.superlink = superlink
        try:
            authority = (keys / AUTHORITY_FILE).read_bytes()
        except OSError:
            raise InputError(
                f"{keys} must hold {AUTHORITY_FILE}, which is not there: give a party's folder"
            ) from None
        version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        self._client = ControlHttpClient.from_server_address(superlink, False, authority, [version])

    def ready(self) -> bool:
        """Whether the SuperLink answers."""
        try:
            self._client.ListRuns(ListRunsRequest(limit=1))
        except httpx.HTTPError:
            return False
        return True

    def nodes(self) -> list[Node]:
        """All admitted nodes."""
        return [Node(node.name, node.node_id, node.status, _since(node)) for node in self._admitted()]

    def admit(self, keys: Mapping[str, Path]) -> None:
        """Admit exactly the nodes with these public keys, by the name of the party; remove all others."""
        wanted = {name: _public_key(path) for name, path in keys.items()}
        current = self._admitted()
        kept = {node.name for node in current if wanted.get(node.name) == node.public_key}
        for node in current:
            if node.name not in kept:
                self._ask(self._client.UnregisterNode, UnregisterNodeRequest(node_id=node.node_id))
        for name in wanted.keys() - kept:
            request = RegisterNodeRequest(public_key=wanted[name], name=name)
            self._ask(self._client.RegisterNode, request)

    def _admitted(self) -> list[NodeInfo]:
        found = self._ask(self._client.ListNodes, ListNodesRequest()).nodes_info
        return [node for node in found if node.status != "unregistered"]

    def start(self, state: Path, order: str) -> int:
        """Start a run for an order in the fed server's state folder; return the run's number."""
        bundle = build_bundle(state)
        fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
        config = user_config_to_proto({ORDER_KEY: order})
        request = StartRunRequest(fab=fab_to_proto(fab), override_config=config)
        return int(self._ask(self._client.StartRun, request).run_id)

    def runs(self) -> list[Run]:
        """All runs, the newest first."""
        found = self._ask(self._client.ListRuns, ListRunsRequest()).run_dict
        return [
            _run(number, run)
            for number, run in sorted(found.items(), key=lambda item: item[1].pending_at, reverse=True)
        ]

    def run(self, number: int) -> Run:
        """The run with this number."""
        found = self._ask(self._client.ListRuns, ListRunsRequest(run_id=number)).run_dict
        if number not in found:
            raise InputError(f"there is no run {number} at {self.superlink}: hasfl status lists the runs")
        return _run(number, found[number])

    def stop(self, number: int) -> None:
        """Stop a run at once; its checkpoint stays, so the run can be resumed."""
        self._ask(self._client.StopRun, StopRunRequest(run_id=number))

    def __enter__(self) -> "Control":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def _ask(self, method: Callable[[Request], Result], request: Request) -> Result:
        try:
            return method(request)
        except httpx.HTTPStatusError as error:
            reason = FlowerError.from_json(error.response.text)
            said = error.response.text[:200] if reason is None else f"{reason.message}"
            raise SuperLinkAway(f"the SuperLink at {self.superlink} refused: {said}") from None
        except httpx.HTTPError as error:
            raise SuperLinkAway(
                f"the SuperLink at {self.superlink} does not answer ({error}): start hasfl serve fed there"
            ) from None


def _since(node: NodeInfo) -> str:
    return node.last_activated_at if node.status == "online" else node.last_deactivated_at


def _run(number: int, run: ProtoRun) -> Run:
    status, order = run.status, run.override_config[ORDER_KEY].string
    return Run(number, status.status, status.sub_status, status.details, order)


def _public_key(path: Path) -> bytes:
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} must be the public key of a node, made by hasfl keys ({error})") from None
    if not isinstance(key, EllipticCurvePublicKey):
        raise InputError(f"{path} must be an elliptic-curve key, as hasfl keys makes it")
    return public_key_to_bytes(key)
