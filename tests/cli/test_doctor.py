"""`hasfl doctor`: what it finds here, and what it says where something is missing."""

import importlib.metadata
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from hasfl.cli import doctor
from hasfl.deployment import addresses
from tests.cli.conftest import Hasfl
from tests.cli.test_manners import without
from tests.runs.scenarios import write

REQUIRES = [
    "numpy>=2.0",
    "pooch>=1.8; extra == 'data'",
    "hasfl[train]; extra == 'deploy'",
    "flwr==0.0.1; extra == 'deploy'",
    "torch>=2.10; extra == 'train'",
    "never-heard-of>=1; extra == 'rare'",
    "pytest>=8.3; extra == 'dev'",
]


def checks(hasfl: Hasfl, code: int = 0) -> dict[str, list[dict[str, Any]]]:
    """What doctor prints, by the name of the check."""
    done = hasfl("doctor", "--json")
    assert (done.code, done.err) == (code, "")
    printed = json.loads(done.out)
    assert printed["ok"] == (code == 0)
    found: dict[str, list[dict[str, Any]]] = {}
    for check in printed["checks"]:
        assert check["word"] in ("ok", "warn", "fail")
        assert (check["advice"] == "") == (check["word"] == "ok")
        found.setdefault(check["name"], []).append(check)
    return found


def test_this_installation(hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = checks(hasfl)
    assert {"Python", "hasfl", "planning", "torch", "pictures", "memory", "disk", "port"} <= set(found)
    assert [found[name][0]["word"] for name in ("Python", "planning", "torch", "pictures")] == ["ok"] * 4
    assert str(tmp_path) in found["working folder"][0]["found"]
    assert list(tmp_path.iterdir()) == []
    shown = hasfl("doctor")
    assert shown.code == 0
    assert "planning works here" in shown.out
    assert all(name in shown.out for name in found)


def test_extras_are_complete_or_say_what_installs_them(hasfl: Hasfl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: REQUIRES)
    found = checks(hasfl)
    assert found["extra train"][0]["word"] == "ok"
    assert found["extra rare"][0] == {
        "name": "extra rare",
        "word": "warn",
        "found": "never-heard-of is missing",
        "advice": "If you need it: pip install 'hasfl[rare]'.",
    }
    assert found["extra deploy"][0]["word"] == "warn"
    assert "instead of ==0.0.1" in found["extra deploy"][0]["found"] or "flwr is missing" in str(found)
    assert "extra dev" not in found


def test_an_extra_includes_those_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: REQUIRES)
    names = [each.name for each in doctor._packages("deploy")]
    assert names == ["torch", "flwr"]


@pytest.mark.parametrize(
    ("installed", "needed", "fault"),
    [
        ("2.0", "torch>=2.0", None),
        ("2.13.0+cpu", "torch>=2.10", None),
        ("3.0rc1", "torch>=2.0", None),
        ("1.41", "flwr==1.41.0", None),
        ("1.41.1", "flwr==1.41.0", "flwr is 1.41.1 instead of ==1.41.0"),
        ("1.26.4", "numpy>=2.0", "numpy is 1.26.4 instead of >=2.0"),
    ],
)
def test_versions(monkeypatch: pytest.MonkeyPatch, installed: str, needed: str, fault: str | None) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: installed)
    assert doctor.fault(Requirement(needed)) == fault


def test_a_missing_core_package_fails(hasfl: Hasfl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["numpy>=99"])
    found = checks(hasfl, code=1)
    assert found["hasfl"][0]["word"] == "fail"
    assert "instead of >=99" in found["hasfl"][0]["found"]
    assert "planning does not work here" in hasfl("doctor").out


def test_planning_that_breaks_fails(hasfl: Hasfl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "TINY", "this is no scenario")
    found = checks(hasfl, code=1)
    assert found["planning"][0]["word"] == "fail"
    assert "the check ended with InputError" in found["planning"][0]["found"]


def test_an_old_python_fails(hasfl: Hasfl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LEAST_PYTHON", (99, 0))
    assert checks(hasfl, code=1)["Python"][0]["advice"] == "Install Python 99.0 or newer."


def test_from_the_source_without_an_installation(hasfl: Hasfl, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", not_there)
    found = checks(hasfl)
    assert (found["hasfl"][0]["word"], found["planning"][0]["word"]) == ("warn", "ok")


def test_a_port_that_is_taken(hasfl: Hasfl, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr(addresses, "DEFAULT_ADDRESSES", {"the edge server": ("--listen", address)})
        (port,) = checks(hasfl)["port"]
    assert port["found"] == f"{address} for the edge server is taken"
    assert "--listen" in port["advice"]


def test_data_folders(hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASFL_DATA", str(tmp_path / "none"))
    (data,) = checks(hasfl)["data sets"]
    assert (data["word"], data["advice"]) == ("warn", "Create this folder, or unset HASFL_DATA.")
    from hasfl.data.sources import PUBLISHED

    monkeypatch.setenv("HASFL_DATA", str(tmp_path))
    for file in PUBLISHED["fashion-mnist"].files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(b"")
    (data,) = checks(hasfl)["data sets"]
    assert f"{tmp_path} (HASFL_DATA) has digits, fashion-mnist" in data["found"]
    assert "cifar10" in data["found"].split("has ")[1].partition(";")[2]


def test_little_room_and_no_permission(hasfl: Hasfl, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**place: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor, "LITTLE", 2**80)
    monkeypatch.setattr("tempfile.TemporaryFile", refused)
    found = checks(hasfl)
    assert [found[name][0]["word"] for name in ("memory", "disk", "working folder")] == ["warn"] * 3
    assert "cannot be written (Permission denied)" in found["working folder"][0]["found"]


def test_planning_works_with_the_core_alone(tmp_path: Path) -> None:
    """Every package that only an extra asks for is away."""
    extras = (
        "torch",
        "safetensors",
        "sklearn",
        "matplotlib",
        "tomli_w",
        "pooch",
        "flwr",
        "grpc",
        "cryptography",
    )
    scenario = write(tmp_path, {})
    done = without(extras, ("doctor",), ("plan", scenario), ("runs", tmp_path), ("train", scenario))
    assert [code for code, _ in done] == [0, 0, 0, 2]
    assert "pip install 'hasfl[train]'" in done[-1][1]
