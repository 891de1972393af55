"""The asking side of sessions: a gRPC server to which parties connect, and which asks them questions.

The fed server asks devices and the edge server; the edge server asks devices. The server checks the
certificate and the token of a party before it sends any question. A party gets one question at a time, and
its answer has the id of the question. The time stamps of the party say how long the question and the answer
were under way.
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


# Names of the times in an answering frame, by the clock of the party that answers.
ARRIVED = "arrived"  # when the question had arrived
SENT = "sent"  # when the answer was sent

DRIFT = 1e-4  # largest drift between two clocks, in seconds per second; quartz clocks stay below


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The offset of another machine's clock, measured with one ping."""

    offset: float  # seconds by which the other clock is ahead of ours
    round_trip: float  # duration of the ping in seconds
    at: float  # time of the measurement, by our clock

    def error(self, now: float) -> float:
        """The largest error of the offset, in seconds: the ping may have spent its time in one direction."""
        return self.round_trip / 2 + DRIFT * (now - self.at)


@dataclass(frozen=True, slots=True)
class Trip:
    """The times when a question was sent and when its answer had arrived, by our clock."""

    sent: float
    received: float

    def reading(self, arrived_there: float, sent_there: float) -> ClockReading:
        """The offset of the other clock, if both directions of this trip took equally long."""
        round_trip = max(self.received - self.sent - (sent_there - arrived_there), 0.0)
        offset = ((arrived_there - self.sent) + (sent_there - self.received)) / 2
        return ClockReading(offset, round_trip, self.received)

    def seconds_under_way(
        self, arrived_there: float, sent_there: float, offset: float
    ) -> tuple[float, float]:
        """The seconds that the question and the answer were under way, limited to the whole trip."""
        whole = self.received - self.sent
        down = min(max(arrived_there - offset - self.sent, 0.0), whole)
        up = min(max(self.received - (sent_there - offset), 0.0), whole - down)
        return down, up


def better_reading(old: ClockReading | None, new: ClockReading) -> ClockReading:
    """The reading with the smaller error at the time of the new reading."""
    return new if old is None or new.error(new.at) <= old.error(new.at) else old


# ── one connected party ──────────────────────────────────────────────────────────────────────────────────


# Kinds of messages that streams use themselves.
HELLO = "hello"
PING = "ping"
PONG = "pong"
FAILED = "failed"

CONNECTION_ENDED = "its connection ended"  # cut, closed by the party, or given up by gRPC

# The numbers below were chosen by hand.
FIRST_PINGS = 5  # pings after the greeting
LATER_PINGS = 3  # pings every SECONDS_BETWEEN_PINGS
SECONDS_BETWEEN_PINGS = 10.0
PING_SECONDS = 20.0  # time limit of a ping; a party that needs longer is dropped as hung
LONGEST_REASON = 300  # characters of a reason that a party gives

IDS = itertools.count(1)  # ids of questions and pings, unique within the process


class StreamEnded(HasflError):
    """The stream to a party has ended, so the answer will not arrive."""


@dataclass(frozen=True, slots=True)
class PackedQuestion:
    """A packed question with its deadline."""

    id: int
    frame: bytes
    seconds: float  # time limit of the answer, for messages
    deadline: float  # end of the time limit, by the monotonic clock


def party_name(party: int) -> str:
    """The common name of a party's certificate."""
    return EDGE_NAME if party == EDGE else device_name(party)


class PartyStream:
    """The stream to one party, after its greeting; all methods run in the event loop of the server."""

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
        # The id of the expected frame, and a future: the frame and its arrival time, or None at the end.
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
        """Ask a question and return the answer; without a good answer in time, end the stream: None."""
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
        """Take every frame that arrives, until one is wrong or the connection ends."""
        while not self.over.is_set():
            try:
                data = await self._context.read()
            except Exception:  # gRPC raises several kinds for a closed stream
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
        """Send `pings` pings, and keep the most exact reading of the party's clock."""
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
        """Send pings regularly while no question is under way; a party that hangs is found this way too."""
        while not self.over.is_set():
            await asyncio.sleep(SECONDS_BETWEEN_PINGS)
            if not self._turn.locked():
                await self.read_clock(LATER_PINGS)

    async def _exchange(self, id: int, data: bytes) -> tuple[Frame, Trip]:  # noqa: A002
        """Send a frame once no other is under way, and wait for its answer or the end of the stream."""
        async with self._turn:
            if self.over.is_set():
                raise StreamEnded
            answer = asyncio.get_running_loop().create_future()
            self._expected = (id, answer)
            sent = time.monotonic()
            try:
                await self._context.write(data)
            except Exception as error:  # gRPC raises several kinds for a closed stream
                self.end(CONNECTION_ENDED)
                raise StreamEnded from error
            found = await answer
            if found is None:
                raise StreamEnded
            frame, received = found
            return frame, Trip(sent, received)


def one_sentence(text: object) -> str:
    """A party's text in one printable line of at most LONGEST_REASON characters, for logs and records."""
    words = " ".join(str(text)[: 2 * LONGEST_REASON].split())
    return "".join(letter for letter in words if letter.isprintable())[:LONGEST_REASON]


