"""The addresses where the programs of a host listen, and the state folder where they write."""

import ipaddress
import socket
from pathlib import Path

from hasfl.errors import InputError, StorageError

STATE_VARIABLE = "HASFL_STATE"  # environment variable with the state folder, for Flower's apps
SOCKET_FILE = "worker.sock"  # unix socket where the worker takes offers of sessions
LOGS_FOLDER = "logs"

# Default addresses.
SUPERLINK_ADDRESS, FED_ADDRESS, EDGE_ADDRESS = "127.0.0.1:8000", "127.0.0.1:9201", "127.0.0.1:9200"
# Which program listens at each default address, and the option of `hasfl serve` that changes the address.
DEFAULT_ADDRESSES = {
    "Flower's SuperLink": ("--superlink", SUPERLINK_ADDRESS),
    "the fed server": ("--listen", FED_ADDRESS),
    "the edge server": ("--listen", EDGE_ADDRESS),
}


def split_address(address: str) -> tuple[str, int]:
    """Split host:port into the host and the port; an IPv6 address must be in brackets."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(f"an address must be host:port, like 127.0.0.1:8000, got {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def require_private(address: str) -> str:
    """Return the address if it is a loopback or private one; refuse any other.

    Flower's control API asks for no password, so whoever reaches it can start runs on all nodes.
    """
    host, _ = split_address(address)
    try:
        number = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        number = None
    if number is None or number.is_unspecified or not (number.is_loopback or number.is_private):
        raise InputError(
            "Flower's control API must listen at a loopback or private address, since whoever reaches it can "
            f"start runs, got {address}: use 127.0.0.1 or an address such as 10.0.0.5, and a proxy for others"
        )
    return address


def free_port() -> int:
    """A free port of the loopback address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listened_at(address: str) -> bool:
    """Whether a program accepts connections at an address."""
    try:
        socket.create_connection(split_address(address), timeout=1.0).close()
    except OSError:
        return False
    return True


def require_free(address: str, what: str) -> None:
    """Refuse an address at which no program can listen now, before programs fail there again and again."""
    host, port = split_address(address)
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            pass
    except OSError as error:
        reason, _, _ = str(error.strerror or error).partition(" (while attempting")  # repeats the address
        raise InputError(
            f"{what} cannot listen at {address} ({reason}): give an address of this machine "
            "and a port that is free"
        ) from None


def make_state_folder(state: Path) -> None:
    """Make the state folder, with access for its owner only."""
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the folder {state}: {error.strerror}") from None


def log_file(state: Path, name: str) -> Path:
    """The log file of a program, in a state folder."""
    return state.resolve() / LOGS_FOLDER / f"{name}.log"
