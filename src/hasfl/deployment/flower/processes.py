"""Flower's programs as they run on each host: SuperLink and SuperExec, or SuperNode and SuperExec.

A SuperLink knows the nodes and hands out messages. A SuperNode fetches those of its node. A SuperExec beside
either one starts the app that a message is for. All are offline and keep their files in a state folder.
"""

import os
import secrets
import shutil
import sys
import sysconfig
from pathlib import Path

from hasfl.deployment.channels import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE
from hasfl.deployment.hosting.places import STATE_VARIABLE, Place, require_private, split_address
from hasfl.deployment.hosting.supervision import Program
from hasfl.deployment.keys import NODE_KEY_FILE
from hasfl.errors import InputError, MissingExtra, StorageError

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # hasfl is installed on every host
    "RAY_USAGE_STATS_ENABLED": "0",
}
SUPEREXEC = "hasfl.deployment.flower.superexec"
CLIENT_APP = "flwr-clientapp"  # the apps that a SuperExec starts, by Flower's names
SERVER_APP = "flwr-serverapp"
ENTRIES = {  # what Flower's programs call
    "flower-superlink": "flwr.superlink.cli:flower_superlink",
    "flower-supernode": "flwr.supernode.cli:flower_supernode",
}
MODULES = ("flwr.superlink.cli", "flwr.supernode.cli", SUPEREXEC)  # that these programs import
POLL_SECONDS = "0.2"  # between two questions of a SuperExec for work
SECRET_FILE = "superexec.secret"


def fed_programs(place: Place, address: str) -> list[Program]:
    """The SuperLink at host:port, and the SuperExec that starts the fed server's app."""
    host, port = split_address(require_private(address))
    place.make()
    secret = _secret(place.state)
    keys = [
        *("--ssl-ca-certfile", str(_key_file(place, AUTHORITY_FILE))),
        *("--ssl-certfile", str(_key_file(place, CERTIFICATE_FILE))),
        *("--ssl-keyfile", str(_key_file(place, KEY_FILE))),
    ]
    link = [
        *("--host", host, "--port", str(port), "--isolation", "process"),
        *("--database", str(place.state / "superlink.db"), *keys, "--enable-supernode-auth"),
        *("--superexec-auth-secret-file", str(secret), "--disable-runtime-dependency-installation"),
    ]
    trusted = ["--root-certificates", str(_key_file(place, AUTHORITY_FILE))]
    return [
        _flower(place, "superlink", link),
        _superexec(place, SERVER_APP, [*trusted, *_work_from(address, secret)]),
    ]


def node_programs(place: Place, superlink: str, runtime_port: int) -> list[Program]:
    """The SuperNode of a device or of the edge server, and the SuperExec that starts its app.

    Sessions are handed to the worker with the same state folder. The two programs meet at `runtime_port` of
    the loopback address.
    """
    split_address(superlink)
    place.make()
    secret = _secret(place.state)
    node = [
        *("--superlink", superlink, "--root-certificates", str(_key_file(place, AUTHORITY_FILE))),
        *("--auth-supernode-private-key", str(_key_file(place, NODE_KEY_FILE))),
        *("--host", "127.0.0.1", "--port", str(runtime_port), "--isolation", "process"),
        *("--superexec-auth-secret-file", str(secret)),
    ]
    work = ["--insecure", *_work_from(f"127.0.0.1:{runtime_port}", secret)]  # on this machine only
    return [
        _flower(place, "supernode", node),
        _superexec(place, CLIENT_APP, work),
    ]


def _work_from(address: str, secret: Path) -> list[str]:
    return ["--runtime-api-address", address, "--superexec-auth-secret-file", str(secret)]


def _flower(place: Place, name: str, arguments: list[str]) -> Program:
    """A program of Flower's."""
    command = f"flower-{name}"
    found = shutil.which(
        command, path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    )
    if found is None:
        raise MissingExtra(f"a deployment needs Flower's program {command}: pip install 'hasfl[deploy]'")
    return _program(place, name, (found, *arguments), ENTRIES[command])


def _superexec(place: Place, app: str, arguments: list[str]) -> Program:
    """A SuperExec that starts one kind of app."""
    command = (sys.executable, "-m", SUPEREXEC, app, *arguments)
    return _program(place, "superexec", command, f"{SUPEREXEC}:main")


def _program(place: Place, name: str, command: tuple[str, ...], entry: str) -> Program:
    environment = {
        **os.environ,
        **OFFLINE,
        "FLWR_HOME": str(place.state.resolve() / "flwr"),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": POLL_SECONDS,
        STATE_VARIABLE: str(place.state.resolve()),
        "PYTHONUNBUFFERED": "1",
    }
    return Program(name=name, command=command, log=place.log(name), entry=entry, environment=environment)


def _key_file(place: Place, name: str) -> Path:
    path = (place.keys / name).resolve()
    if not path.is_file():
        raise InputError(f"{place.keys} must hold {name}, which is not there: make it with hasfl keys")
    return path


def _secret(state: Path) -> Path:
    """A secret that a SuperExec shares with the program it works for, so that no other may ask for work."""
    path = state.resolve() / SECRET_FILE
    try:
        if not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32))
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from None
    return path
