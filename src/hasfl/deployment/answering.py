"""The answering side of sessions: a worker takes an offer, connects to a server, and answers its questions.

An offer is a line of JSON on a unix socket that only its owner can use. The worker answers questions one
after the other, and opens a broken stream anew.
"""

import json
import logging
import queue
import random
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc

from hasfl.deployment.addresses import SOCKET_FILE
from hasfl.deployment.asking import ARRIVED, FAILED, HELLO, PING, PONG, SENT, one_sentence
from hasfl.deployment.channels import method, open_channel
from hasfl.deployment.fields import Handler, Message
from hasfl.deployment.wire import MOST_FRAME_BYTES, WireError, pack, unpack
from hasfl.errors import HasflError, InputError, StorageError

log = logging.getLogger(__name__)


# ── answering questions ──────────────────────────────────────────────────────────────────────────────────


# Pause in seconds before a broken stream is opened anew, doubled after every failure; chosen by hand.
FIRST_PAUSE = 0.2
LAST_PAUSE = 5.0  # longest pause


class TokenRefused(HasflError):
    """The server refuses the token or the certificate, so this party is not part of the session."""


class Pace(Protocol):
    """Makes a link as slow as another link, by sleeping for as long as the bytes would need on that link."""

    def before_sending(self, size: int) -> None:
        """Wait for as long as `size` bytes would be under way to the server."""

    def after_receiving(self, size: int) -> None:
        """Wait for as long as `size` bytes would be under way from the server."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server to connect to: its role, its host:port, and the folder with our certificates."""

    role: str
    address: str
    folder: Path
    most_bytes: int = MOST_FRAME_BYTES


class Stop:
    """Tells a session to end; a session that waits for a question ends at once."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._call: Any = None

    def set(self) -> None:
        """Tell the session to end."""
        with self._lock:
            self._event.set()
            if self._call is not None:
                self._call.cancel()

    def is_set(self) -> bool:
        """Whether the session has been told to end."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds`; return whether the session has been told to end."""
        return self._event.wait(seconds)

    @contextmanager
    def cancelling(self, call: Any) -> Iterator[None]:
        """Cancel a gRPC call as soon as the session is told to end."""
        with self._lock:
            self._call = call
            if self._event.is_set():
                call.cancel()
        try:
            yield
        finally:
            with self._lock:
                self._call = None


def answer_questions(
    server: ServerAddress,
    hello: Mapping[str, Any],
    handler: Handler,
    stop: Stop,
    *,
    pace: Pace | None = None,
    connected: Callable[[], None] = lambda: None,
) -> None:
    """Answer the questions of a server until the server ends the session, or until `stop` is set.

    `hello` is the greeting: the token, the party, and facts such as the number of samples. A broken stream is
    opened anew without limit; `connected` is called whenever the server has accepted a stream. Raise
    TokenRefused if the server refuses the token or the certificate.
    """
    pause, reported = FIRST_PAUSE, ""
    while not stop.is_set():
        conversation = _Conversation(server, handler, pace, connected)
        try:
            conversation.hold(hello, stop)
            if not stop.is_set():
                log.info("the %s server at %s ended the session", server.role, server.address)
            return
        except grpc.RpcError as error:
            reason = _reason(error, server)
        except WireError as error:
            reason = f"it sent a malformed frame: {error}"
        if stop.is_set():
            return
        if conversation.accepted:
            pause, reported = FIRST_PAUSE, ""
        if reason != reported:  # log each reason once, not at every attempt
            log.warning(
                "no stream to the %s server at %s, connecting anew: %s", server.role, server.address, reason
            )
            reported = reason
        stop.wait(random.uniform(pause / 2, pause))  # random, so that devices do not all connect at once
        pause = min(2 * pause, LAST_PAUSE)


