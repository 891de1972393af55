"""The long-lived process of a device: it joins sessions and answers both servers."""

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from hasfl.deployment.channels import EDGE, FED
from hasfl.deployment.fields import text_of
from hasfl.deployment.messages import Message, Refused
from hasfl.deployment.sessions.answering import Pace, ServerPlace, Stop, TokenRefused, answer_questions
from hasfl.deployment.sessions.offers import Offer, SessionDesk

NAMING_EDGE = ("find", "begin", "take")  # the kinds of questions that may name the edge server
CONNECTING_SECONDS = 3.0  # that the answer to them waits for the stream to the edge server
REFUSED_PAUSE = 1.0  # seconds until a token is tried again that the edge server does not know yet

log = logging.getLogger(__name__)


class DeviceParty(Protocol):
    """What a device computes; it answers one question at a time."""

    def from_fed(self, question: Message) -> Message:
        """Answer the fed server."""

    def from_edge(self, question: Message) -> Message:
        """Answer the edge server."""


class DeviceWorker:
    """Joins the sessions that it is offered at its socket: `with DeviceWorker(…): …`.

    Every session gets a party of its own. `hello` says what the device has measured of itself. The paces
    imitate the links to the two servers.
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
        self._desk = SessionDesk(state, self._hold)

    def close(self) -> None:
        """End the session, and take no more offers."""
        self._desk.close()

    def __enter__(self) -> "DeviceWorker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _hold(self, offer: Offer, stop: Stop) -> None:
        """Take part in a session."""
        hello = {**self._hello(), "party": self._index}
        party = _OneAtATime(self._make_party(offer), stop)
        edge = _EdgeStream(party, self._certificates, hello, self._edge_pace)

        def from_fed(question: Message) -> Message:
            if question.kind not in NAMING_EDGE or "edge" not in question.fields:
                return party.from_fed(question)
            address, token = text_of(question, "edge"), text_of(question, "edge_token")
            answer = party.from_fed(question)
            edge.open(address, token)
            return answer

        try:
            place = ServerPlace(FED, offer.fed, self._certificates)
            answer_questions(place, {**hello, "token": offer.token}, from_fed, stop, pace=self._fed_pace)
        finally:
            edge.close()


class _OneAtATime:
    """A party whose questions come over two streams, and which is asked one question at a time."""

    def __init__(self, party: DeviceParty, stop: Stop) -> None:
        self._party = party
        self._stop = stop
        self._lock = threading.Lock()

    def from_fed(self, question: Message) -> Message:
        with self._lock:
            _require(self._stop)
            return self._party.from_fed(question)

    def from_edge(self, question: Message, stop: Stop) -> Message:
        """Answer, unless this stream was replaced while the question waited."""
        with self._lock:
            _require(self._stop)
            _require(stop)
            return self._party.from_edge(question)


class _EdgeStream:
    """The stream to the edge server that the fed server named last."""

    def __init__(
        self, party: _OneAtATime, certificates: Path, hello: Mapping[str, Any], pace: Pace | None
    ) -> None:
        self._party = party
        self._certificates = certificates
        self._hello = hello
        self._pace = pace
        self._stop = Stop()
        self._current: tuple[str, str] | None = None

    def open(self, address: str, token: str) -> None:
        """Connect with this token, unless the stream does so already, and wait a while until it is open."""
        if self._current == (address, token):
            return
        self.close()
        self._stop, self._current, open_now = Stop(), (address, token), threading.Event()
        arguments = (ServerPlace(EDGE, address, self._certificates), token, self._stop, open_now.set)
        threading.Thread(target=self._keep_open, args=arguments, name="edge stream", daemon=True).start()
        open_now.wait(CONNECTING_SECONDS)

    def close(self) -> None:
        """Close the stream."""
        self._stop.set()
        self._current = None

    def _keep_open(self, place: ServerPlace, token: str, stop: Stop, connected: Callable[[], None]) -> None:
        """Answer the edge server until another stream replaces this one.

        An edge server that has just started learns the tokens from the fed server, so a refusal is not final.
        """
        hello = {**self._hello, "token": token}

        def handler(question: Message) -> Message:
            return self._party.from_edge(question, stop)

        told = False
        while not stop.is_set():
            try:
                answer_questions(place, hello, handler, stop, pace=self._pace, connected=connected)
            except TokenRefused as error:
                if not told:
                    log.warning("%s", error)
                told = True
            stop.wait(REFUSED_PAUSE)


def _require(stop: Stop) -> None:
    if stop.is_set():
        raise Refused("this stream has ended")
