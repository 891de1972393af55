"""Certificates for all tests, and servers with parties on loopback."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hasfl.deployment.keys import make_keys
from tests.deployment.loopback import DEVICES, Site, held


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of a fed server, an edge server and some devices, all of one authority."""
    folder = tmp_path_factory.mktemp("deployment") / "keys"
    devices = [f"box{index}" for index in range(DEVICES)]
    make_keys(folder, devices=devices, fed=["127.0.0.1"], edge=["127.0.0.1"])
    return folder


@pytest.fixture
def site(keys: Path) -> Iterator[Site]:
    """A fed server that allows all parties, of which none is connected yet."""
    yield from held(Site(keys))
