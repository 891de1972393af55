"""Workers, the long-lived processes of a device and of the edge server, which join the offered sessions.

For every session, a worker makes a new party. A device answers both servers. The edge server answers the fed
server and asks devices.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hasfl.deployment.answering import (
    Offer,
    Pace,
    ServerAddress,
    SessionHolder,
    Stop,
    TokenRefused,
    answer_questions,
)
from hasfl.deployment.asking import PartyServer
from hasfl.deployment.channels import EDGE_NAME, FED_NAME
from hasfl.deployment.fields import Message, Refused
from hasfl.deployment.links import Links
from hasfl.record import EDGE

log = logging.getLogger(__name__)


# ── a device ─────────────────────────────────────────────────────────────────────────────────────────────


NAMING_EDGE = ("find", "begin", "take")  # kinds of questions that may name the edge server
# Seconds for which the answer to these questions waits for the stream to the edge server; chosen by hand.
EDGE_STREAM_SECONDS = 3.0
REFUSED_PAUSE = 1.0  # seconds before a token that the edge server refused is tried again; chosen by hand


class DeviceParty(Protocol):
    """A device in a session, which answers one question at a time."""

    def from_fed(self, question: Message) -> Message:
        """Answer the fed server."""

    def from_edge(self, question: Message) -> Message:
        """Answer the edge server."""


class DeviceWorker:
    """The worker of a device: joins the sessions that its socket is offered (`with DeviceWorker(…): …`).

    `make_party` makes a new party for every session. `hello` returns the device's part of the greeting. The
    paces imitate slower links to the two servers.
    """

    def __init__(
        self,
        index: int,
        certificates: Path,
        state: Path,
        make_party: Callable[[Offer], DeviceParty],
        *,
        hello: Callable[[], Mapping[str, Any]] = dict,
        fed_pace: Pace | None = None,
        edge_pace: Pace | None = None,
    ) -> None:
        self._index = index
        self._certificates = certificates
        self._make_party = make_party
        self._hello = hello
        self._fed_pace = fed_pace
        self._edge_pace = edge_pace
        self.sessions = SessionHolder(state, self._hold)

    def close(self) -> None:
        """End the session, and take no more offers."""
        self.sessions.close()

    def __enter__(self) -> "DeviceWorker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hold(self, offer: Offer, stop: Stop) -> None:
        """Take part in a session until it ends or `stop` is set."""
        hello = {**self._hello(), "party": self._index}
        party = _OneAtATime(self._make_party(offer), stop)
        edge = _EdgeStream(party, self._certificates, hello, self._edge_pace)

        def from_fed(question: Message) -> Message:
            named = _edge_named_in(question)
            answer = party.from_fed(question)
            if named is not None:
                edge.open(*named)
            return answer

        try:
            place = ServerAddress(FED_NAME, offer.fed, self._certificates)
            answer_questions(place, {**hello, "token": offer.token}, from_fed, stop, pace=self._fed_pace)
        finally:
            edge.close()


def _edge_named_in(question: Message) -> tuple[str, str] | None:
    """The address of the edge server and the token for it in a question; None if it has neither."""
    address, token = (question.fields.get(name) for name in ("edge", "edge_token"))
    if question.kind not in NAMING_EDGE or (address is None and token is None):
        return None
    if not isinstance(address, str) or not isinstance(token, str):
        raise Refused(f"edge and edge_token of {question.kind!r} must be text")
    return address, token


@dataclass(slots=True, eq=False)
class _OneAtATime:
    """A lock around a party whose questions come over two streams, so that it gets one at a time."""

    party: DeviceParty
    stop: Stop
    lock: threading.Lock = field(default_factory=threading.Lock)

    def from_fed(self, question: Message) -> Message:
        with self.lock:
            _require(self.stop)
            return self.party.from_fed(question)

    def from_edge(self, question: Message, stop: Stop) -> Message:
        """Answer the edge server, unless this stream was replaced while the question waited."""
        with self.lock:
            _require(self.stop)
            _require(stop)
            return self.party.from_edge(question)


@dataclass(slots=True, eq=False)
class _EdgeStream:
    """The stream to the edge server, at the address that the fed server named last."""

    party: _OneAtATime
    certificates: Path
    hello: Mapping[str, Any]
    pace: Pace | None
    stop: Stop = field(default_factory=Stop)
    current: tuple[str, str] | None = None  # the address and the token of the stream

    def open(self, address: str, token: str) -> None:
        """Connect to this address with this token, unless this is the present stream, and wait briefly."""
        if self.current == (address, token):
            return
        self.close()
        self.stop, self.current, open_now = Stop(), (address, token), threading.Event()
        arguments = (ServerAddress(EDGE_NAME, address, self.certificates), token, self.stop, open_now.set)
        threading.Thread(target=self._keep_open, args=arguments, name="edge stream", daemon=True).start()
        open_now.wait(EDGE_STREAM_SECONDS)

    def close(self) -> None:
        """Close the stream."""
        self.stop.set()
        self.current = None

    def _keep_open(self, place: ServerAddress, token: str, stop: Stop, connected: Callable[[], None]) -> None:
        """Answer the edge server until another stream replaces this one.

        A refused token is tried again, because an edge server that has just started learns the tokens a
        little later, from the fed server.
        """
        hello = {**self.hello, "token": token}

        def handler(question: Message) -> Message:
            return self.party.from_edge(question, stop)

        told = False
        while not stop.is_set():
            try:
                answer_questions(place, hello, handler, stop, pace=self.pace, connected=connected)
            except TokenRefused as error:
                if not told:
                    log.warning("%s", error)
                told = True
            stop.wait(REFUSED_PAUSE)


def _require(stop: Stop) -> None:
    if stop.is_set():
        raise Refused("this stream has ended")


# ── the edge server ──────────────────────────────────────────────────────────────────────────────────────


ADMITTING = ("admit", "begin")  # kinds of questions that may bring the devices' tokens
WAITING_SECONDS = 3.0  # longest wait of the next question for devices with new tokens; chosen by hand


class EdgeParty(Protocol):
    """The edge server in a session."""

    def from_fed(self, question: Message) -> Message:
        """Answer the fed server; the edge server may ask devices meanwhile."""


class EdgeWorker:
    """The worker of the edge server: listens for devices, and joins the sessions that its socket is offered.

    Use: `with EdgeWorker(…): …`. `make_party` makes a new party for every session, with links to devices.
    """

    def __init__(
        self,
        address: str,
        certificates: Path,
        state: Path,
        make_party: Callable[[Offer, Links], EdgeParty],
        *,
        hello: Callable[[], Mapping[str, Any]] = dict,
        pace: Pace | None = None,
    ) -> None:
        self._certificates = certificates
        self._make_party = make_party
        self._hello = hello
        self._pace = pace
        self.devices = PartyServer(EDGE_NAME, address, certificates)
        log.info("waits for devices at port %d", self.devices.port)
        try:
            self.sessions = SessionHolder(state, self._hold)
        except BaseException:
            self.devices.close()
            raise

    def close(self) -> None:
        """End the session, take no more offers, and close the connections to devices."""
        self.sessions.close()
        self.devices.close()

    def __enter__(self) -> "EdgeWorker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hold(self, offer: Offer, stop: Stop) -> None:
        """Take part in a session until it ends or `stop` is set."""
        hello = {**self._hello(), "party": EDGE, "token": offer.token}
        asked = _Admitting(self._make_party(offer, self.devices), self.devices)
        try:
            place = ServerAddress(FED_NAME, offer.fed, self._certificates)
            answer_questions(place, hello, asked.from_fed, stop, pace=self._pace)
        finally:
            self.devices.allow_only({})


@dataclass(slots=True, eq=False)
class _Admitting:
    """The edge server's party in a session, which admits devices before they are asked."""

    party: EdgeParty
    devices: PartyServer
    allowed: frozenset[int] = frozenset()  # devices that may connect
    expected: frozenset[int] = frozenset()  # devices for which the next question waits

    def from_fed(self, question: Message) -> Message:
        """Answer the fed server."""
        if question.kind not in ADMITTING or "tokens" not in question.fields:
            # A device may answer the fed server before its stream is accepted here, so wait a little.
            if expected := self.expected | _named(question, self.allowed):
                self.devices.wait_until_present(expected, WAITING_SECONDS)
            self.expected = frozenset()
            return self.party.from_fed(question)
        tokens = _tokens(question)
        answer = self.party.from_fed(question)
        self.devices.allow_only(tokens)
        self.allowed = frozenset(tokens)
        self.expected = _named(question, self.allowed) if "cuts" in question.fields else self.allowed
        return answer


def _named(question: Message, allowed: frozenset[int]) -> frozenset[int]:
    """The allowed devices to which a question gives a cut, because they train or judge a model."""
    cuts = question.fields.get("cuts")
    return frozenset(device for device in allowed if isinstance(cuts, Mapping) and str(device) in cuts)


def _tokens(question: Message) -> dict[int, str]:
    """The tokens in a question, by the index of the device."""
    tokens = question.fields["tokens"]
    if not isinstance(tokens, Mapping) or not all(
        name.isascii() and name.isdecimal() and isinstance(token, str) for name, token in tokens.items()
    ):
        raise Refused(f"tokens of {question.kind!r} must hold a text for each device, by its index")
    return {int(name): token for name, token in tokens.items()}
