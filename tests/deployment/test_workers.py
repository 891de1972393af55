"""Workers on loopback: offers at their sockets, a fed server, an edge server and devices, TLS on."""

import json
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hasfl.deployment import answering
from hasfl.deployment.answering import Offer, SessionHolder, Stop
from hasfl.deployment.fields import Message
from hasfl.deployment.joining import DeviceWorker, EdgeWorker
from hasfl.deployment.links import Links
from hasfl.errors import InputError
from hasfl.record import EDGE
from tests.deployment.loopback import LONG, Site, folder_of, held, token, wait_until


class EchoDevice:
    """Says who asked, and notices when it is asked two questions at once."""

    def __init__(self, index: int, run: str) -> None:
        self.index, self.run = index, run
        self.busy = 0
        self.most_busy = 0

    def from_fed(self, question: Message) -> Message:
        return self._answer("fed", question)

    def from_edge(self, question: Message) -> Message:
        return self._answer("edge", question)

    def _answer(self, asker: str, question: Message) -> Message:
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        time.sleep(question.fields.get("sleep", 0.0))
        self.busy -= 1
        return Message("told", {"by": asker, "device": self.index, "run": self.run})


class RelayEdge:
    """Asks all devices that are connected, and tells who answered."""

    def __init__(self, links: Links) -> None:
        self.links = links

    def from_fed(self, question: Message) -> Message:
        if question.kind == "begin":
            return Message("ready")
        message = Message("forward", question.fields)
        answers = self.links.ask(dict.fromkeys(self.links.present(), message), LONG)
        return Message("heard", {"devices": sorted(answers)})


class Fleet:
    """A fed server, an edge worker and device workers."""

    def __init__(self, keys: Path, folder: Path) -> None:
        self.keys, self.folder = keys, folder
        self.site = Site(keys)
        self.parties: dict[int, list[EchoDevice]] = {}
        self._open = ExitStack()
        self._open.callback(self.site.close)
        self.edge = self.edge_worker()

    def edge_worker(self, port: int = 0) -> EdgeWorker:
        worker = EdgeWorker(
            f"127.0.0.1:{port}",
            self.keys / "edge",
            self.folder / "edge",
            lambda offer, links: RelayEdge(links),
        )
        self._open.callback(worker.close)
        return worker

    def device_worker(self, index: int) -> DeviceWorker:
        def make_party(offer: Offer) -> EchoDevice:
            self.parties.setdefault(index, []).append(EchoDevice(index, offer.run))
            return self.parties[index][-1]

        state = self.folder / str(index)
        worker = DeviceWorker(
            index, folder_of(self.keys, index), state, make_party, hello=lambda: {"flops": 1e9 + index}
        )
        self._open.callback(worker.close)
        return worker

    def offer(self, party: int, *, run: str = "a", **changed: str) -> dict[str, Any]:
        state = self.folder / ("edge" if party == EDGE else str(party))
        return send(
            state / "worker.sock", {"fed": self.site.address, "token": token(party), "run": run, **changed}
        )

    def begin(self, devices: list[int], sign: str = "") -> None:
        """Tell the edge server the tokens of an interval, and tell devices where it is."""
        tokens = {str(index): f"edge token {sign}{index}" for index in devices}
        server = self.site.server
        assert server.ask({EDGE: Message("begin", {"tokens": tokens})}, LONG)
        address = f"127.0.0.1:{self.edge.devices.port}"
        questions = {
            index: Message("begin", {"edge": address, "edge_token": tokens[str(index)]}) for index in devices
        }
        assert set(server.ask(questions, LONG)) == set(devices), server.reasons()

    def heard(self, **fields: Any) -> list[int]:
        """The devices that answer the edge server."""
        answers = self.site.server.ask({EDGE: Message("round", fields)}, LONG)
        return list(answers[EDGE].message.fields["devices"])

    def close(self) -> None:
        self._open.close()


def send(path: Path, offer: object) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(LONG)
        connection.connect(str(path))
        connection.sendall(json.dumps(offer).encode() + b"\n")
        with connection.makefile("rb") as lines:
            return dict(json.loads(lines.readline()))


