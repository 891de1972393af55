"""Who may connect: nobody gets a byte without the right certificate and the right token."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from hasfl.deployment import asking
from hasfl.deployment.channels import client_options, open_channel
from hasfl.deployment.fields import Message
from hasfl.deployment.keys import make_keys
from hasfl.deployment.wire import Frame, pack, unpack
from hasfl.record import EDGE
from tests.deployment.loopback import DEVICES, LONG, RawClient, Site, echo, folder_of, token, wait_until


@pytest.fixture(scope="session")
def foreign_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificates of another deployment, with the same names."""
    folder = tmp_path_factory.mktemp("foreign") / "keys"
    devices = [f"box{index}" for index in range(DEVICES)]
    make_keys(folder, devices=devices, fed=["127.0.0.1"], edge=["127.0.0.1"])
    return folder


def refused(site: Site, client: RawClient) -> str:
    """Check that a stream ended without a byte for its client, and nobody is present; give the details."""
    client.read()
    status = client.ended()
    assert client.received.empty()
    assert status is not grpc.StatusCode.OK
    assert site.server.present() == frozenset()
    return f"{status.name}: {client.details}"


GREETINGS: dict[str, tuple[int, dict[str, Any]]] = {
    "a wrong token": (0, {"token": "guessed"}),
    "an empty token": (0, {"token": ""}),
    "no token": (0, {"token": None}),
    "a token that is no text": (0, {"token": 5}),
    "a token outside ASCII": (0, {"token": "tökén"}),
    "another party's token": (0, {"token": token(1)}),
    "another party's index": (0, {"party": 1, "token": token(1)}),
    "another party's index with the own token": (0, {"party": 1}),
    "the edge server's index": (0, {"party": EDGE, "token": token(EDGE)}),
    "an index that is no integer": (0, {"party": 0.0}),
    "a truth value as an index": (0, {"party": False}),
    "no index": (0, {"party": None}),
    "the edge server as a device": (EDGE, {"party": 0, "token": token(0)}),
}


@pytest.mark.parametrize("case", GREETINGS)
def test_a_greeting_that_does_not_fit(site: Site, case: str) -> None:
    party, changed = GREETINGS[case]
    client = site.raw(party)
    client.greet(**changed)
    assert refused(site, client).startswith("UNAUTHENTICATED: the ")


def test_only_hello_is_a_greeting(site: Site) -> None:
    client = site.raw(0)
    client.send(pack(Message("answer", {"token": token(0), "party": 0}), id=0))
    assert refused(site, client).startswith("UNAUTHENTICATED")


@pytest.mark.parametrize("frame", [b"", b"\0" * 8, b"hello" * 100, b"\xff" * 70_000, b" " * (1 << 20)])
def test_a_greeting_that_is_no_frame(site: Site, frame: bytes) -> None:
    client = site.raw(0)
    client.send(frame)
    assert refused(site, client).startswith("INVALID_ARGUMENT")


def test_a_greeting_has_its_own_limit(site: Site) -> None:
    client = site.raw(0)
    client.greet(more="x" * asking.MOST_GREETING_BYTES)
    assert refused(site, client).startswith("INVALID_ARGUMENT: a frame may have 65536 bytes")


def test_somebody_who_is_not_expected(site: Site) -> None:
    site.server.allow_only({1: token(1)})
    client = site.raw(0)
    client.greet()
    assert refused(site, client) == ("UNAUTHENTICATED: this session expects no party with this certificate")


def test_the_fed_server_s_certificate_is_no_party_s(site: Site) -> None:
    client = site.raw(0, site.keys / "fed")
    client.greet()
    assert refused(site, client).startswith("UNAUTHENTICATED")


@pytest.mark.parametrize("case", ["of another authority", "no certificate", "no TLS"])
def test_a_certificate_that_the_server_does_not_trust(site: Site, foreign_keys: Path, case: str) -> None:
    """The client trusts the server, but not the other way round."""
    theirs, authority = folder_of(foreign_keys, 0), (folder_of(site.keys, 0) / "ca.crt").read_bytes()
    own = [(theirs / name).read_bytes() for name in ("tls.key", "tls.crt")] if "authority" in case else []
    channel = grpc.secure_channel(
        site.address, grpc.ssl_channel_credentials(authority, *own), client_options("fed")
    )
    client = RawClient(grpc.insecure_channel(site.address) if case == "no TLS" else channel, "fed", 0)
    client.greet()
    assert refused(site, client).startswith("UNAVAILABLE")
    client.close()


