"""Parties on this machine: real sockets, real TLS, simple answers."""

import queue
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from hasfl.deployment.answering import Pace, ServerAddress, Stop, TokenRefused, answer_questions
from hasfl.deployment.asking import PartyServer
from hasfl.deployment.channels import method, open_channel
from hasfl.deployment.fields import Handler, Message
from hasfl.deployment.wire import pack, unpack
from hasfl.record import EDGE

DEVICES = 4
LONG = 10.0  # seconds for what should come at once, on a busy machine


def token(party: int) -> str:
    return f"the token of {party}"


def echo(question: Message) -> Message:
    return Message(f"{question.kind} back", question.fields, question.tensors)


def folder_of(keys: Path, party: int) -> Path:
    return keys / "edge" if party == EDGE else keys / "devices" / f"box{party}"


def wait_until(condition: Any, seconds: float = LONG) -> bool:
    """Whether a condition comes true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@dataclass
class Party:
    """A party that answers in a thread of this process."""

    thread: threading.Thread
    stop: Stop
    refused: list[str] = field(default_factory=list)

    def end(self) -> None:
        self.stop.set()
        self.thread.join(LONG)
        assert not self.thread.is_alive()


class Site:
    """A server with its parties; everything ends with the test."""

    def __init__(self, keys: Path, role: str = "fed", **options: Any) -> None:
        self.keys = keys
        self.server = PartyServer(role, "127.0.0.1:0", keys / role, **options)
        self.server.allow({party: token(party) for party in (*range(DEVICES), EDGE)})
        self.address = f"127.0.0.1:{self.server.port}"
        self._open = ExitStack()

    def connect(
        self,
        party: int,
        handler: Handler = echo,
        *,
        hello: Mapping[str, Any] | None = None,
        address: str = "",
        pace: Pace | None = None,
        present: bool = True,
    ) -> Party:
        """Let a party connect; wait until it is present."""
        place = ServerAddress(self.server.role, address or self.address, folder_of(self.keys, party))
        greeting = {"token": token(party), "party": party, **(hello or {})}
        refused: list[str] = []

        def answer() -> None:
            try:
                answer_questions(place, greeting, handler, stop, pace=pace)
            except TokenRefused as error:
                refused.append(str(error))

        stop = Stop()
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        connected = Party(thread, stop, refused)
        self._open.callback(connected.end)
        if present:
            assert self.server.wait_until_present([party], LONG)
        return connected

    def raw(self, party: int, folder: Path | None = None) -> "RawClient":
        """A client that sends whatever bytes it likes, with the certificate of a party."""
        channel = open_channel(self.server.role, self.address, folder or folder_of(self.keys, party))
        client = RawClient(channel, self.server.role, party)
        self._open.callback(client.close)
        return client

    def raw_present(self, party: int, **hello: Any) -> "RawClient":
        """Such a client that has greeted and answered pings, so that the party is present."""
        client = self.raw(party)
        client.read()
        client.greet(**hello)
        client.answer_pings()
        assert self.server.wait_until_present([party], LONG)
        return client

    def close(self) -> None:
        self._open.close()
        self.server.close()


class RawClient:
    """One gRPC stream, by hand."""

    def __init__(self, channel: grpc.Channel, role: str, party: int) -> None:
        self.party = party
        self.received: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.status: grpc.StatusCode | None = None
        self.details = ""
        self._channel = channel
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = channel.stream_stream(method(role))(iter(self._outbox.get, None))
        self._reading: threading.Thread | None = None

    def send(self, frame: bytes) -> None:
        self._outbox.put(frame)

    def greet(self, **changed: Any) -> None:
        fields = {"token": token(self.party), "party": self.party, **changed}
        self.send(pack(Message("hello", fields), id=0))

    def read(self) -> None:
        """Read all that comes, in a thread."""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def next_question(self) -> bytes:
        """Answer pings until something else comes."""
        while True:
            data = self.received.get(timeout=LONG)
            if unpack(data).message.kind != "ping":
                return data
            self.answer_ping(data)

    def answer_pings(self, count: int = 5) -> None:
        for _ in range(count):
            self.answer_ping(self.received.get(timeout=LONG))

    def answer_ping(self, data: bytes) -> None:
        now = time.monotonic()
        self.send(pack(Message("pong"), id=unpack(data).id, times={"arrived": now, "sent": now}))

    def ended(self) -> grpc.StatusCode:
        """The status with which the server ended the stream."""
        assert self._reading
        self._reading.join(LONG)
        assert self.status is not None, "the stream has not ended"
        return self.status

    def close(self) -> None:
        self._outbox.put(None)
        self._call.cancel()
        self._channel.close()

    def _read(self) -> None:
        try:
            for data in self._call:
                self.received.put(data)
        except grpc.RpcError as error:
            self.details = str(error.details())
            self.status = error.code()
        else:
            self.status = grpc.StatusCode.OK


class Cable:
    """Carries bytes to an address; can be cut."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.is_cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break all connections, and refuse new ones."""
        self.is_cut = True
        while self._sockets:
            with suppress(OSError):
                end = self._sockets.pop()
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self.is_cut = False

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self.is_cut:
                    near.close()
                    continue
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=_carry, args=pair, daemon=True).start()


def _carry(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError), source:
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


def held(site: Site) -> Iterator[Site]:
    """For fixtures."""
    try:
        yield site
    finally:
        site.close()
