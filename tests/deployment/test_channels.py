"""Streams over loopback with gRPC: who gets in, and what is refused."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import hasfl.deployment.keys as keys_module
from hasfl.deployment.channels import (
    EDGE,
    FED,
    MOST_FRAME_BYTES,
    client_credentials,
    client_options,
    common_name,
    handlers,
    method,
    open_channel,
    open_port,
    server_credentials,
    server_options,
)
from hasfl.deployment.keys import add_devices, make_keys
from hasfl.errors import InputError


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The keys of two deployments, `keys` and `other`."""
    folder = tmp_path_factory.mktemp("deployments")
    for name in ("keys", "other"):
        make_keys(folder / name, devices=["a", "b"], fed=["127.0.0.1"], edge=["127.0.0.1"])
    return folder


@pytest.fixture(scope="module")
def keys(both: Path) -> Path:
    return both / "keys"


class Echo:
    """Answers each frame with the name of its sender and the frame."""

    def __init__(self) -> None:
        self.callers: list[str] = []

    def __call__(self, frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
        self.callers.append(common_name(context))
        for frame in frames:
            yield common_name(context).encode() + b":" + frame


@contextmanager
def serving(folder: Path, role: str = FED, most_bytes: int = MOST_FRAME_BYTES) -> Iterator[tuple[str, Echo]]:
    echo = Echo()
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool, options=server_options(most_bytes))
        server.add_generic_rpc_handlers(handlers(role, echo))
        port = open_port(server, "127.0.0.1:0", folder)
        server.start()
        try:
            yield f"127.0.0.1:{port}", echo
        finally:
            server.stop(None).wait()


def answers(channel: grpc.Channel, *frames: bytes, role: str = FED) -> list[bytes]:
    with channel:
        return list(channel.stream_stream(method(role))(iter(frames), timeout=20))


def refusal(channel: grpc.Channel, *frames: bytes, role: str = FED) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        answers(channel, *(frames or (b"x",)), role=role)
    return caught.value.code()


def test_methods() -> None:
    assert (method(FED), method(EDGE)) == ("/hasfl.Fed/Session", "/hasfl.Edge/Session")


@pytest.mark.parametrize(
    ("party", "name"), [("devices/a", "device-0"), ("devices/b", "device-1"), ("edge", "edge")]
)
def test_parties_of_the_deployment_are_known_by_name(keys: Path, party: str, name: str) -> None:
    with serving(keys / "fed") as (address, _):
        channel = open_channel(FED, address, keys / party)
        assert answers(channel, b"1", b"", b"\xff" * 5_000_000) == [
            f"{name}:".encode() + frame for frame in (b"1", b"", b"\xff" * 5_000_000)
        ]


def test_the_edge_server_is_reached_in_the_same_way(keys: Path) -> None:
    with serving(keys / "edge", EDGE) as (address, _):
        assert answers(open_channel(EDGE, address, keys / "devices" / "a"), b"x", role=EDGE) == [
            b"device-0:x"
        ]
        assert refusal(open_channel(EDGE, address, keys / "devices" / "a")) == grpc.StatusCode.UNIMPLEMENTED


def mixed(tmp_path: Path, own: Path, authority: Path) -> Path:
    """A folder with the keys of one deployment and the authority of another."""
    folder = shutil.copytree(own, tmp_path / "mixed")
    shutil.copy(authority / "ca.crt", folder / "ca.crt")
    return folder


def test_another_deployment_is_refused_at_both_ends(both: Path, tmp_path: Path) -> None:
    ours, others = both / "keys" / "devices" / "a", both / "other" / "devices" / "a"
    with serving(both / "keys" / "fed") as (address, echo):
        assert refusal(open_channel(FED, address, others)) == grpc.StatusCode.UNAVAILABLE
        stranger = mixed(
            tmp_path, own=others, authority=ours
        )  # it accepts the server; the server must refuse
        assert refusal(open_channel(FED, address, stranger)) == grpc.StatusCode.UNAVAILABLE
        shutil.rmtree(stranger)
        wary = mixed(tmp_path, own=ours, authority=others)  # the server would accept it; the client refuses
        assert refusal(open_channel(FED, address, wary)) == grpc.StatusCode.UNAVAILABLE
        assert echo.callers == []
        assert answers(open_channel(FED, address, ours), b"x") == [b"device-0:x"]


