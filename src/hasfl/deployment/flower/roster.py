"""The roster: finds the parties that are online, through Flower, and offers them sessions.

Flower identifies a node by its key, and the fed server admitted each key under the name of its party. So the
name of an online node is the name of its party. An offer is one Flower message. The message carries the
address of the fed server's port and the party's token for this run; all else goes over that port.
"""

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from hasfl.deployment.asking import PartyServer, party_name
from hasfl.deployment.flower.client_app import ANSWER, OFFER, SESSION
from hasfl.record import EDGE

# The numbers below were chosen by hand.
LOOK_SECONDS = 0.5  # pause between two looks
UNANSWERED_SECONDS = 60.0  # time limit for the answer to an offer; then the offer is repeated
# Seconds to wait for a party that lost its stream: its worker reconnects by itself, unless it was restarted.
LOST_SECONDS = 3.0
FIRST_PAUSE = 2.0  # seconds before an answered offer is repeated if the party does not connect; they double
LONGEST_PAUSE = 60.0  # longest such pause


@dataclass(slots=True)
class _Offer:
    """The last offer to a party, and when it may be repeated."""

    message: str  # Flower's id of the message; "" once it is answered
    node: int  # Flower's number of the node
    again: float  # earliest time of the next offer, by the monotonic clock
    pause: float = FIRST_PAUSE  # seconds between an answer and the next offer


class Roster:
    """Offers a session to every party that is online but not connected, until the run ends."""

    def __init__(
        self,
        grid: Grid,
        door: PartyServer,
        *,
        run: str,
        announce: str,
        tell: Callable[[str], None] = lambda sentence: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._grid = grid
        self._door = door
        self._offer = {"fed": announce, "run": run}
        self._tell = tell
        self._now = now
        self._tokens: dict[int, str] = {}
        self._offers: dict[int, _Offer] = {}
        self._connected: frozenset[int] = frozenset()
        self._ending = threading.Event()
        self.failure: Exception | None = None  # the error that ended the roster
        self.online: frozenset[int] = frozenset()  # parties whose nodes are online

    def keep(self) -> None:
        """Look regularly until `end` is called; runs in its own thread, and waits while Flower is away."""
        while not self._ending.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception as error:  # training goes on in another thread, with the connected parties
                self.failure = error
                self._tell(f"the roster ends: {error}")
                return

    def end(self) -> None:
        """End the thread of `keep`."""
        self._ending.set()

    def look(self) -> None:
        """Take answers to offers, find the online and connected parties, and send the offers that are due."""
        found = self._grid.get_nodes()
        nodes = {party: node.node_id for node in found if (party := party_of(node.name)) is not None}
        self.online = frozenset(nodes)
        self._take_answers()
        present, now = self._door.present(), self._now()
        for party in self._connected - present:  # a lost stream may come back by itself
            self._tell(f"{party_name(party)} is no longer connected")
            if party in self._offers:
                self._offers[party].again = now + LOST_SECONDS
                self._offers[party].pause = FIRST_PAUSE
        for party in present - self._connected:
            self._tell(f"{party_name(party)} is connected")
        self._connected = present
        for party in [party for party, offer in self._offers.items() if nodes.get(party) != offer.node]:
            del self._offers[party]  # the node of this offer is gone
        self._send(
            {
                party: node
                for party, node in nodes.items()
                if party not in present and (party not in self._offers or self._offers[party].again <= now)
            }
        )

    def _send(self, nodes: Mapping[int, int]) -> None:
        """Send one offer to each node, with the party's token for this run."""
        if not nodes:
            return
        new = {party: secrets.token_hex(32) for party in nodes if party not in self._tokens}
        if new:
            self._tokens |= new
            self._door.allow(new)
        messages = [
            Message(
                RecordDict({OFFER: ConfigRecord({**self._offer, "token": self._tokens[party]})}),
                node,
                f"train.{SESSION}",
                ttl=UNANSWERED_SECONDS,
            )
            for party, node in nodes.items()
        ]
        again = self._now() + UNANSWERED_SECONDS
        for (party, node), message in zip(nodes.items(), self._grid.push_messages(messages), strict=True):
            self._tell(f"{party_name(party)} is offered a session")
            pause = (
                min(2 * self._offers[party].pause, LONGEST_PAUSE) if party in self._offers else FIRST_PAUSE
            )
            self._offers[party] = _Offer(message, node, again, pause)

    def _take_answers(self) -> None:
        """Take the answers to offers, and tell which parties refused."""
        by_message = {offer.message: party for party, offer in self._offers.items() if offer.message}
        for answer in self._grid.pull_messages(list(by_message)) if by_message else ():
            party = by_message[answer.metadata.reply_to_message_id]
            offer = self._offers[party]
            offer.message, offer.again = "", self._now() + offer.pause
            if (reason := _refusal(answer)) is not None:
                self._tell(f"{party_name(party)} did not take its session: {reason}")


def _refusal(answer: Message) -> str | None:
    """The reason why a worker did not take its session; None if it did."""
    if answer.has_error():
        return answer.error.reason
    said = answer.content.config_records.get(ANSWER, ConfigRecord())
    return None if said.get("taken") is True else str(said.get("reason", "its worker gave no reason"))


def party_of(name: str) -> int | None:
    """The party with this name; None if no party has it."""
    if name == party_name(EDGE):
        return EDGE
    index = name.rpartition("-")[2]
    known = index.isascii() and index.isdecimal() and name == party_name(int(index))
    return int(index) if known else None
