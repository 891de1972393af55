"""gRPC streams between parties: always mutual TLS, a size limit for every message, raw frames as messages.

Both ends of a connection are authenticated. The server accepts only certificates of the deployment's own
authority. The client accepts only the certificate of the role that it wants to reach, at any address: an edge
server cannot pass for the fed server, and a device cannot pass for either. There is no option to connect
without TLS.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from hasfl.errors import InputError

# The roles of servers, which are also the common names of their certificates.
FED_NAME = "fed"
EDGE_NAME = "edge"
SERVICES = {FED_NAME: "hasfl.Fed", EDGE_NAME: "hasfl.Edge"}
SESSION = "Session"  # the only method of each service: a stream of frames in both directions

# Files of a party's folder that this module reads.
AUTHORITY_FILE = "ca.crt"
CERTIFICATE_FILE = "tls.crt"
KEY_FILE = "tls.key"

MOST_FRAME_BYTES = 256 << 20  # default size limit of a frame; chosen by hand
MOST_MESSAGE_BYTES = 2**31 - 1  # largest message of gRPC, which counts bytes in 32 bits
# The numbers below were chosen by hand.
MOST_STREAMS = 8  # streams of one connection; a worker needs one, and a second while it connects anew
KEEPALIVE_SECONDS = 10  # gRPC sends a ping on a silent connection this often
KEEPALIVE_ANSWER_SECONDS = 5  # gRPC closes a connection whose ping is not answered for so long
# Time limit for gRPC's own pings, which measure links; gRPC sends no other ping before they are answered. Its
# default is a minute, too long for a machine that hangs. On a slow link, an answer waits behind other bytes.
PING_ANSWER_SECONDS = 20
CONNECT_SECONDS = 5  # time limit for one attempt to connect, with the handshake
FIRST_RETRY_SECONDS = 0.2  # first pause between two attempts to connect; pauses grow
LAST_RETRY_SECONDS = 2.0  # longest pause between two attempts to connect

Options = list[tuple[str, int | str]]


def method(role: str) -> str:
    """The path of a server's method, as gRPC writes it: /hasfl.Fed/Session."""
    return f"/{SERVICES[role]}/{SESSION}"


def device_name(index: int) -> str:
    """The common name of the certificate of a device, by its index in the fleet."""
    return f"device-{index}"


def host_name(role: str) -> str:
    """The host name that stands for a role in a server's certificate, at any address."""
    return f"{role}.hasfl.internal"


def server_options(most_bytes: int = MOST_FRAME_BYTES) -> Options:
    """The gRPC options of a server."""
    return [
        *_common_options(most_bytes),
        ("grpc.max_concurrent_streams", MOST_STREAMS),
        # Allow keepalive pings of clients this often; by default gRPC would close such a connection.
        ("grpc.http2.min_ping_interval_without_data_ms", 1000 * KEEPALIVE_ANSWER_SECONDS),
        ("grpc.so_reuseport", 0),  # a second server at the same port is an error
    ]


def client_options(role: str, most_bytes: int = MOST_FRAME_BYTES) -> Options:
    """The gRPC options of a client of the server with this role."""
    return [
        *_common_options(most_bytes),
        ("grpc.ssl_target_name_override", host_name(role)),
        ("grpc.initial_reconnect_backoff_ms", int(1000 * FIRST_RETRY_SECONDS)),
        ("grpc.min_reconnect_backoff_ms", 1000 * CONNECT_SECONDS),
        ("grpc.max_reconnect_backoff_ms", int(1000 * LAST_RETRY_SECONDS)),
        ("grpc.use_local_subchannel_pool", 1),  # a new channel does not wait for the pauses of an old one
        ("grpc.enable_http_proxy", 0),
    ]


def _common_options(most_bytes: int) -> Options:
    if not 0 < most_bytes <= MOST_MESSAGE_BYTES:
        raise InputError(f"a frame may have 1 to {MOST_MESSAGE_BYTES} bytes, got a limit of {most_bytes}")
    return [
        ("grpc.max_receive_message_length", most_bytes),  # gRPC's default limit is 4 MiB
        ("grpc.max_send_message_length", most_bytes),
        ("grpc.keepalive_time_ms", 1000 * KEEPALIVE_SECONDS),
        ("grpc.keepalive_timeout_ms", 1000 * KEEPALIVE_ANSWER_SECONDS),
        ("grpc.http2.ping_timeout_ms", 1000 * PING_ANSWER_SECONDS),
        ("grpc.http2.max_pings_without_data", 0),  # no limit
    ]


def server_credentials(folder: Path) -> grpc.ServerCredentials:
    """The credentials of a server, from the certificates in a folder; clients must have certificates too."""
    authority, certificate, key = _certificates(folder)
    return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)


def client_credentials(folder: Path) -> grpc.ChannelCredentials:
    """The credentials of a client, from the certificates in a folder."""
    authority, certificate, key = _certificates(folder)
    return grpc.ssl_channel_credentials(authority, key, certificate)


def _certificates(folder: Path) -> tuple[bytes, bytes, bytes]:
    """The authority's certificate, a party's own certificate, and its private key."""
    try:
        if os.name == "posix" and (folder / KEY_FILE).stat().st_mode & 0o077:
            raise InputError(
                f"{folder / KEY_FILE} must be readable by its owner alone: chmod 600 {folder / KEY_FILE}"
            )
        authority, certificate, key = (
            (folder / file).read_bytes() for file in (AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE)
        )
    except OSError as error:
        raise InputError(
            f"{folder} must hold the certificates {AUTHORITY_FILE}, {CERTIFICATE_FILE} and {KEY_FILE} "
            f"({error.strerror or error}): make them with hasfl keys"
        ) from None
    return authority, certificate, key


def open_channel(
    role: str, address: str, folder: Path, *, most_bytes: int = MOST_FRAME_BYTES
) -> grpc.Channel:
    """A channel to the server with this role at host:port, with the certificates in a folder.

    The channel connects when it is used: `channel.stream_stream(method(role))(frames)` gives the answers.
    """
    return grpc.secure_channel(address, client_credentials(folder), client_options(role, most_bytes))


def open_port(server: Any, address: str, folder: Path) -> int:
    """Make a server (of grpc or grpc.aio) listen at host:port, and return the port; port 0 means any port."""
    try:
        port = server.add_secure_port(address, server_credentials(folder))
    except (RuntimeError, ValueError):
        port = 0
    if port == 0:
        raise InputError(f"cannot listen at {address}: give an address of this machine and a free port")
    return int(port)


def handlers(role: str, session: Callable[..., Any]) -> tuple[grpc.GenericRpcHandler]:
    """The gRPC handlers of a server: its one method, on raw frames.

    `session(frames, context)` takes an iterator of frames and returns one; in grpc.aio both are asynchronous.
    """
    stream = grpc.stream_stream_rpc_method_handler(session)  # no serialisers: bytes in, bytes out
    return (grpc.method_handlers_generic_handler(SERVICES[role], {SESSION: stream}),)


def common_name(context: Any) -> str:
    """The common name in the peer's certificate, verified by TLS; "" if there is not exactly one name."""
    names = context.auth_context().get("x509_common_name", [])
    return names[0].decode("utf-8", "replace") if len(names) == 1 else ""
