"""The server of a plan's page: whom it answers, and what it refuses."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hasfl.errors import InputError
from hasfl.report.page.plan_page_server import LOOPBACK, MOST_BYTES, Answer, PageServer
from tests.cli.conftest import Hasfl
from tests.problems import raw

JSON = {"Content-Type": "application/json"}


@contextmanager
def serving(html: str, answer: Answer) -> Iterator[PageServer]:
    with PageServer(html, answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def echo(asked: Any) -> dict[str, Any]:
    if asked == "refuse":
        raise InputError("expected something else")
    return {"asked": asked}


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving("<p>page</p>", echo) as running:
        yield running


def sent(
    port: int, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """The status and the body of a reply; headers that are given come in place of the usual ones."""
    usual = {"Host": f"{LOOPBACK}:{port}", **({"Content-Length": str(len(body))} if body else {})}
    lines = [f"{name}: {text}" for name, text in {**usual, **(headers or {})}.items()]
    with socket.create_connection((LOOPBACK, port), timeout=30) as wire, wire.makefile("rb") as reply:
        wire.sendall("\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode() + body)
        status = int(reply.readline().split()[1])
        while reply.readline().strip():
            pass
        return status, reply.read()


def asked(server: PageServer, body: bytes) -> tuple[int, Any]:
    status, reply = sent(server.server_port, "POST", f"/{server.token}/plan", body, JSON)
    return status, json.loads(reply)


def test_the_page_and_its_questions_are_answered(server: PageServer) -> None:
    port, path = server.server_port, f"/{server.token}/"
    assert server.socket.getsockname() == ("127.0.0.1", port)
    assert server.address == f"http://127.0.0.1:{port}{path}"
    for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
        assert sent(port, "GET", path, headers={"Host": host}) == (200, b"<p>page</p>")
    assert asked(server, b'{"a": [1.5]}') == (200, {"asked": {"a": [1.5]}})
    own = {**JSON, "Origin": f"http://127.0.0.1:{port}"}
    assert sent(port, "POST", f"{path}plan", b"1", own)[0] == 200
    assert asked(server, b'"refuse"') == (400, {"trouble": "expected something else"})
    with PageServer("", echo) as other:
        assert other.token != server.token


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("GET", "/", b"", {}, 404),
        ("GET", "/{token}", b"", {}, 404),
        ("GET", "/{token}/plan", b"", {}, 404),
        ("GET", "/{token}/../page.py", b"", {}, 404),
        ("GET", "/é{token}/", b"", {}, 404),
        ("GET", "/{token}/", b"", {"Host": "evil.example"}, 403),
        ("GET", "/{token}/", b"", {"Host": "127.0.0.1"}, 403),
        ("GET", "/favicon.ico", b"", {"Host": "evil.example"}, 403),
        ("POST", "/plan", b"1", JSON, 404),
        ("POST", "/{token}/plan", b"1", {**JSON, "Host": "evil.example"}, 403),
        ("POST", "/{token}/plan", b"1", {"Content-Type": "text/plain"}, 415),
        ("POST", "/{token}/plan", b"", JSON, 413),
        ("POST", "/{token}/plan", b"", {**JSON, "Content-Length": str(MOST_BYTES + 1)}, 413),
        ("POST", "/{token}/plan", b"1", {**JSON, "Content-Length": "-1"}, 413),
        ("POST", "/{token}/plan", b"1", {**JSON, "Content-Length": "9" * 5000}, 413),
        ("POST", "/{token}/plan", b"{", JSON, 400),
        ("POST", "/{token}/plan", b"\xff\xfe", JSON, 400),
        ("POST", "/{token}/plan", b"[" * MOST_BYTES, JSON, 400),
        ("POST", "/{token}/plan", b"1", {**JSON, "Origin": "http://evil.example"}, 403),
        ("POST", "/{token}/plan", b"1", {**JSON, "Origin": "null"}, 403),
        ("PUT", "/{token}/plan", b"1", JSON, 501),
        ("OPTIONS", "/{token}/plan", b"", {"Origin": "https://evil.example"}, 501),
    ],
)
def test_everything_else_is_refused(
    server: PageServer, method: str, path: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    found, reply = sent(server.server_port, method, path.format(token=server.token), body, headers)
    assert found == status
    assert server.token.encode() not in reply


def test_questions_are_answered_one_after_the_other() -> None:
    running, most = 0, 0

    def slowly(number: Any) -> dict[str, Any]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.05)
        running -= 1
        return {"number": number}

    with serving("", slowly) as server, ThreadPoolExecutor(4) as pool:
        bodies = [str(k).encode() for k in range(4)]
        replies = list(pool.map(lambda body: asked(server, body), bodies))
    assert replies == [(200, {"number": k}) for k in range(4)]
    assert most == 1


def test_the_command_serves_until_it_is_interrupted(hasfl: Hasfl, tmp_path: Path) -> None:
    """What the server plans for a faster uplink is what `hasfl plan` says of a file with that uplink."""
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(raw()))
    command = [sys.executable, "-u", "-m", "hasfl", "plan", str(path), "--serve"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = next(line for line in process.stdout if "the plan is at" in line)
        found = re.fullmatch(r"the plan is at http://127\.0\.0\.1:(\d+)(/[-\w]{32}/)\n", line)
        assert found is not None
        setting = {"uplink": 2, "compute": 1, "server": 1, "interval": raw()["interval"], "devices": 3}
        where = (int(found[1]), "POST", f"{found[2]}plan")
        status, reply = sent(*where, json.dumps(setting).encode(), JSON)
        assert sent(*where, json.dumps(setting | {"devices": 4}).encode(), JSON)[0] == 200  # it says why not
        taken = hasfl("plan", path, "--batch", 4, "--cut", 2, "--serve", "--port", found[1])
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (status, process.returncode, err) == (200, 0, "")
    assert out.endswith("the server has ended\n")
    fleet = raw()["fleet"]
    faster = {f"fleet.{field}": [2 * rate for rate in fleet[field]] for field in ("up_rate", "fed_up_rate")}
    path.write_text(json.dumps(raw(**faster)))
    expected = json.loads(hasfl("plan", path, "--json").out)
    assert json.loads(reply)["time"] == pytest.approx(expected["objective"], rel=2e-3)
    assert taken.code == 2
    assert f"--port must be a free port of this machine, got {found[1]}" in taken.err