@dataclass(slots=True, eq=False)
class _Conversation:
    """One stream to a server."""

    server: ServerAddress
    handler: Handler
    pace: Pace | None
    connected: Callable[[], None]
    accepted: bool = False  # whether the server has accepted the stream

    def hold(self, hello: Mapping[str, Any], stop: Stop) -> None:
        """Greet and answer until the server ends the stream; raise grpc.RpcError if the stream breaks."""
        place = self.server
        outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        outbox.put(pack(Message(HELLO, hello), id=0))
        channel = open_channel(place.role, place.address, place.folder, most_bytes=place.most_bytes)
        with channel:
            call = channel.stream_stream(method(place.role))(iter(outbox.get, None))
            try:
                with stop.cancelling(call):
                    for data in call:
                        outbox.put(self._answer(data, time.monotonic()))
            finally:
                outbox.put(None)

    def _answer(self, data: bytes, arrived: float) -> bytes:
        """The answering frame of a question or a ping."""
        if not self.accepted:
            self.accepted = True
            log.info("connected to the %s server at %s", self.server.role, self.server.address)
            self.connected()
        frame = unpack(data, most_bytes=self.server.most_bytes)
        if frame.message.kind == PING:
            return pack(Message(PONG), id=frame.id, times={ARRIVED: arrived, SENT: time.monotonic()})
        if self.pace:
            self.pace.after_receiving(len(data))
            arrived = time.monotonic()
        message = self._handled(frame.message)
        answer = self._packed(message, frame.id, arrived)
        if self.pace:
            self.pace.before_sending(len(answer))
        return answer

    def _handled(self, question: Message) -> Message:
        try:
            return self.handler(question)
        except HasflError as error:
            log.warning("cannot answer %s: %s", question.kind, error)
            return Message(FAILED, {"reason": one_sentence(error)})
        except Exception as error:
            log.exception("an error while answering %s", question.kind)
            # Send only the type: the text of an unexpected error may reveal private data of this party.
            return Message(FAILED, {"reason": f"a {type(error).__name__}, which its own log explains"})

    def _packed(self, message: Message, id: int, arrived: float) -> bytes:  # noqa: A002
        times = {ARRIVED: arrived, SENT: time.monotonic()}
        try:
            return pack(message, id=id, times=times, most_bytes=self.server.most_bytes)
        except WireError as error:
            log.warning("cannot send the answer %s: %s", message.kind, error)
            return pack(Message(FAILED, {"reason": one_sentence(error)}), id=id, times=times)


def _reason(error: grpc.RpcError, server: ServerAddress) -> str:
    """The reason why a stream broke; raise TokenRefused if another attempt would be useless."""
    code, details = error.code(), one_sentence(error.details())
    if code is grpc.StatusCode.UNAUTHENTICATED:
        raise TokenRefused(
            f"the {server.role} server at {server.address} refused this party: {details}; wait for the next "
            "session, or check the certificate"
        ) from None
    return f"{details} ({code.name})"


# ── taking offers ────────────────────────────────────────────────────────────────────────────────────────


LONGEST_SOCKET = 107  # bytes in the path of a unix socket; the limit of Linux
# The numbers below were chosen by hand.
MOST_OFFER_BYTES = 64 * 1024
LONGEST_TEXT = 1024  # characters of an address, a token or the name of a run
LINE_SECONDS = 10.0  # time limit to send the line of an offer
LOOK_SECONDS = 0.1  # pause between two checks whether the socket shall close
LAST_ANSWER_SECONDS = 30.0  # time for a session to answer its last question when a new session begins


@dataclass(frozen=True, slots=True)
class Offer:
    """A session that a worker may join."""

    fed: str  # host:port of the fed server
    token: str  # the token that the party shows to the fed server
    run: str  # number of the run at Flower

    @classmethod
    def parse(cls, line: bytes) -> "Offer":
        """Read an offer from a line of JSON."""
        try:
            value = json.loads(line.decode())
        except (ValueError, RecursionError):
            value = None
        names = ("fed", "token", "run")
        if not isinstance(value, dict) or not all(_is_text(value.get(name)) for name in names):
            raise InputError("an offer must be one line of JSON with the texts fed, token and run")
        return cls(*(value[name] for name in names))


Hold = Callable[[Offer, Stop], None]  # takes part in a session until it ends or the stop is set


