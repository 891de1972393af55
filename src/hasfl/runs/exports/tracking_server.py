"""Calls an MLflow tracking server over its REST interface, version 2.0."""

import base64
import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from hasfl.errors import EXIT_FAILURE, HasflError, InputError

ADDRESS = "MLFLOW_TRACKING_URI"
USER, PASSWORD, TOKEN = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"
SECONDS = 30.0  # the most seconds that an answer may take; chosen by hand
LARGEST = 1 << 24  # the most bytes of an answer; chosen by hand
PAUSES = (1.0, 2.0, 4.0)  # seconds before a failed call is tried again; chosen by hand
SHOWN = 200  # characters of a server's message that an error shows; chosen by hand
LOOPBACK = ("localhost", "127.0.0.1", "::1")  # names of this machine
# Statuses of HTTP after which a call is tried again: the server is busy, or (from 500) has a fault.
BUSY, FAULTS = 429, 500


class ServerFault(HasflError):
    """A tracking server does not answer, or refuses a call."""

    exit_code = EXIT_FAILURE

    def __init__(self, sentence: str, status: int | None = None) -> None:
        super().__init__(sentence)
        self.status = status  # status of HTTP; None if there was no answer


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, because the password would go along to another server."""

    def redirect_request(self, *args: Any, **options: Any) -> None:
        return None


@dataclass(frozen=True, slots=True)
class TrackingServer:
    """A tracking server at an address such as http://127.0.0.1:5000."""

    address: str
    headers: Mapping[str, str]
    wait: Callable[[float], None] = time.sleep

    @classmethod
    def at(cls, written: str | None) -> "TrackingServer":
        """The server at the address of --server, or else of the environment variable that MLflow uses."""
        address = (written or os.environ.get(ADDRESS) or "").rstrip("/")
        parts = _split(address)
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(
                f"--server or {ADDRESS} must be the address of an MLflow tracking server, as "
                f"http://127.0.0.1:5000, got {address!r}"
            )
        if "@" in parts.netloc:
            raise InputError(f"--server must hold no password: set {USER} and {PASSWORD} instead")
        headers = _credentials()
        if headers and parts.scheme == "http" and parts.hostname not in LOOPBACK:
            raise InputError(
                f"a password must not travel openly, but {address} is not encrypted: use https, or unset "
                f"{', '.join(name for name in (USER, PASSWORD, TOKEN) if name in os.environ)}"
            )
        return cls(address, headers)

    def get(self, call: str, **query: str) -> dict[str, Any]:
        """Send a call with GET, such as experiments/get-by-name, and return the answer."""
        asked = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
        return self._call(f"{call}?{asked}", None)

    def post(self, call: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Send a call with POST, such as runs/log-batch, and return the answer."""
        return self._call(call, json.dumps(fields, allow_nan=False).encode())

    def _call(self, call: str, body: bytes | None) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.address}/api/2.0/mlflow/{call}",
            data=body,
            headers={**self.headers, "Content-Type": "application/json"},
        )
        status: int | None = None
        for pause in (*PAUSES, None):
            try:
                return self._answer(request)
            except urllib.error.HTTPError as error:
                fault, status = _refusal(error), error.code
                passes = status == BUSY or status >= FAULTS
            except (OSError, http.client.HTTPException) as error:
                reason = error.reason if isinstance(error, urllib.error.URLError) else error
                fault, status, passes = str(reason) or type(reason).__name__, None, True
            if not passes or pause is None:
                break
            self.wait(pause)
        raise ServerFault(
            f"the tracking server {self.address} does not do {call.partition('?')[0]} ({fault}): check that "
            "it runs and who may use it; the same command goes on from there",
            status,
        )

    def _answer(self, request: urllib.request.Request) -> dict[str, Any]:
        opener = urllib.request.build_opener(_NoRedirects)
        with opener.open(request, timeout=SECONDS) as answer:
            content = answer.read(LARGEST + 1)
        try:
            found = json.loads(content or b"{}") if len(content) <= LARGEST else None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ServerFault(
                f"{self.address} must be an MLflow tracking server, but its answer is no JSON object: check "
                "the address"
            )
        return found


def _split(address: str) -> SplitResult | None:
    try:
        parts = urlsplit(address)
        _ = parts.port  # raises for a port that is no number
    except ValueError:
        return None
    return parts


def _credentials() -> Mapping[str, str]:
    """The header that authenticates the user, from the environment variables that MLflow uses."""
    if token := os.environ.get(TOKEN):
        return {"Authorization": f"Bearer {token}"}
    if user := os.environ.get(USER):
        pair = f"{user}:{os.environ.get(PASSWORD, '')}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    return {}


def _refusal(error: urllib.error.HTTPError) -> str:
    """The status and the message of a server that refused a call, in one line."""
    with error:
        content = error.read(LARGEST)
    try:
        said = json.loads(content)["message"]
    except (ValueError, KeyError, TypeError):
        said = error.reason
    return f"status {error.code}: {' '.join(str(said).split())[:SHOWN]}"
