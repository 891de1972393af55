"""Flower's programs on each host: SuperLink and SuperExec, or SuperNode and SuperExec.

A SuperLink knows the nodes and distributes messages. A SuperNode fetches the messages of its node. A
SuperExec beside either one starts the app that handles a message. All programs keep their files in the state
folder, and Flower's telemetry and update checks are off.
"""

import os
import secrets
import shutil
import sysconfig
from pathlib import Path

from hasfl.deployment.addresses import (
    STATE_VARIABLE,
    log_file,
    make_state_folder,
    require_private,
    split_address,
)
from hasfl.deployment.channels import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE
from hasfl.deployment.keys import NODE_KEY_FILE
from hasfl.deployment.programs import Program
from hasfl.errors import InputError, MissingExtra, StorageError

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # hasfl is installed on every host
    "RAY_USAGE_STATS_ENABLED": "0",
}
POLL_SECONDS = "0.2"  # pause between two questions of a SuperExec for work; chosen by hand
SECRET_FILE = "superexec.secret"  # file with the secret of `_secret`


def fed_programs(keys: Path, state: Path, address: str) -> list[Program]:
    """The programs of the fed server's host: SuperLink at `address`, and SuperExec for its app."""
    host, port = split_address(require_private(address))
    make_state_folder(state)
    secret = _secret(state)
    authority = _key_file(keys, AUTHORITY_FILE)
    link = [
        *("--host", host, "--port", str(port), "--isolation", "process"),
        *("--database", str(state / "superlink.db"), "--ssl-ca-certfile", authority),
        *("--ssl-certfile", _key_file(keys, CERTIFICATE_FILE), "--ssl-keyfile", _key_file(keys, KEY_FILE)),
        *("--enable-supernode-auth", "--superexec-auth-secret-file", secret),
        "--disable-runtime-dependency-installation",
    ]
    work = ["--root-certificates", authority, "--runtime-api-address", address]
    return [
        _program("superlink", state, link),
        _program("superexec", state, [*work, "--superexec-auth-secret-file", secret], after=address),
    ]


def node_programs(keys: Path, state: Path, superlink: str, runtime_port: int) -> list[Program]:
    """The programs of a device's or the edge server's host: SuperNode, and SuperExec for the client app.

    The app hands sessions to the worker with the same state folder. SuperNode and SuperExec communicate at
    `runtime_port` of the loopback address.
    """
    split_address(superlink)
    make_state_folder(state)
    secret = _secret(state)
    meeting = f"127.0.0.1:{runtime_port}"
    node = [
        *("--superlink", superlink, "--root-certificates", _key_file(keys, AUTHORITY_FILE)),
        *("--auth-supernode-private-key", _key_file(keys, NODE_KEY_FILE)),
        *("--host", "127.0.0.1", "--port", str(runtime_port), "--isolation", "process"),
        *("--superexec-auth-secret-file", secret),
    ]
    work = ["--insecure", "--runtime-api-address", meeting]  # no TLS, because it stays on this machine
    return [
        _program("supernode", state, node),
        _program("superexec", state, [*work, "--superexec-auth-secret-file", secret], after=meeting),
    ]


def _program(name: str, state: Path, arguments: list[str], after: str = "") -> Program:
    """A program of Flower, for a supervisor; PATH is set so that it finds Flower's other programs.

    The program starts only when another one listens at the address `after`. An earlier start would cost time,
    because Flower's pauses between attempts to connect grow to a minute.
    """
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    found = shutil.which(f"flower-{name}", path=path)
    if found is None:
        raise MissingExtra(f"a deployment needs Flower's program flower-{name}: pip install 'hasfl[deploy]'")
    environment = {
        **os.environ,
        **OFFLINE,
        "PATH": path,
        "FLWR_HOME": str(state.resolve() / "flwr"),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": POLL_SECONDS,
        STATE_VARIABLE: str(state.resolve()),
        "PYTHONUNBUFFERED": "1",
    }
    command, log = (found, *arguments), log_file(state, name)
    return Program(name=name, command=command, log=log, environment=environment, after=after)


def _key_file(keys: Path, name: str) -> str:
    path = (keys / name).resolve()
    if not path.is_file():
        raise InputError(f"{keys} must hold {name}, which is not there: make it with hasfl keys")
    return str(path)


def _secret(state: Path) -> str:
    """The file of a secret that SuperExec shares with SuperLink or SuperNode, so that no other gets work."""
    path = state.resolve() / SECRET_FILE
    try:
        if not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32))
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from None
    return str(path)
