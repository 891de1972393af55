"""Who is there, and who needs a session: the fed server's look at the fleet, through Flower.

Flower knows a node by its key, and the fed server admitted each key under the name of its party. So the
name of a node that is online says whose it is. Each party gets a session by one Flower message. The message
carries the address of the fed server's port and the party's token for this run; the rest goes over that port.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from hasfl.deployment.asking import PartyServer, party_name
from hasfl.deployment.flower.client_app import ANSWER, OFFER, SESSION
from hasfl.record import EDGE

LOOK_SECONDS = 0.5  # between two looks
UNANSWERED_SECONDS = 60.0  # an offer without an answer is forgotten: its node may have died with it
LOST_SECONDS = (
    3.0  # a worker that lost its stream comes back by itself within this time, unless it was restarted
)
FIRST_PAUSE = 2.0  # seconds before an offer is repeated that was refused, or taken in vain; they double …
LONGEST_PAUSE = 60.0  # … up to this


@dataclass(slots=True)
class _Offer:
    """The last session message to a party, and when it may be repeated."""

    message: str  # its identity in Flower; "" once it is answered
    node: int
    again: float  # on the monotonic clock
    pause: float = FIRST_PAUSE


class Roster:
    """Offers a session to every party that is online and not connected, for as long as a run goes on."""

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
        self.failure: Exception | None = None  # why the roster is no longer kept
        self.online: frozenset[int] = frozenset()  # parties whose nodes are online

    def keep(self) -> None:
        """Look again and again until `end`; runs in a thread of its own, and waits while Flower is away."""
        while not self._ending.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception as error:  # the training in another thread goes on with those who are connected
                self.failure = error
                self._tell(f"the roster ends: {error}")
                return

    def end(self) -> None:
        """Look no more."""
        self._ending.set()

    def look(self) -> None:
        """Take answers, see who is online and connected, and send offers to those who need one."""
        nodes = {party: node for node, name in self._nodes() if (party := party_of(name)) is not None}
        self.online = frozenset(nodes)
        self._take_answers()
        present, now = self._door.present(), self._now()
        for party in self._connected - present:  # its stream was lost; it may come back by itself
            self._tell(f"{party_name(party)} is no longer connected")
            if party in self._offers:
                self._offers[party].again = now + LOST_SECONDS
                self._offers[party].pause = FIRST_PAUSE
        for party in present - self._connected:
            self._tell(f"{party_name(party)} is connected")
        self._connected = present
        for party in [party for party, offer in self._offers.items() if nodes.get(party) != offer.node]:
            del self._offers[party]  # its node went, and what it was given is lost
        self._send(
            {
                party: node
                for party, node in nodes.items()
                if party not in present and (party not in self._offers or self._offers[party].again <= now)
            }
        )

    def _nodes(self) -> Iterable[tuple[int, str]]:
        return [(node.node_id, node.name) for node in self._grid.get_nodes()]

    def _send(self, nodes: Mapping[int, int]) -> None:
        """Push one message to each node, with the party's token for this run."""
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
        """Learn which offers were taken, and which failed."""
        by_message = {offer.message: party for party, offer in self._offers.items() if offer.message}
        for answer in self._grid.pull_messages(list(by_message)) if by_message else ():
            party = by_message[answer.metadata.reply_to_message_id]
            offer = self._offers[party]
            offer.message, offer.again = "", self._now() + offer.pause
            if (reason := _refusal(answer)) is not None:
                self._tell(f"{party_name(party)} did not take its session: {reason}")


def _refusal(answer: Message) -> str | None:
    """Why a worker did not take its session; None if it did."""
    if answer.has_error():
        return answer.error.reason
    said = answer.content.config_records.get(ANSWER, ConfigRecord())
    return None if said.get("taken") is True else str(said.get("reason", "its worker gave no reason"))


def party_of(name: str) -> int | None:
    """The party with this name; None if it is nobody's."""
    if name == party_name(EDGE):
        return EDGE
    index = name.rpartition("-")[2]
    known = index.isascii() and index.isdecimal() and name == party_name(int(index))
    return int(index) if known else None
