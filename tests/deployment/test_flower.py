"""What Flower's programs are given on each host: commands, keys, the bundle, orders and offers."""

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from hasfl.deployment.addresses import SOCKET_FILE, free_port
from hasfl.deployment.answering import Offer, SessionHolder
from hasfl.deployment.flower.bundle import FILES, build_bundle
from hasfl.deployment.flower.client_app import hand_over
from hasfl.deployment.flower.control import Control, SuperLinkAway
from hasfl.deployment.flower.processes import OFFLINE, fed_programs, node_programs
from hasfl.deployment.orders import ORDER_FILE, FedHost, OrderFolder
from hasfl.errors import InputError, MissingExtra
from tests.deployment.fleets import ordered

OFFER = {"fed": "10.0.0.1:9201", "token": "secret", "run": "7"}


def test_the_bundle_builds_and_holds_no_more_than_it_must(tmp_path: Path) -> None:
    with zipfile.ZipFile(BytesIO(build_bundle(tmp_path))) as bundle:
        names = set(bundle.namelist())
        assert {name for name in names if not name.startswith(".info")} == set(FILES)
        assert "hasfl.deployment.flower.client_app" in bundle.read("hasfl_run/client_app.py").decode()


def test_the_app_of_a_node_needs_no_torch() -> None:
    code = "import hasfl.deployment.flower.client_app, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, **OFFLINE}).returncode == 0


def test_an_offer_goes_to_the_worker_and_its_answer_comes_back(tmp_path: Path) -> None:
    state, taken = tmp_path / "state", list[Offer]()
    with SessionHolder(state, lambda offer, stop: taken.append(offer)):
        assert hand_over(state / SOCKET_FILE, OFFER) == {"taken": True}
        answer = hand_over(state / SOCKET_FILE, {"fed": 1})
    assert taken == [Offer("10.0.0.1:9201", "secret", "7")]
    assert answer["taken"] is False
    with pytest.raises(OSError, match="No such file"):
        hand_over(state / SOCKET_FILE, OFFER)


def test_orders_come_back_as_they_were_written(tmp_path: Path) -> None:
    order = ordered((tmp_path / "runs/a").resolve(), strategy="b=16+hams", seed=3, resume=True, devices=4)
    order = replace(order, request=replace(order.request, scenario_file=Path("a.toml").resolve()))
    written = OrderFolder.write(tmp_path, order)
    assert OrderFolder.named(tmp_path, written.name) == written
    assert written.order() == order
    host = FedHost(keys=(tmp_path / "keys/fed").resolve(), listen="0.0.0.0:9201", announce="fed.lan:9201")
    host.write(tmp_path)
    assert FedHost.read(tmp_path) == host
    assert (written.path / ORDER_FILE).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["", "../fed", "0123456789abcdeg", "0123456789abcdef/", "0123456789ABCDEF"])
def test_an_order_is_not_looked_for_elsewhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="16 hexadecimal digits"):
        OrderFolder.named(tmp_path, name)


@pytest.mark.parametrize("other", [{"pickle": "no"}, {"request": {}}, {"request": 3}])
def test_an_order_of_another_version_is_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    written = OrderFolder.write(tmp_path, ordered(tmp_path / "run"))
    path = written.path / ORDER_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **other}))
    with pytest.raises(InputError, match="another version"):
        written.order()


def test_programs_are_offline_and_keep_to_the_state_folder(keys: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    programs = [
        *fed_programs(keys / "fed", state, "127.0.0.1:8000"),
        *node_programs(keys / "edge", state, "10.0.0.1:8000", 9095),
    ]
    for program in programs:
        environment = program.environment or {}
        assert set(OFFLINE.items()) <= set(environment.items())
        assert Path(environment["FLWR_HOME"]).is_relative_to(state.resolve())
        assert program.log.is_relative_to(state.resolve())
    link, _, node, _ = [" ".join(program.command) for program in programs]
    assert "--isolation process" in link
    assert "--enable-supernode-auth" in link
    assert "--insecure" not in link + node
    assert "--auth-supernode-private-key" in node
    assert state.stat().st_mode & 0o077 == 0
    assert (state / "superexec.secret").stat().st_mode & 0o077 == 0


def test_a_public_control_api_is_refused_before_anything_starts(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="loopback or private"):
        fed_programs(keys / "fed", tmp_path / "state", "0.0.0.0:8000")
    assert not (tmp_path / "state").exists()


def test_missing_keys_and_programs_are_named(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"must hold ca\.crt"):
        fed_programs(tmp_path, tmp_path / "state", "127.0.0.1:8000")
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(MissingExtra, match=r"hasfl\[deploy\]"):
        fed_programs(keys / "fed", tmp_path / "state", "127.0.0.1:8000")


def test_a_superlink_that_is_not_there_is_named(keys: Path) -> None:
    with Control(f"127.0.0.1:{free_port()}", keys / "fed") as control:
        assert not control.ready()
        with pytest.raises(SuperLinkAway, match="does not answer"):
            control.nodes()
