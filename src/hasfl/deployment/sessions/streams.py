"""One connected party, as seen by the party that asks: one question at a time, answered with its id.

The clocks of other machines say how long a question and its answer were under way.
"""

import asyncio
import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from hasfl.deployment.channels import EDGE as EDGE_NAME
from hasfl.deployment.channels import device_name
from hasfl.deployment.messages import Answer, Message
from hasfl.deployment.wire import Frame, WireError, pack, unpack
from hasfl.errors import HasflError
from hasfl.record import EDGE

ARRIVED = "arrived"  # times in an answering frame, by the clock of the party that answers:
SENT = "sent"  # when the question had arrived, and when the answer was sent

DRIFT = 1e-4  # seconds a second by which two clocks go apart at most; quartz clocks stay below


@dataclass(frozen=True, slots=True)
class ClockReading:
    """What one ping says about the clock of another machine."""

    offset: float  # the other clock minus ours
    round_trip: float  # seconds of the ping
    at: float  # when, by our clock

    def error(self, now: float) -> float:
        """By how much the offset may be wrong: the ping may have needed all its time in one direction."""
        return self.round_trip / 2 + DRIFT * (now - self.at)


@dataclass(frozen=True, slots=True)
class Trip:
    """When a question was sent and when its answer had arrived, by our clock."""

    sent: float
    received: float

    def reading(self, arrived_there: float, sent_there: float) -> ClockReading:
        """What this trip says about the other clock, if both directions needed equally long."""
        round_trip = max(self.received - self.sent - (sent_there - arrived_there), 0.0)
        offset = ((arrived_there - self.sent) + (sent_there - self.received)) / 2
        return ClockReading(offset, round_trip, self.received)

    def seconds_under_way(
        self, arrived_there: float, sent_there: float, offset: float
    ) -> tuple[float, float]:
        """Of the question and of the answer. What the other clock says cannot make them exceed the trip."""
        whole = self.received - self.sent
        down = min(max(arrived_there - offset - self.sent, 0.0), whole)
        up = min(max(self.received - (sent_there - offset), 0.0), whole - down)
        return down, up


def better_reading(old: ClockReading | None, new: ClockReading) -> ClockReading:
    """The reading that is less wrong when the new one is made."""
    return new if old is None or new.error(new.at) <= old.error(new.at) else old


HELLO = "hello"  # the kinds of messages that belong to the streams themselves
PING = "ping"
PONG = "pong"
FAILED = "failed"

CONNECTION_ENDED = "its connection ended"  # cut, closed by the party, or given up by gRPC

FIRST_PINGS = 5  # at the greeting
LATER_PINGS = 3
SECONDS_BETWEEN_PINGS = 10.0
PING_SECONDS = 20.0  # a party that does not answer a ping for so long is hung
LONGEST_REASON = 300  # characters of a reason that a party gives

IDS = itertools.count(1)  # of questions and pings; no two are equal in a process


class StreamEnded(HasflError):
    """The stream to a party has ended, so an answer will not come."""


@dataclass(frozen=True, slots=True)
class Question:
    """A packed question and when its answer must be there."""

    id: int
    frame: bytes
    seconds: float  # that the party has
    deadline: float  # by the monotonic clock


def party_name(party: int) -> str:
    """The common name of a party's certificate."""
    return EDGE_NAME if party == EDGE else device_name(party)


