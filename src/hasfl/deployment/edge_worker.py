"""The long-lived process of the edge server: it joins sessions, answers the fed server, and asks devices."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from hasfl.deployment.channels import EDGE, FED
from hasfl.deployment.messages import Links, Message, Refused
from hasfl.deployment.sessions.answering import Pace, ServerPlace, Stop, answer_questions
from hasfl.deployment.sessions.asking import PartyServer
from hasfl.deployment.sessions.offers import Offer, SessionDesk
from hasfl.record import EDGE as EDGE_NUMBER

ADMITTING = ("admit", "begin")  # the kinds of questions that may bring the devices' tokens
CONNECTING_SECONDS = 3.0  # that the next question waits for devices whose tokens are new

log = logging.getLogger(__name__)


class EdgeParty(Protocol):
    """What the edge server computes."""

    def from_fed(self, question: Message) -> Message:
        """Answer the fed server; this may ask devices."""


class EdgeWorker:
    """Listens for devices, and joins the sessions that it is offered at its socket: `with EdgeWorker(…): …`.

    Every session gets a party of its own, which asks devices over the given links.
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
        self.devices = PartyServer(EDGE, address, certificates)
        log.info("waits for devices at port %d", self.devices.port)
        try:
            self._desk = SessionDesk(state, self._hold)
        except BaseException:
            self.devices.close()
            raise

    def close(self) -> None:
        """End the session, take no more offers, and let the devices go."""
        self._desk.close()
        self.devices.close()

    def __enter__(self) -> "EdgeWorker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _hold(self, offer: Offer, stop: Stop) -> None:
        """Take part in a session."""
        hello = {**self._hello(), "party": EDGE_NUMBER, "token": offer.token}
        asked = _Asked(self._make_party(offer, self.devices), self.devices)
        try:
            place = ServerPlace(FED, offer.fed, self._certificates)
            answer_questions(place, hello, asked.from_fed, stop, pace=self._pace)
        finally:
            self.devices.allow_only({})


class _Asked:
    """The party of a session, and the devices that may connect in it."""

    def __init__(self, party: EdgeParty, devices: PartyServer) -> None:
        self._party = party
        self._devices = devices
        self._allowed: frozenset[int] = frozenset()  # devices that may connect
        self._expected: frozenset[int] = frozenset()  # devices that had no time to connect yet

    def from_fed(self, question: Message) -> Message:
        """Answer the fed server."""
        if question.kind not in ADMITTING:
            self._wait_for(self._expected | _named(question, self._allowed))
            self._expected = frozenset()
        if question.kind not in ADMITTING or "tokens" not in question.fields:
            return self._party.from_fed(question)
        tokens = _tokens(question)
        answer = self._party.from_fed(question)
        self._devices.allow_only(tokens)
        self._allowed = frozenset(tokens)
        self._expected = _named(question, self._allowed) if "cuts" in question.fields else self._allowed
        return answer

    def _wait_for(self, devices: frozenset[int]) -> None:
        """Give devices time to connect; a device may say that it is connected before it is let in here."""
        if devices:
            self._devices.wait_until_present(devices, CONNECTING_SECONDS)


def _named(question: Message, allowed: frozenset[int]) -> frozenset[int]:
    """The devices that a question gives a cut: those that take part, or that judge a model."""
    cuts = question.fields.get("cuts")
    return frozenset(device for device in allowed if isinstance(cuts, Mapping) and str(device) in cuts)


def _tokens(question: Message) -> dict[int, str]:
    """The tokens of the devices that take part, by their index."""
    tokens = question.fields["tokens"]
    if not isinstance(tokens, Mapping) or not all(
        name.isascii() and name.isdecimal() and isinstance(token, str) for name, token in tokens.items()
    ):
        raise Refused(f"tokens of {question.kind!r} must hold a text for each device, by its index")
    return {int(name): token for name, token in tokens.items()}
