"""How a worker is told of a session: by a line of JSON on a unix socket that is its owner's alone."""

import json
import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from hasfl.deployment.sessions.answering import Stop
from hasfl.errors import HasflError, InputError, StorageError

SOCKET_FILE = "worker.sock"
LONGEST_SOCKET = 107  # bytes of a path; Linux allows no more
MOST_OFFER_BYTES = 64 * 1024
LONGEST_TEXT = 1024  # of an address, a token or the name of a run
LINE_SECONDS = 10.0  # for the line of an offer
LOOK_SECONDS = 0.1  # between two looks whether the desk is to close
LAST_ANSWER_SECONDS = 30.0  # that a session has to answer its last question, when another one begins

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Offer:
    """A session that a worker may join."""

    fed: str  # host:port of the fed server
    token: str
    run: str

    @classmethod
    def parse(cls, line: bytes) -> "Offer":
        """Read one line of JSON."""
        try:
            value = json.loads(line.decode())
        except (ValueError, RecursionError):
            value = None
        names = ("fed", "token", "run")
        if not isinstance(value, dict) or not all(_is_text(value.get(name)) for name in names):
            raise InputError("an offer must be one line of JSON with the texts fed, token and run")
        return cls(*(value[name] for name in names))


Hold = Callable[[Offer, Stop], None]  # take part in a session until it ends or is to stop


class SessionDesk:
    """Takes offers and holds one session at a time; a new offer ends the session before it.

    It answers an offer as soon as its session has begun. The same offer once more changes nothing while its
    session lasts, since a session looks after its streams by itself.
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
        """Begin a session, and say whether it has begun."""
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

    def __enter__(self) -> "SessionDesk":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end_session(self) -> bool:
        """End the session, if there is one, and say whether it has ended."""
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
    """The unix socket."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, path: Path, desk: SessionDesk) -> None:
        self.path = path
        self.desk = desk
        try:
            super().__init__(str(path), _Line)
        except OSError as error:
            raise StorageError(f"cannot make the socket {path}: {error.strerror}") from None
        path.chmod(0o600)

    def server_close(self) -> None:
        super().server_close()
        self.path.unlink(missing_ok=True)


class _Line(socketserver.StreamRequestHandler):
    """One offer."""

    server: _Door
    timeout = LINE_SECONDS

    def handle(self) -> None:
        with suppress(OSError):  # who made the offer may be gone
            try:
                answer = self.server.desk.take(Offer.parse(self.rfile.readline(MOST_OFFER_BYTES)))
            except InputError as error:
                answer = {"taken": False, "reason": str(error)}
            self.wfile.write(json.dumps(answer).encode() + b"\n")


def _socket_path(state: Path) -> Path:
    """The path of the socket in a folder that the owner alone may use; nobody listens there yet."""
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
        except ConnectionRefusedError:  # its worker was killed
            path.unlink(missing_ok=True)
            return path
        except OSError as error:
            raise StorageError(f"cannot use {path}: {error.strerror or error}") from None
    raise InputError(f"another worker uses {path.parent}: end it, or give another state folder")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_TEXT and value.isprintable()