class PartyStream:
    """A stream that has been greeted. All methods belong to the event loop of its server."""

    def __init__(
        self, party: int, context: Any, token: str, greeting: Mapping[str, Any], most_bytes: int
    ) -> None:
        self.party = party
        self.token = token
        self.greeting = greeting
        self.reason: str | None = None  # why the stream has ended; None if the session was over
        self.over = asyncio.Event()
        self._context = context
        self._most_bytes = most_bytes
        self._turn = asyncio.Lock()
        # The id of the frame that is waited for, and what waits: for the frame, or None if it will not come.
        self._expected: tuple[int, asyncio.Future[tuple[Frame, float] | None]] | None = None
        self._clock: ClockReading | None = None

    def end(self, reason: str | None) -> None:
        """End the stream; the first reason counts."""
        if not self.over.is_set():
            self.reason = reason
            self.over.set()
            if self._expected and not self._expected[1].done():
                self._expected[1].set_result(None)

    async def ask(self, question: Question) -> Answer | None:
        """The answer to a question; None, and the stream ends, if there is no good one at the deadline."""
        try:
            async with asyncio.timeout_at(question.deadline):
                frame, trip = await self._exchange(question.id, question.frame)
            if frame.message.kind == FAILED:
                raise WireError(f"it failed: {one_sentence(frame.message.fields.get('reason'))}")
            arrived, sent = _times(frame)
        except TimeoutError:
            self.end(f"it did not answer within {question.seconds:.3g} s")
        except WireError as error:
            self.end(str(error))
        except StreamEnded:
            pass
        else:
            offset = self._clock.offset if self._clock else 0.0
            return Answer(frame.message, *trip.seconds_under_way(arrived, sent, offset))
        return None

    async def read_answers(self) -> None:
        """Take every frame that comes, until one is wrong or the connection ends."""
        while not self.over.is_set():
            try:
                data = await self._context.read()
            except Exception:  # gRPC has several for a stream that is gone
                return
            received = time.monotonic()
            if data is grpc.aio.EOF:
                return
            if self._expected is None:
                self.end("it sent a frame that nobody waits for")
                return
            number, answer = self._expected
            try:
                frame = unpack(data, most_bytes=self._most_bytes)
            except WireError as error:
                self.end(f"it sent a malformed frame: {error}")
                return
            if frame.id != number:
                self.end(f"it answered question {frame.id}, but was asked question {number}")
                return
            self._expected = None
            if not answer.done():
                answer.set_result((frame, received))

    async def read_clock(self, pings: int) -> None:
        """Send some pings and keep what the best of them says about the party's clock."""
        for _ in range(pings):
            number = next(IDS)
            try:
                async with asyncio.timeout(PING_SECONDS):
                    frame, trip = await self._exchange(number, pack(Message(PING), id=number))
                if frame.message.kind != PONG:
                    raise WireError(f"it answered a ping with {one_sentence(frame.message.kind)}")
                reading = trip.reading(*_times(frame))
            except TimeoutError:
                self.end(f"it did not answer a ping within {PING_SECONDS:.3g} s")
            except WireError as error:
                self.end(str(error))
            except StreamEnded:
                pass
            else:
                self._clock = better_reading(self._clock, reading)
            if self.over.is_set():
                return

    async def keep_clock(self) -> None:
        """Send pings now and then while no question is under way; this also finds a party that hangs."""
        while not self.over.is_set():
            await asyncio.sleep(SECONDS_BETWEEN_PINGS)
            if not self._turn.locked():
                await self.read_clock(LATER_PINGS)

    async def _exchange(self, id: int, data: bytes) -> tuple[Frame, Trip]:  # noqa: A002
        """Send a frame when it is its turn, and wait for its answer or for the end of the stream."""
        async with self._turn:
            if self.over.is_set():
                raise StreamEnded
            answer = asyncio.get_running_loop().create_future()
            self._expected = (id, answer)
            sent = time.monotonic()
            try:
                await self._context.write(data)
            except Exception as error:  # gRPC has several for a stream that is gone
                self.end(CONNECTION_ENDED)
                raise StreamEnded from error
            found = await answer
            if found is None:
                raise StreamEnded
            frame, received = found
            return frame, Trip(sent, received)


def one_sentence(text: object) -> str:
    """What a party gives as a reason, on one line and not too long, for logs and records."""
    words = " ".join(str(text)[: 2 * LONGEST_REASON].split())
    return "".join(letter for letter in words if letter.isprintable())[:LONGEST_REASON]


def _times(frame: Frame) -> tuple[float, float]:
    """When the question had arrived and when the answer was sent, by the clock of the party."""
    if not {ARRIVED, SENT} <= set(frame.times):
        raise WireError(f"an answer must say when it {ARRIVED} and when it was {SENT}")
    return frame.times[ARRIVED], frame.times[SENT]
