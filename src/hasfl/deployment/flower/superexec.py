"""Flower's SuperExec, which forks itself for each app instead of starting Python anew.

    python -m hasfl.deployment.flower.superexec APP ARGUMENT …

APP is flwr-clientapp or flwr-serverapp; the arguments are those of flower-superexec. Importing Flower takes
seconds on a small device, and every session message starts an app. So this process imports once what the app
needs. Nothing else of Flower's is changed.
"""

import importlib
import signal
import sys
from types import SimpleNamespace
from typing import Any

from flwr.supercore.cli import flower_superexec
from flwr.supercore.exit.exit_handler import registered_exit_handlers
from flwr.supercore.superexec.executor import subprocess_executor

from hasfl.deployment.flower.processes import CLIENT_APP, SERVER_APP
from hasfl.deployment.hosting.nursery import fork

ENTRIES = {  # what the programs with these names call
    CLIENT_APP: "flwr.supernode.cli:flwr_clientapp",
    SERVER_APP: "flwr.superlink.cli:flwr_serverapp",
}
MODULES = {  # what their apps import
    CLIENT_APP: "hasfl.deployment.flower.client_app",
    SERVER_APP: "hasfl.deployment.flower.server_app",
}


def main() -> None:
    """Be a SuperExec for one kind of app."""
    app = next(word for word in sys.argv if word in ENTRIES)
    importlib.import_module(ENTRIES[app].partition(":")[0])
    importlib.import_module(MODULES[app])
    sys.argv = ["flower-superexec", *sys.argv[sys.argv.index(app) + 1 :]]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how apps ended
    forking = SimpleNamespace(Popen=_fork, DEVNULL=None)
    subprocess_executor.subprocess = forking  # type: ignore[assignment,attr-defined]
    flower_superexec()


def _fork(command: list[str], **_: Any) -> int:
    """Start the app that a command of Flower's SuperExec names; what it prints goes to the log."""
    if command[0] not in ENTRIES:
        raise ValueError(f"hasfl has apps for {', '.join(ENTRIES)}, got {command[0]!r}")
    return fork(ENTRIES[command[0]], command, registered_exit_handlers.clear)


if __name__ == "__main__":
    main()