@pytest.fixture
def fleet(keys: Path, tmp_path: Path) -> Iterator[Fleet]:
    opened = Fleet(keys, tmp_path)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def trio(fleet: Fleet) -> Fleet:
    """An edge server and two devices in a session."""
    assert fleet.offer(EDGE) == {"taken": True}
    for index in range(2):
        fleet.device_worker(index)
        assert fleet.offer(index) == {"taken": True}
    assert fleet.site.server.wait_until_present([EDGE, 0, 1], LONG) == {EDGE, 0, 1}
    return fleet


def test_a_session_of_all_parties(trio: Fleet) -> None:
    server = trio.site.server
    assert server.greeting(1) == {"party": 1, "flops": 1e9 + 1}
    trio.begin([0, 1])
    assert trio.heard() == [0, 1]
    answers = server.ask({0: Message("question"), 1: Message("question")}, LONG)
    assert [answers[index].message.fields["by"] for index in range(2)] == ["fed", "fed"]
    server.close()  # the session is over
    assert wait_until(lambda: not trio.edge.devices.present()), "devices let the edge server go"


def test_the_same_tokens_keep_the_streams_to_the_edge_server(trio: Fleet) -> None:
    trio.begin([0, 1])
    trio.begin([0, 1])
    assert trio.heard() == [0, 1]
    assert trio.edge.devices.reasons() == {}, "nobody was dropped"


def test_new_tokens_open_new_streams_and_leave_others_outside(trio: Fleet) -> None:
    trio.begin([0, 1])
    assert trio.heard() == [0, 1]
    trio.begin([1], sign="new")
    assert trio.heard() == [1]
    assert trio.edge.devices.reasons() == dict.fromkeys(
        range(2), "its token is no longer the one of this session"
    )
    trio.begin([0, 1], sign="newer")
    assert trio.heard() == [0, 1]


def test_a_device_answers_one_question_at_a_time(trio: Fleet) -> None:
    trio.begin([0])
    asking = threading.Thread(target=lambda: trio.heard(sleep=0.4), daemon=True)
    asking.start()
    trio.site.server.ask({0: Message("question", {"sleep": 0.4})}, LONG)
    asking.join(LONG)
    assert trio.parties[0][-1].most_busy == 1


def test_an_edge_server_that_comes_back(trio: Fleet) -> None:
    """Devices connect anew with their tokens, once the fed server has told them to the edge server."""
    trio.begin([0, 1])
    port = trio.edge.devices.port
    trio.edge.close()
    assert wait_until(lambda: EDGE not in trio.site.server.present())
    trio.edge = trio.edge_worker(port)
    trio.offer(EDGE)
    assert trio.site.server.wait_until_present([EDGE], LONG)
    time.sleep(0.3)  # devices are refused in the meantime, and try again
    trio.begin([0, 1])
    assert trio.edge.devices.wait_until_present([0, 1], LONG) == {0, 1}
    assert trio.heard() == [0, 1]


def test_a_new_offer_ends_the_session_before_it(trio: Fleet, keys: Path) -> None:
    trio.begin([0, 1])
    for other in held(Site(keys)):
        other.server.allow({0: "another token"})
        assert trio.offer(0, fed=other.address, token="another token", run="b") == {"taken": True}
        assert other.server.wait_until_present([0], LONG) == {0}
        (answer,) = other.server.ask({0: Message("question")}, LONG).values()
        assert answer.message.fields["run"] == "b", "each session has a party of its own"
        assert wait_until(lambda: trio.site.server.present() == {EDGE, 1})
        assert wait_until(lambda: trio.edge.devices.present() == {1})


def test_the_same_offer_again_changes_nothing(trio: Fleet) -> None:
    assert trio.offer(0) == {"taken": True}
    assert trio.site.server.present() == {EDGE, 0, 1}
    assert len(trio.parties[0]) == 1
    assert trio.site.server.reasons() == {}


def test_a_session_with_a_token_that_is_refused_can_be_offered_again(fleet: Fleet) -> None:
    fleet.device_worker(0)
    assert fleet.offer(0, token="guessed") == {"taken": True}
    assert wait_until(lambda: fleet.parties.get(0))
    time.sleep(0.2)
    assert fleet.site.server.present() == frozenset()
    fleet.offer(0)
    assert fleet.site.server.wait_until_present([0], LONG) == {0}