@pytest.mark.parametrize("impostor", ["", "edge", "foreign fed"])
def test_a_party_greets_nobody_but_the_fed_server(
    keys: Path, foreign_keys: Path, impostor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its token does not reach a server with another certificate."""
    site = Site(keys)
    folder = {"": keys / "fed", "edge": keys / "edge", "foreign fed": foreign_keys / "fed"}[impostor]
    greeted: list[bytes] = []

    def noting(data: bytes, **more: Any) -> Frame:
        greeted.append(data)
        return unpack(data, **more)

    monkeypatch.setattr(asking, "unpack", noting)
    monkeypatch.setattr(asking, "common_name", lambda context: "device-0")
    with asking.PartyServer("fed", "127.0.0.1:0", folder) as server:
        server.allow({0: token(0)})
        site.connect(0, address=f"127.0.0.1:{server.port}", present=False)
        server.wait_until_present([0], 0.7)  # some attempts
        assert server.present() == (frozenset() if impostor else {0})
        assert bool(greeted) == (not impostor)
    site.close()


def test_old_tokens_are_worth_nothing_at_once(site: Site) -> None:
    old = site.connect(0)
    other = site.connect(1)
    site.server.allow({0: "new"})
    assert site.server.present() == {1}, "another party keeps its token and its stream"
    assert site.server.reasons() == {0: "its token is no longer the one of this session"}
    old.thread.join(LONG)
    assert "the token is not the one of this session" in old.refused[0], "it gives up"
    site.connect(0, hello={"token": "new"})
    site.server.allow_only({0: "new"})
    assert site.server.present() == {0}
    other.thread.join(LONG)
    assert "expects no party with this certificate" in other.refused[0]


def test_a_token_that_changes_during_the_greeting(site: Site) -> None:
    client = site.raw(0)
    client.read()
    client.greet()
    first = client.received.get(timeout=LONG)  # a ping, so the old token was accepted
    site.server.allow({0: "new"})
    client.received.put(first)
    client.answer_pings()
    assert client.ended() is grpc.StatusCode.ABORTED
    assert site.server.present() == frozenset()


def test_a_second_connection_replaces_the_first_when_it_has_passed_all_checks(site: Site) -> None:
    first = site.raw_present(0, name="first")
    for changed in ({"token": "guessed"}, {"party": 1, "token": token(1)}):
        wrong = site.raw(0)
        wrong.read()
        wrong.greet(**changed)
        assert wrong.ended() is grpc.StatusCode.UNAUTHENTICATED
    unfinished = site.raw(0)
    unfinished.read()
    unfinished.greet(name="unfinished")  # does not answer pings
    unfinished.received.get(timeout=LONG)
    assert site.server.greeting(0)["name"] == "first"

    site.connect(0, echo, hello={"name": "second"}, present=False)
    assert wait_until(lambda: site.server.greeting(0).get("name") == "second")
    assert first.ended() is grpc.StatusCode.ABORTED
    assert site.server.reasons() == {0: "it connected anew"}
    assert set(site.server.ask({0: Message("question")}, LONG)) == {0}


def test_a_stream_without_a_greeting_ends(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "GREETING_SECONDS", 0.3)
    assert refused(site, site.raw(0)) == "DEADLINE_EXCEEDED: no greeting"


def test_few_streams_of_one_party_may_wait_for_their_greeting(site: Site) -> None:
    """Each has a connection of its own, so gRPC's limit on the streams of a connection does not help."""
    waiting = [site.raw(0) for _ in range(asking.MOST_GREETINGS)]
    assert wait_until(lambda: site.server._greetings[0] == asking.MOST_GREETINGS)
    client = site.raw(0)
    client.greet()
    assert refused(site, client).startswith("RESOURCE_EXHAUSTED")
    site.connect(1)  # others are not concerned
    for stream in waiting:
        stream.close()
    assert wait_until(lambda: site.server._greetings[0] == 0)
    site.connect(0)


def good_answer(frame: bytes, **changed: Any) -> bytes:
    question = unpack(frame)
    now = time.monotonic()
    times = changed.get("times", {"arrived": now, "sent": now})
    return pack(changed.get("message", question.message), id=changed.get("id", question.id), times=times)


BAD_ANSWERS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "another id": (
        lambda frame: good_answer(frame, id=2**40),
        "it answered question 1099511627776, but was asked question",
    ),
    "no times": (lambda frame: good_answer(frame, times={}), "an answer must say when it arrived"),
    "truncated": (lambda frame: good_answer(frame)[:-3], "it sent a malformed frame"),
    "random": (lambda frame: b"\x93\x11" * 500, "it sent a malformed frame"),
    "empty": (lambda frame: b"", "it sent a malformed frame"),
    "failed": (lambda frame: good_answer(frame, message=Message("failed", {})), "it failed: None"),
}


@pytest.mark.parametrize("case", BAD_ANSWERS)
def test_a_bad_answer_drops_its_sender_alone(site: Site, case: str) -> None:
    check_bad_answer(site, *BAD_ANSWERS[case])


def check_bad_answer(site: Site, make: Callable[[bytes], bytes], reason: str) -> None:
    """Device 0 answers badly, device 1 well."""
    site.connect(1)
    client = site.raw_present(0)

    def answer() -> None:
        client.send(make(client.next_question()))

    answering = threading.Thread(target=answer, daemon=True)
    answering.start()
    began = time.monotonic()
    assert set(site.server.ask({0: Message("question"), 1: Message("question")}, LONG)) == {1}
    assert time.monotonic() - began < LONG / 2
    assert reason in site.server.reasons()[0]
    assert client.ended() is not grpc.StatusCode.OK
    assert set(site.server.ask({1: Message("question")}, LONG)) == {1}


def test_an_answer_with_too_many_bytes(keys: Path) -> None:
    site = Site(keys, most_bytes=100_000)
    check_bad_answer(site, lambda frame: b"x" * 100_001, "its connection ended")
    site.close()


def test_an_answer_that_nobody_asked_for(site: Site) -> None:
    client = site.raw_present(0)
    client.send(pack(Message("answer"), id=0))
    assert client.ended() is grpc.StatusCode.ABORTED
    assert wait_until(lambda: not site.server.present())
    assert site.server.reasons() == {0: "it sent a frame that nobody waits for"}


def test_a_channel_is_not_enough(site: Site) -> None:
    """Other methods and services do not exist."""
    with open_channel("fed", site.address, folder_of(site.keys, 0)) as channel:
        for path in ("/hasfl.Fed/Model", "/hasfl.Edge/Session"):
            with pytest.raises(grpc.RpcError) as caught:
                next(channel.stream_stream(path)(iter([b""])))
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
