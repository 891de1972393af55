"""The bundle that Flower sends to every node at the start of a run: two modules that import hasfl's apps.

hasfl itself is installed on every host, so the bundle holds no other code.
"""

import warnings
from pathlib import Path

from hasfl import __version__
from hasfl.errors import StorageError

PACKAGE = "hasfl_run"
ORDER_KEY = "order"  # key of the order's name in the run's configuration, which every node can see
PROJECT = f"""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "hasfl-run"
version = "{__version__}"
description = "A run of hasfl"
license = {{ file = "LICENSE" }}
dependencies = ["flwr>=1.41.0"]

[tool.hatch.build.targets.wheel]
packages = ["{PACKAGE}"]

[tool.flwr.app]
publisher = "hasfl"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "{PACKAGE}.server_app:app"
clientapp = "{PACKAGE}.client_app:app"

[tool.flwr.app.config]
{ORDER_KEY} = ""
"""
FILES = {
    "pyproject.toml": PROJECT,
    "LICENSE": "Apache-2.0\n",
    f"{PACKAGE}/__init__.py": '"""A run of hasfl."""\n',
    f"{PACKAGE}/server_app.py": "from hasfl.deployment.flower.server_app import app as app\n",
    f"{PACKAGE}/client_app.py": "from hasfl.deployment.flower.client_app import app as app\n",
}


def build_bundle(state: Path) -> bytes:
    """Build the bundle as Flower sends it; its files are written into the state folder."""
    from flwr.cli.build import build_fab_from_disk  # late, because the apps import this module for ORDER_KEY

    folder = state / "bundle"
    try:
        for name, text in FILES.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    except OSError as error:
        raise StorageError(f"cannot write {folder}: {error.strerror}") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # warnings of Flower's own code
        return build_fab_from_disk(folder)