class SessionHolder:
    """Takes offers and holds one session at a time; a new offer ends the session before it.

    The answer to an offer is sent as soon as its session has begun. The same offer again changes nothing
    while its session lasts, because a session reconnects by itself.
    """

    def __init__(self, state: Path, hold: Hold) -> None:
        self._hold = hold
        self._turn = threading.Lock()
        self._offer: Offer | None = None
        self._stop = Stop()
        self._session: threading.Thread | None = None
        self._door = _Door(_socket_path(state), self)
        self._listening = threading.Thread(
            target=self._door.serve_forever, args=(LOOK_SECONDS,), name="offers", daemon=True
        )
        self._listening.start()

    def take(self, offer: Offer) -> Mapping[str, Any]:
        """Begin the offered session; the answer says whether it has begun."""
        with self._turn:
            if self._offer == offer and self._session and self._session.is_alive():
                return {"taken": True}
            if not self._end_session():
                reason = f"the session before still answers a question after {LAST_ANSWER_SECONDS:.3g} s"
                return {"taken": False, "reason": reason}
            self._offer, self._stop = offer, Stop()
            self._session = threading.Thread(
                target=self._held, args=(offer, self._stop), name="session", daemon=True
            )
            self._session.start()
        return {"taken": True}

    def close(self) -> None:
        """Take no more offers, and end the session."""
        self._door.shutdown()
        self._door.server_close()
        self._listening.join()
        with self._turn:
            self._end_session()

    def __enter__(self) -> "SessionHolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end_session(self) -> bool:
        """Stop the session, if there is one; return whether it has ended in time."""
        if self._session is None:
            return True
        self._stop.set()
        self._session.join(LAST_ANSWER_SECONDS)
        return not self._session.is_alive()

    def _held(self, offer: Offer, stop: Stop) -> None:
        log.info("a session of the run %s begins", offer.run)
        try:
            self._hold(offer, stop)
            log.info("the session of the run %s has ended", offer.run)
        except HasflError as error:
            log.warning("the session of the run %s has ended: %s", offer.run, error)
        except Exception:
            log.exception("the session of the run %s has ended with an error", offer.run)


class _Door(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """The unix socket that takes offers."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, path: Path, sessions: SessionHolder) -> None:
        self.path = path
        self.sessions = sessions
        try:
            super().__init__(str(path), _Line)
        except OSError as error:
            raise StorageError(f"cannot make the socket {path}: {error.strerror}") from None
        path.chmod(0o600)

    def server_close(self) -> None:
        super().server_close()
        self.path.unlink(missing_ok=True)


class _Line(socketserver.StreamRequestHandler):
    """Handles one offer: reads its line and answers."""

    server: _Door
    timeout = LINE_SECONDS

    def handle(self) -> None:
        with suppress(OSError):  # the sender of the offer may have closed the connection
            try:
                answer = self.server.sessions.take(Offer.parse(self.rfile.readline(MOST_OFFER_BYTES)))
            except InputError as error:
                answer = {"taken": False, "reason": str(error)}
            self.wfile.write(json.dumps(answer).encode() + b"\n")


def _socket_path(state: Path) -> Path:
    """The path of the socket; refuses a folder that others may use, or that another worker uses."""
    path = state.resolve() / SOCKET_FILE
    if len(bytes(path)) > LONGEST_SOCKET:
        most = LONGEST_SOCKET - len(SOCKET_FILE) - 1
        raise InputError(
            f"the path of a state folder may have {most} bytes, got {path.parent}: give a shorter one"
        )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = path.parent.stat().st_mode
    except OSError as error:
        raise StorageError(f"cannot make the folder {path.parent}: {error.strerror}") from None
    if mode & 0o077:
        raise InputError(f"{path.parent} must be a folder for its owner alone: chmod 700 {path.parent}")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(LINE_SECONDS)
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            return path
        except ConnectionRefusedError:  # the worker of this socket was killed
            path.unlink(missing_ok=True)
            return path
        except OSError as error:
            raise StorageError(f"cannot use {path}: {error.strerror or error}") from None
    raise InputError(f"another worker uses {path.parent}: end it, or give another state folder")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_TEXT and value.isprintable()
