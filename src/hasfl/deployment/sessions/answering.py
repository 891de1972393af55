"""The asked side of sessions: connect to a server, greet it, and answer its questions one after the other."""

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc

from hasfl.deployment.channels import method, open_channel
from hasfl.deployment.fields import Handler, Message
from hasfl.deployment.sessions.streams import ARRIVED, FAILED, HELLO, PING, PONG, SENT, one_sentence
from hasfl.deployment.wire import MOST_FRAME_BYTES, WireError, pack, unpack
from hasfl.errors import HasflError

FIRST_PAUSE = 0.2  # seconds before a broken stream is opened anew; they grow with every failure
LAST_PAUSE = 5.0

log = logging.getLogger(__name__)


class TokenRefused(HasflError):
    """The server does not know this token, or not with this certificate: this session is not ours."""


class Pace(Protocol):
    """Makes a link as slow as another one; both methods sleep for as long as the bytes would need there."""

    def before_sending(self, size: int) -> None:
        """Wait for as long as these bytes would be under way to the server."""

    def after_receiving(self, size: int) -> None:
        """Wait for as long as these bytes would be under way from the server."""


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """A server to connect to: its role, its host:port, and the folder with our certificates."""

    role: str
    address: str
    folder: Path
    most_bytes: int = MOST_FRAME_BYTES


class Stop:
    """Tells a session to end, at once if it waits for a question."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._call: Any = None

    def set(self) -> None:
        """End the session."""
        with self._lock:
            self._event.set()
            if self._call is not None:
                self._call.cancel()

    def is_set(self) -> bool:
        """Whether the session is to end."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait, and say whether the session is to end."""
        return self._event.wait(seconds)

    @contextmanager
    def cancelling(self, call: Any) -> Iterator[None]:
        """Cancel this call if the session is told to end."""
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
    server: ServerPlace,
    hello: Mapping[str, Any],
    handler: Handler,
    stop: Stop,
    *,
    pace: Pace | None = None,
    connected: Callable[[], None] = lambda: None,
) -> None:
    """Answer the questions of a server until it says that the session is over, or until we are told to stop.

    `hello` has the token, the party and what the party says of itself. A broken stream is opened anew, for
    as long as it takes; `connected` is called whenever the server has accepted one.
    Raise TokenRefused if the server refuses the token or the certificate.
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
        if reason != reported:  # once, however often it is tried
            log.warning(
                "no stream to the %s server at %s, connecting anew: %s", server.role, server.address, reason
            )
            reported = reason
        stop.wait(random.uniform(pause / 2, pause))  # so that a fleet does not come back all at once
        pause = min(2 * pause, LAST_PAUSE)


class _Conversation:
    """One stream to a server."""

    def __init__(
        self, server: ServerPlace, handler: Handler, pace: Pace | None, connected: Callable[[], None]
    ) -> None:
        self.server = server
        self.handler = handler
        self.pace = pace
        self.connected = connected
        self.accepted = False

    def hold(self, hello: Mapping[str, Any], stop: Stop) -> None:
        """Greet and answer until the server ends the stream; a broken stream is an error of gRPC."""
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
        """The frame that answers a frame."""
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
            # Only its type: the text of an unexpected error may show what belongs to this party alone.
            return Message(FAILED, {"reason": f"a {type(error).__name__}, which its own log explains"})

    def _packed(self, message: Message, id: int, arrived: float) -> bytes:  # noqa: A002
        times = {ARRIVED: arrived, SENT: time.monotonic()}
        try:
            return pack(message, id=id, times=times, most_bytes=self.server.most_bytes)
        except WireError as error:
            log.warning("cannot send the answer %s: %s", message.kind, error)
            return pack(Message(FAILED, {"reason": one_sentence(error)}), id=id, times=times)


def _reason(error: grpc.RpcError, server: ServerPlace) -> str:
    """Why a stream ended; raise TokenRefused if another attempt would be useless."""
    code, details = error.code(), one_sentence(error.details())
    if code is grpc.StatusCode.UNAUTHENTICATED:
        raise TokenRefused(
            f"the {server.role} server at {server.address} refused this party: {details}; wait for the next "
            "session, or check the certificate"
        ) from None
    return f"{details} ({code.name})"
