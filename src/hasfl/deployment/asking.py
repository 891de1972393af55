"""The asking side of sessions: a gRPC server to which parties connect, and which asks them.

The fed server asks devices and the edge server; the edge server asks devices. Nobody receives a byte of a
question before its certificate and its token have been checked. A party has one question at a time, and its
answer has the id of the question. The clocks of other machines say how long both were under way.
"""

import asyncio
import hmac
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import grpc

from hasfl.deployment.channels import EDGE_NAME, common_name, device_name, handlers, open_port, server_options
from hasfl.deployment.fields import Message
from hasfl.deployment.links import Answer
from hasfl.deployment.wire import MOST_FRAME_BYTES, Frame, WireError, pack, unpack
from hasfl.errors import HasflError
from hasfl.record import EDGE

log = logging.getLogger(__name__)
T = TypeVar("T")


# ── clocks ───────────────────────────────────────────────────────────────────────────────────────────────


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


# ── one connected party ──────────────────────────────────────────────────────────────────────────────────


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
class PackedQuestion:
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

    async def ask(self, question: PackedQuestion) -> Answer[Message] | None:
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


# ── all connected parties ────────────────────────────────────────────────────────────────────────────────


GREETING_SECONDS = 10.0  # for the first frame of a stream
MOST_GREETING_BYTES = 64 * 1024
MOST_GREETINGS = 4  # of one party at the same time
CLOSING_SECONDS = 1.0  # for parties to hear that the session is over
SECONDS_BETWEEN_REFUSALS = 1.0  # of one certificate in the log, which nobody shall fill
OLD_TOKEN = "its token is no longer the one of this session"


