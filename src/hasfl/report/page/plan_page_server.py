"""A small server for one page, which answers only this machine, and only requests with the page's token."""

import hmac
import json
import secrets
import sys
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hasfl.errors import InputError

LOOPBACK = "127.0.0.1"
MOST_BYTES = 4096  # largest request in bytes; chosen by hand
PATIENCE = 10.0  # seconds within which a browser must send its request; chosen by hand
TOKEN_BYTES = 24  # random bytes of the token in the address
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
JSON, HTML = "application/json", "text/html; charset=utf-8"

Answer = Callable[[Any], Mapping[str, Any]]  # answers the JSON of a request; raises InputError to refuse it


class PageServer(ThreadingHTTPServer):
    """Serves a page and answers its requests one after the other.

    The address holds a random token. A request must name this server as its host, so that no other site can
    make its own name point here (DNS rebinding), and must be JSON, which browsers do not send to other sites.
    """

    daemon_threads = True  # a plan that is being made does not delay the end

    def __init__(self, html: str, answer: Answer, port: int = 0) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.html, self.answer = html.encode(), answer
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.one_at_a_time = threading.Lock()

    @property
    def address(self) -> str:
        """The address of the page, with its token."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"

    @property
    def hosts(self) -> tuple[str, str]:
        """The names by which browsers on this machine may call the server."""
        return f"{LOOPBACK}:{self.server_port}", f"localhost:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print errors as usual, except connections that the browser closed."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = PATIENCE
    server_version, sys_version = "hasfl", ""

    def do_GET(self) -> None:
        """Send the page."""
        if self.path == "/favicon.ico" and self._named_us():
            self._send(HTTPStatus.NO_CONTENT, b"", JSON)
        elif self._let_in(""):
            self._send(HTTPStatus.OK, self.server.html, HTML)

    def do_POST(self) -> None:
        """Answer a request of the page."""
        if not self._let_in("plan"):
            return
        if self.headers.get_content_type() != JSON:
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"a question must be {JSON}")
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isdecimal() and len(length) <= len(str(MOST_BYTES)) and int(length) <= MOST_BYTES):
            self._refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a question must have up to {MOST_BYTES:,} bytes"
            )
            return
        try:
            asked = json.loads(self.rfile.read(int(length)))
            with self.server.one_at_a_time:
                answer = self.server.answer(asked)
        except InputError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        except (ValueError, RecursionError):
            self._refuse(HTTPStatus.BAD_REQUEST, "a question must be valid JSON")
        else:
            self._send(HTTPStatus.OK, json.dumps(answer, allow_nan=False).encode(), JSON)

    def _named_us(self) -> bool:
        origin = self.headers.get("Origin")  # address of the page that sent the request, set by browsers
        ours = origin is None or origin in {f"http://{host}" for host in self.server.hosts}
        if ours and self.headers.get("Host", "") in self.server.hosts:
            return True
        self._refuse(HTTPStatus.FORBIDDEN, "this server answers to its own address only")
        return False

    def _let_in(self, page: str) -> bool:
        """Whether the request names this server and has its token; if not, send a refusal."""
        if not self._named_us():
            return False
        expected = f"/{self.server.token}/{page}"
        if hmac.compare_digest(self.path.encode(), expected.encode()):
            return True
        self._refuse(HTTPStatus.NOT_FOUND, "nothing is here: open the address that hasfl printed")
        return False

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        self._send(status, json.dumps({"trouble": sentence}).encode(), JSON)

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing: requests contain the address, which holds the token."""
