"""The commands serve fed, serve edge and serve device: what they refuse, and that they serve and end."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hasfl.cli.serve import device, edge, fed
from hasfl.deployment.addresses import free_port
from hasfl.deployment.flower.control import Control
from hasfl.errors import InputError
from tests.deployment.test_programs import descendants, lives, until


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    path = tmp_path / "samples.npz"
    np.savez(path, x=np.zeros((6, 1, 8, 8), np.float32), y=np.arange(6))
    return path


def test_a_party_needs_its_keys_and_a_device_its_samples(keys: Path, samples: Path) -> None:
    for command in (fed, edge):
        with pytest.raises(InputError, match="needs --keys DIR"):
            command()
    with pytest.raises(InputError, match="needs --keys DIR"):
        device(data=samples)
    with pytest.raises(InputError, match="needs --data FILE"):
        device(keys=keys / "devices" / "box0")
    with pytest.raises(InputError, match="--data must be a file"):
        device(keys=keys / "devices" / "box0", data=Path("nowhere.npz"))


def test_what_a_worker_could_only_fail_with_is_refused_before_anything_starts(
    keys: Path, samples: Path, tmp_path: Path
) -> None:
    own, state = keys / "devices" / "box0", tmp_path / "state"
    with pytest.raises(InputError, match="keys of a device, but its certificate is that of edge"):
        device(keys=keys / "edge", data=samples, state=state)
    with pytest.raises(InputError, match="keys of a device, but its certificate is that of fed"):
        device(keys=keys / "fed", data=samples, state=state)
    with pytest.raises(InputError, match="keys of the edge server, but its certificate is that of device-0"):
        edge(keys=own, state=state)
    with pytest.raises(InputError, match="must be host:port"):
        edge(keys=keys / "edge", state=state, listen="nowhere")
    with pytest.raises(InputError, match=r"cannot listen at 192\.0\.2\.1:9200 \([^()]+\): give"):
        edge(keys=keys / "edge", state=state, listen="192.0.2.1:9200")
    text = tmp_path / "text.npz"
    text.write_text("no samples")
    with pytest.raises(InputError, match="another kind of file"):
        device(keys=own, data=text, state=state)
    with pytest.raises(InputError, match="another kind of file"):
        edge(keys=keys / "edge", test=text, state=state, listen=f"127.0.0.1:{free_port()}")
    assert not state.exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [("memory", "2 apples"), ("slow_to", "50 Mbps"), ("link", "fast"), ("link", "-1 Mbps")],
)
def test_quantities_are_read_before_anything_starts(
    keys: Path, samples: Path, option: str, value: str
) -> None:
    given: dict[str, Any] = {option: value}
    with pytest.raises(InputError, match=f"^--{option.replace('_', '-')}: "):
        device(keys=keys / "devices" / "box0", data=samples, state=samples.parent / "state", **given)
    assert not (samples.parent / "state").exists()


def test_a_public_superlink_is_refused(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="loopback or private"):
        fed(keys=keys / "fed", state=tmp_path / "state", superlink="0.0.0.0:8000")


def test_an_address_without_a_host_is_refused(keys: Path, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(InputError, match="must be host:port"):
        fed(keys=keys / "fed", state=tmp_path / "state", superlink=address, listen="9201")


def test_options_come_from_a_file_and_the_command_line_wins(keys: Path, tmp_path: Path) -> None:
    config = tmp_path / "fed.toml"
    config.write_text(f'keys = "{keys}/fed"\nsuperlink = "0.0.0.0:1"\nstate = "state"\n')
    with pytest.raises(InputError, match=r"got 0\.0\.0\.0:1"):
        fed(config=config)
    with pytest.raises(InputError, match=r"got 8\.8\.8\.8:1"):
        fed(config=config, superlink="8.8.8.8:1")


@pytest.mark.parametrize("written", ['colour = "red"', "keys = 3", "keys =", "[keys]\na = 1"])
def test_a_wrong_file_is_named(tmp_path: Path, written: str) -> None:
    config = tmp_path / "fed.toml"
    config.write_text(written)
    with pytest.raises(InputError, match=r"fed\.toml"):
        fed(config=config)


@pytest.mark.fleet
def test_three_hosts_serve_and_end_in_order(
    keys: Path, samples: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = Path(os.path.realpath(tmp_path_factory.mktemp("s")))
    superlink = f"127.0.0.1:{free_port()}"
    commands = {
        "fed": [*("--keys", keys / "fed"), *("--listen", f"127.0.0.1:{free_port()}")],
        "edge": [*("--keys", keys / "edge"), *("--listen", f"127.0.0.1:{free_port()}")],
        "device": [*("--keys", keys / "devices" / "box0"), *("--data", samples)],
    }
    with ExitStack() as open_files:
        hosts = {}
        for name, options in commands.items():
            common = [*("--superlink", superlink), *("--state", folder / name)]
            words = [sys.executable, "-m", "hasfl", "serve", name, *common, *options]
            log = open_files.enter_context((folder / f"{name}.txt").open("w"))
            hosts[name] = subprocess.Popen([str(word) for word in words], stdout=log, stderr=log)
        try:
            with Control(superlink, keys / "fed") as control:
                until(control.ready, 120)
                until(lambda: {"edge", "device-0"} <= online(control), 120)
            started = set().union(*(descendants(host.pid) for host in hosts.values()))
            assert len(started) >= 2 + 3 + 3
            hosts["device"].send_signal(signal.SIGINT)
            hosts["edge"].send_signal(signal.SIGTERM)
            assert hosts["device"].wait(60) == 130
            assert hosts["edge"].wait(60) == 143
            hosts["fed"].send_signal(signal.SIGTERM)
            assert hosts["fed"].wait(60) == 143
        finally:
            for host in hosts.values():
                host.kill()
                host.wait()
    time.sleep(0.5)
    assert not any(lives(process) for process in started)
    assert "the fed server admits" in (folder / "fed.txt").read_text()
    assert (folder / "device.txt").read_text().endswith("hasfl: ended\n")


def online(control: Control) -> set[str]:
    return {node.name for node in control.nodes() if node.status == "online"}