BAD_BEGINNINGS: dict[str, tuple[int, dict[str, Any]]] = {
    "tokens that are no object": (EDGE, {"tokens": [1, 2]}),
    "tokens of no device": (EDGE, {"tokens": {"-1": "x"}}),
    "tokens that are no texts": (EDGE, {"tokens": {"0": 5}}),
    "an address that is no text": (0, {"edge": 5, "edge_token": "x"}),
    "no token": (0, {"edge": "127.0.0.1:1"}),
}


@pytest.mark.parametrize("case", BAD_BEGINNINGS)
def test_a_beginning_that_makes_no_sense_is_refused(trio: Fleet, case: str) -> None:
    party, fields = BAD_BEGINNINGS[case]
    assert trio.site.server.ask({party: Message("begin", fields)}, LONG) == {}
    assert "must" in trio.site.server.reasons()[party]


@pytest.mark.parametrize(
    "line",
    [
        *(b"[]", b"{}", b'{"fed": "x", "token": "y"}', b'{"fed": 1, "token": "y", "run": "z"}'),
        *(
            b'{"fed": "a\\nb", "token": "y", "run": "z"}',
            b"",
            b"{",
            b"\xff\xfe",
            b"[" * 60_000,
            b"x" * 70_000,
        ),
    ],
    ids=range(10),
)
def test_an_offer_that_makes_no_sense(tmp_path: Path, line: bytes) -> None:
    with (
        SessionHolder(tmp_path / "state", lambda offer, stop: None) as desk,
        socket.socket(socket.AF_UNIX) as client,
    ):
        client.settimeout(LONG)
        client.connect(str(tmp_path / "state" / "worker.sock"))
        client.sendall(line + b"\n")
        answer = json.loads(client.recv(1000))
        assert answer["taken"] is False
        assert "must be one line of JSON" in answer["reason"]
        assert desk.take(Offer("fed", "token", "run")) == {"taken": True}


def test_the_socket_is_its_owner_s_alone(tmp_path: Path) -> None:
    state = tmp_path / "new" / "state"
    with SessionHolder(state, lambda offer, stop: None):
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
        assert stat.S_IMODE((state / "worker.sock").stat().st_mode) == 0o600
        with pytest.raises(InputError, match="another worker uses"):
            SessionHolder(state, lambda offer, stop: None)
    assert not (state / "worker.sock").exists()
    with socket.socket(socket.AF_UNIX) as left:  # by a worker that was killed
        left.bind(str(state / "worker.sock"))
    SessionHolder(state, lambda offer, stop: None).close()
    state.chmod(0o750)
    with pytest.raises(InputError, match="chmod 700"):
        SessionHolder(state, lambda offer, stop: None)
    with pytest.raises(InputError, match="give a shorter one"):
        SessionHolder(tmp_path / ("x" * 100), lambda offer, stop: None)


def test_a_session_that_still_works_is_not_pushed_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "LAST_ANSWER_SECONDS", 0.2)
    release = threading.Event()
    begun: list[str] = []

    def hold(offer: Offer, stop: Stop) -> None:
        begun.append(offer.run)
        release.wait(LONG)

    with SessionHolder(tmp_path / "state", hold) as desk:
        assert desk.take(Offer("fed", "token", "a"))["taken"]
        answer = desk.take(Offer("fed", "token", "b"))
        assert answer == {"taken": False, "reason": "the session before still answers a question after 0.2 s"}
        release.set()
        assert wait_until(lambda: desk.take(Offer("fed", "token", "b"))["taken"])
        assert wait_until(lambda: begun == ["a", "b"])


@pytest.mark.parametrize("raises", [ValueError("oh"), InputError("no")])
def test_a_session_that_fails_leaves_the_desk_open(tmp_path: Path, raises: Exception) -> None:
    done: list[str] = []

    def hold(offer: Offer, stop: Stop) -> None:
        done.append(offer.run)
        raise raises

    with SessionHolder(tmp_path / "state", hold) as desk:
        for run in ("a", "b"):
            desk.take(Offer("fed", "token", run))
            assert wait_until(lambda run=run: run in done)