def test_nobody_gets_in_without_a_certificate_or_in_plain_text(keys: Path) -> None:
    with serving(keys / "fed") as (address, echo):
        nameless = grpc.ssl_channel_credentials((keys / "fed" / "ca.crt").read_bytes())
        channel = grpc.secure_channel(address, nameless, client_options(FED))
        assert refusal(channel) == grpc.StatusCode.UNAVAILABLE
        assert refusal(grpc.insecure_channel(address)) == grpc.StatusCode.UNAVAILABLE
        assert echo.callers == []


@pytest.mark.parametrize("impostor", ["edge", "devices/b"])
def test_no_other_party_can_pass_for_the_fed_server(keys: Path, impostor: str) -> None:
    with serving(keys / impostor) as (address, echo):
        assert refusal(open_channel(FED, address, keys / "devices" / "a")) == grpc.StatusCode.UNAVAILABLE
        assert echo.callers == []


def test_an_old_certificate_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Past(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) - timedelta(days=30)

    keys = tmp_path / "keys"
    make_keys(keys, devices=["a"], fed=["127.0.0.1"], edge=["127.0.0.1"])
    monkeypatch.setattr(keys_module, "datetime", Past)
    add_devices(keys, devices=["old"], days=10)
    with serving(keys / "fed") as (address, echo):
        assert refusal(open_channel(FED, address, keys / "devices" / "old")) == grpc.StatusCode.UNAVAILABLE
        assert echo.callers == []
        assert answers(open_channel(FED, address, keys / "devices" / "a"), b"x") == [b"device-0:x"]


def test_a_frame_beyond_the_limit_is_refused_at_both_ends(keys: Path) -> None:
    device = keys / "devices" / "a"
    with serving(keys / "fed", most_bytes=1000) as (address, _):
        assert answers(open_channel(FED, address, device), bytes(900)) == [b"device-0:" + bytes(900)]
        assert refusal(open_channel(FED, address, device), bytes(1001)) == grpc.StatusCode.RESOURCE_EXHAUSTED
    with serving(keys / "fed") as (address, _):
        small = open_channel(FED, address, device, most_bytes=1000)
        assert refusal(small, bytes(999)) == grpc.StatusCode.RESOURCE_EXHAUSTED  # the answer is longer


@pytest.mark.parametrize("limit", [0, -1, 2**31])
def test_wrong_limits(limit: int) -> None:
    with pytest.raises(InputError, match="got a limit of"):
        server_options(limit)
    with pytest.raises(InputError, match="got a limit of"):
        client_options(FED, limit)


def test_a_port_has_one_server(keys: Path) -> None:
    with serving(keys / "fed") as (address, _), ThreadPoolExecutor(1) as pool:
        second = grpc.server(pool, options=server_options())
        with pytest.raises(InputError, match=f"cannot listen at {address}"):
            open_port(second, address, keys / "fed")
        second.stop(None)


def test_certificates_that_are_missing_or_readable_by_others(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="make them with hasfl keys"):
        client_credentials(tmp_path)
    copy = shutil.copytree(keys / "fed", tmp_path / "fed")
    assert server_credentials(copy)
    (copy / "tls.key").chmod(0o640)
    with pytest.raises(InputError, match="chmod 600"):
        server_credentials(copy)


def test_an_asynchronous_server_has_the_same_doors(keys: Path) -> None:
    async def session(frames: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for frame in frames:
            yield common_name(context).encode() + frame

    async def talk() -> list[bytes]:
        server = grpc.aio.server(options=server_options())
        server.add_generic_rpc_handlers(handlers(FED, session))
        port = open_port(server, "127.0.0.1:0", keys / "fed")
        await server.start()
        channel = open_channel(FED, f"127.0.0.1:{port}", keys / "devices" / "b")
        try:
            return await asyncio.to_thread(answers, channel, b"x")
        finally:
            await server.stop(None)

    assert asyncio.run(talk()) == [b"device-1x"]