class PartyServer:
    """Connections to parties, as `hasfl.deployment.links.Links`; a gRPC server in a thread of its own."""

    def __init__(self, role: str, address: str, folder: Path, *, most_bytes: int = MOST_FRAME_BYTES) -> None:
        """Listen at host:port with the certificates of a folder; port 0 asks for any free port."""
        self.role = role
        self.port = 0
        self._most_bytes = most_bytes
        self._tokens: dict[int, str] = {}
        self._streams: dict[int, PartyStream] = {}
        self._reasons: dict[int, str] = {}
        self._greetings: Counter[int] = Counter()  # streams that have not been greeted yet
        self._told_again: dict[str, float] = {}  # when a refusal may be logged again, by common name
        self._changed = threading.Condition()  # guards streams and reasons
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        started: Future[int] = Future()
        self._thread = threading.Thread(
            target=self._serve, args=(address, folder, started), name=f"{role} server", daemon=True
        )
        self._thread.start()
        self.port = started.result()

    def allow(self, tokens: Mapping[int, str]) -> None:
        """Accept these parties with these tokens; other parties keep theirs.

        An older token of a party is worth nothing from now on: who is connected with it is dropped.
        """
        self._begin(self._set_tokens(dict(tokens), others=True)).result()

    def allow_only(self, tokens: Mapping[int, str]) -> None:
        """Accept these parties with these tokens and nobody else; who is connected otherwise is dropped."""
        self._begin(self._set_tokens(dict(tokens), others=False)).result()

    def present(self) -> frozenset[int]:
        """The parties that are connected now."""
        with self._changed:
            return frozenset(self._streams)

    def wait_until_present(self, parties: Iterable[int], seconds: float) -> frozenset[int]:
        """Wait until these parties are connected, or the time is over; say which of them are."""
        expected = frozenset(parties)
        with self._changed:
            self._changed.wait_for(lambda: expected <= set(self._streams), seconds)
            return expected & frozenset(self._streams)

    def greeting(self, party: int) -> Mapping[str, Any]:
        """What a connected party said of itself when it connected; empty if it is not connected."""
        with self._changed:
            return self._streams[party].greeting if party in self._streams else {}

    def ask(self, questions: Mapping[int, Message], seconds: float) -> Mapping[int, Answer[Message]]:
        """Ask parties, all at the same time, and wait for their answers; see `Links`."""
        deadline = time.monotonic() + seconds
        number = next(IDS)
        frames: dict[int, bytes] = {}  # by the identity of a message: one for all is packed once
        asked: dict[int, tuple[PartyStream, PackedQuestion]] = {}
        for party, message in questions.items():
            with self._changed:
                stream = self._streams.get(party)
                if stream is None:
                    self._reasons.setdefault(party, "it is not connected")
                    continue
            if id(message) not in frames:
                frames[id(message)] = pack(message, id=number, most_bytes=self._most_bytes)
            asked[party] = (stream, PackedQuestion(number, frames[id(message)], seconds, deadline))
        return self._begin(self._ask_all(asked)).result()

    def drop(self, party: int, reason: str) -> None:
        """Close the connection to a party, because of what it sent."""
        self._begin(self._drop(party, reason)).result()

    def reasons(self) -> Mapping[int, str]:
        """Why parties were dropped since the last call."""
        with self._changed:
            reasons, self._reasons = self._reasons, {}
        return reasons

    def close(self) -> None:
        """Tell all parties that the session is over, and stop listening."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    def __enter__(self) -> "PartyServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # In the thread of the server.

    def _serve(self, address: str, folder: Path, started: "Future[int]") -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._listen(address, folder, started))
            except Exception as error:
                if started.done():
                    raise
                started.set_exception(error)

    async def _listen(self, address: str, folder: Path, started: "Future[int]") -> None:
        server = grpc.aio.server(options=server_options(self._most_bytes))
        server.add_generic_rpc_handlers(handlers(self.role, self._session))
        port = open_port(server, address, folder)
        await server.start()
        started.set_result(port)
        await self._closing.wait()
        for stream in list(self._streams.values()):
            self._leave(stream, None)
        await server.stop(CLOSING_SECONDS)

    async def _session(self, _frames: object, context: Any) -> None:
        """One stream, from the greeting to its end."""
        stream = await self._greeted(context)
        reading = asyncio.ensure_future(stream.read_answers())
        pinging = None
        try:
            reading.add_done_callback(lambda task: self._stop_reading(stream, task))
            await stream.read_clock(FIRST_PINGS)
            if not stream.over.is_set():
                self._enter(stream, context.peer())
                pinging = asyncio.ensure_future(stream.keep_clock())
            await stream.over.wait()
        finally:
            stream.end(CONNECTION_ENDED)
            self._leave(stream, stream.reason)
            reading.cancel()
            if pinging:
                pinging.cancel()
        if stream.reason is not None:
            await context.abort(grpc.StatusCode.ABORTED, stream.reason)

    def _stop_reading(self, stream: PartyStream, reading: "asyncio.Future[None]") -> None:
        """End a stream when nothing more is read from it."""
        if not reading.cancelled() and reading.exception() is not None:
            name = party_name(stream.party)
            log.error("an error while reading what %s sent", name, exc_info=reading.exception())
        stream.end(CONNECTION_ENDED)

    async def _greeted(self, context: Any) -> PartyStream:
        """A stream whose party has shown its certificate and its token; everybody else is refused."""
        name = common_name(context)
        parties = {party_name(party): party for party in self._tokens}
        if name not in parties:
            await self._refuse(context, name, "this session expects no party with this certificate")
        party = parties[name]
        if self._greetings[party] >= MOST_GREETINGS:
            await self._refuse(context, name, "too many connections", grpc.StatusCode.RESOURCE_EXHAUSTED)
        self._greetings[party] += 1
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                data = await context.read()
            frame = unpack(b"" if data is grpc.aio.EOF else data, most_bytes=MOST_GREETING_BYTES)
        except TimeoutError:
            await self._refuse(context, name, "no greeting", grpc.StatusCode.DEADLINE_EXCEEDED)
        except WireError as error:
            await self._refuse(context, name, str(error), grpc.StatusCode.INVALID_ARGUMENT)
        finally:
            self._greetings[party] -= 1
        fields = dict(frame.message.fields)
        token, claimed = fields.pop("token", None), fields.get("party")
        if frame.message.kind != HELLO or type(claimed) is not int or claimed != party:
            await self._refuse(context, name, "the greeting does not fit the certificate")
        if not self._is_token(party, token):
            await self._refuse(context, name, "the token is not the one of this session")
        return PartyStream(party, context, str(token), fields, self._most_bytes)

    async def _refuse(
        self, context: Any, name: str, reason: str, code: grpc.StatusCode = grpc.StatusCode.UNAUTHENTICATED
    ) -> NoReturn:
        """End a stream that was not greeted well; the log names each certificate once in a while."""
        now = time.monotonic()
        if now >= self._told_again.get(name, 0.0):
            self._told_again[name] = now + SECONDS_BETWEEN_REFUSALS
            log.warning("refused a connection of %s from %s: %s", one_sentence(name), context.peer(), reason)
        await context.abort(code, reason)
        raise AssertionError("abort always raises")

    def _is_token(self, party: int, token: object) -> bool:
        """Whether a token is the one of a party now; the time that this takes says nothing of the token."""
        expected = self._tokens.get(party)
        return (
            expected is not None
            and type(token) is str
            and hmac.compare_digest(expected.encode(), token.encode())
        )

    def _enter(self, stream: PartyStream, peer: str) -> None:
        """Let a party be present, instead of an older connection of the same party."""
        if not self._is_token(stream.party, stream.token):  # the token may have changed since the greeting
            stream.end(OLD_TOKEN)
            return
        if stream.party in self._streams:
            self._leave(self._streams[stream.party], "it connected anew")
        with self._changed:
            self._streams[stream.party] = stream
            self._changed.notify_all()
        log.info("%s connected from %s", party_name(stream.party), peer)

    def _leave(self, stream: PartyStream, reason: str | None) -> None:
        """End a stream; its party is present no longer, unless it has another stream."""
        stream.end(reason)
        with self._changed:
            if self._streams.get(stream.party) is not stream:
                return
            del self._streams[stream.party]
            self._changed.notify_all()
            if stream.reason is not None:
                self._reasons[stream.party] = stream.reason
                log.warning("%s was dropped: %s", party_name(stream.party), stream.reason)

    async def _ask_all(
        self, asked: Mapping[int, tuple[PartyStream, PackedQuestion]]
    ) -> Mapping[int, Answer[Message]]:
        answers = await asyncio.gather(*(self._ask(*each) for each in asked.values()))
        found = zip(asked, answers, strict=True)
        return {party: answer for party, answer in found if answer is not None}

    async def _ask(self, stream: PartyStream, question: PackedQuestion) -> Answer[Message] | None:
        answer = await stream.ask(question)
        if answer is None:
            self._leave(stream, stream.reason)
        return answer

    async def _drop(self, party: int, reason: str) -> None:
        if party in self._streams:
            self._leave(self._streams[party], one_sentence(reason))

    async def _set_tokens(self, tokens: dict[int, str], *, others: bool) -> None:
        self._tokens = {**self._tokens, **tokens} if others else tokens
        for stream in list(self._streams.values()):
            if not self._is_token(stream.party, stream.token):
                self._leave(stream, OLD_TOKEN)

    def _begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Let the thread of the server do something."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise HasflError(f"the {self.role} server is closed, so it cannot ask") from None