def _times(frame: Frame) -> tuple[float, float]:
    """The times when the question had arrived and when the answer was sent, by the party's clock."""
    if not {ARRIVED, SENT} <= set(frame.times):
        raise WireError(f"an answer must say when it {ARRIVED} and when it was {SENT}")
    return frame.times[ARRIVED], frame.times[SENT]


# ── all connected parties ────────────────────────────────────────────────────────────────────────────────


# The numbers below were chosen by hand.
GREETING_SECONDS = 10.0  # time limit of the greeting, the first frame of a stream
MOST_GREETING_BYTES = 64 * 1024
MOST_GREETINGS = 4  # streams of one party that may wait for their greeting at the same time
CLOSING_SECONDS = 1.0  # time for parties to learn that the session is over
SECONDS_BETWEEN_REFUSALS = 1.0  # pause between two log lines on one certificate, so that the log stays small
OLD_TOKEN = "its token is no longer the one of this session"


class PartyServer:
    """A gRPC server in its own thread, with the connections to parties (`hasfl.deployment.links.Links`)."""

    def __init__(self, role: str, address: str, folder: Path, *, most_bytes: int = MOST_FRAME_BYTES) -> None:
        """Listen at `address`, host:port, with the certificates in `folder`; port 0 means any free port."""
        self.role = role
        self.port = 0
        self._most_bytes = most_bytes
        self._tokens: dict[int, str] = {}
        self._streams: dict[int, PartyStream] = {}
        self._reasons: dict[int, str] = {}
        self._greetings: Counter[int] = Counter()  # number of streams before their greeting, by party
        self._told_again: dict[str, float] = {}  # time of the next log line on a refusal, by common name
        self._changed = threading.Condition()  # guards `_streams` and `_reasons`
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        started: Future[int] = Future()
        self._thread = threading.Thread(
            target=self._serve, args=(address, folder, started), name=f"{role} server", daemon=True
        )
        self._thread.start()
        self.port = started.result()

    def allow(self, tokens: Mapping[int, str]) -> None:
        """Accept these parties with these tokens; other parties keep their tokens.

        The older token of such a party is no longer valid: a party that is connected with it is dropped.
        """
        self._begin(self._set_tokens(dict(tokens), others=True)).result()

    def allow_only(self, tokens: Mapping[int, str]) -> None:
        """Accept these parties with these tokens, and drop all other connected parties."""
        self._begin(self._set_tokens(dict(tokens), others=False)).result()

    def present(self) -> frozenset[int]:
        """The parties that are connected now."""
        with self._changed:
            return frozenset(self._streams)

    def wait_until_present(self, parties: Iterable[int], seconds: float) -> frozenset[int]:
        """Wait at most `seconds` until these parties are connected; return those that are."""
        expected = frozenset(parties)
        with self._changed:
            self._changed.wait_for(lambda: expected <= set(self._streams), seconds)
            return expected & frozenset(self._streams)

    def greeting(self, party: int) -> Mapping[str, Any]:
        """The greeting of a party; empty if the party is not connected."""
        with self._changed:
            return self._streams[party].greeting if party in self._streams else {}

    def ask(self, questions: Mapping[int, Message], seconds: float) -> Mapping[int, Answer[Message]]:
        """Ask all these parties at the same time, and wait for their answers; see `Links.ask`."""
        deadline = time.monotonic() + seconds
        number = next(IDS)
        frames: dict[int, bytes] = {}  # by id() of the message: a message to all is packed once
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
        """Close the connection to a party because of what it sent."""
        self._begin(self._drop(party, reason)).result()

    def reasons(self) -> Mapping[int, str]:
        """The reasons why parties were dropped since the last call, by party."""
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

    # The methods below run in the thread of the server, except `_begin`.

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
        """Serve one stream from its greeting to its end."""
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
        """End a stream when reading from it has ended, and log an error of the reader."""
        if not reading.cancelled() and reading.exception() is not None:
            name = party_name(stream.party)
            log.error("an error while reading what %s sent", name, exc_info=reading.exception())
        stream.end(CONNECTION_ENDED)

    async def _greeted(self, context: Any) -> PartyStream:
        """Check certificate, greeting and token of a new stream; refuse it, or return the party's stream."""
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
        """End a stream without a valid greeting; log at most one line per certificate and second."""
        now = time.monotonic()
        if now >= self._told_again.get(name, 0.0):
            self._told_again[name] = now + SECONDS_BETWEEN_REFUSALS
            log.warning("refused a connection of %s from %s: %s", one_sentence(name), context.peer(), reason)
        await context.abort(code, reason)
        raise AssertionError("abort always raises")

    def _is_token(self, party: int, token: object) -> bool:
        """Whether `token` is the present token of a party; compared in a time that does not depend on it."""
        expected = self._tokens.get(party)
        return (
            expected is not None
            and type(token) is str
            and hmac.compare_digest(expected.encode(), token.encode())
        )

    def _enter(self, stream: PartyStream, peer: str) -> None:
        """Count a party as connected, and end an older stream of the same party."""
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
        """End a stream; its party is no longer connected, unless the party has a newer stream."""
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
        """Run a coroutine in the thread of the server."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise HasflError(f"the {self.role} server is closed, so it cannot ask") from None
