"""`hasfl data`: who holds what, as a table, as JSON and as a picture."""

import json
from pathlib import Path

import numpy as np
import pytest

from hasfl.cli.data import show_shares
from hasfl.data.sources import load_dataset
from tests.cli.conftest import Hasfl
from tests.runs.scenarios import PIS, files, write


def test_every_sample_is_held_once(hasfl: Hasfl, tmp_path: Path) -> None:
    done = hasfl("data", write(tmp_path), "--json")
    assert (done.code, done.err, done.out.count("\n")) == (0, "", 1)
    printed = json.loads(done.out)
    held = np.array([printed["samples"][name] for name in ("1", "2", "3", "4")])
    labels = load_dataset("digits").y_train.numpy()
    assert held.sum(axis=0).tolist() == np.bincount(labels).tolist()
    assert printed["classes"] == [str(digit) for digit in range(10)]


def test_the_table_has_a_row_for_every_device(hasfl: Hasfl, tmp_path: Path) -> None:
    shown = hasfl("data", write(tmp_path, {"fleet.devices": ""}, PIS)).out
    assert all(f" pi-{k} " in shown for k in (1, 2, 3))
    printed = json.loads(hasfl("data", tmp_path / "small.toml", "--json").out)["samples"]
    assert all(f" {sum(held)} " in shown for held in printed.values())


def test_shards_leave_classes_out(hasfl: Hasfl, tmp_path: Path) -> None:
    scenario = write(tmp_path, {"data.partition": '"shards"', "fleet.devices": "10"})
    printed = json.loads(hasfl("data", scenario, "--json").out)["samples"]
    assert all(np.count_nonzero(held) <= 4 for held in printed.values())
    assert "·" in hasfl("data", scenario).out


def test_many_devices_and_many_classes_are_summed_up(hasfl: Hasfl, tmp_path: Path) -> None:
    x, y = np.zeros((240, 8, 8), dtype=np.uint8), np.arange(240) % 12
    np.savez(tmp_path / "many.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    changes = {"data.name": '"many.npz"', "data.folder": '"."', "fleet.devices": "50"}
    shown = hasfl("data", write(tmp_path, changes)).out
    assert "the first 40 of 50 devices" in shown
    assert "classes" in shown


@pytest.mark.parametrize("width", ["60", "80", "120"])
def test_the_table_fits_the_terminal(
    hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setattr("tests.cli.conftest.COLUMNS", width)
    assert max(map(len, hasfl("data", write(tmp_path)).out.splitlines())) <= int(width)


LONG_NAMES = [f"a class called {letter}" for letter in "abcdefghij"]


@pytest.mark.parametrize(("width", "shown_as"), [("300", "names"), ("80", "numbers"), ("40", "counts")])
def test_ten_classes_are_readable_on_any_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: str, shown_as: str
) -> None:
    """No cell is cut or wrapped: long names become numbers with a legend, and at last a count."""
    monkeypatch.setenv("COLUMNS", width)
    counts = np.arange(4000, 4030).reshape(3, 10)
    counts[0, 3] = 0
    show_shares("mine", ["pi-1", "laptop-1", "laptop-12"], counts, LONG_NAMES, None)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= int(width)
    assert "…" not in "".join(lines)
    row = next(line.split() for line in lines if "laptop-12" in line)
    header = next(line for line in lines if "device" in line)
    cells = ["10"] if shown_as == "counts" else [str(n) for n in counts[2]]
    assert row == ["laptop-12", f"{counts[2].sum():,}", *cells]
    assert (LONG_NAMES[0] in header) == (shown_as == "names")
    assert ("9 a class called j" in " ".join(lines)) == (shown_as == "numbers")
    assert header.split()[2:] == [str(j) for j in range(10)] or shown_as != "numbers"


def test_the_same_seed_holds_the_same(hasfl: Hasfl, tmp_path: Path) -> None:
    first, again = (hasfl("data", write(tmp_path), "--json").out for _ in range(2))
    other = hasfl("data", write(tmp_path, {"seed": "1"}), "--json").out
    assert first == again != other


@pytest.mark.parametrize("name", ["who.png", "who.svg"])
def test_a_picture(hasfl: Hasfl, tmp_path: Path, name: str) -> None:
    done = hasfl("data", write(tmp_path), "--picture", tmp_path / name, "--json")
    assert done.code == 0
    assert json.loads(done.out)["samples"]
    assert json.loads(done.out)["picture"] == str(tmp_path / name)
    assert (tmp_path / name).read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


@pytest.mark.parametrize(
    ("changes", "picture", "expected", "code"),
    [
        ({}, "who.pdf", "a picture is written as .png or .svg, got who.pdf", 2),
        ({}, "none/who.png", "none/who.png does not exist", 2),
        ({"data.folder": '"none"'}, None, "the data folder", 2),
        ({"data.name": '"digit"'}, None, "there is no data set 'digit'", 2),
        ({"fleet.devices": "0"}, None, "fleet.devices must be a whole number from 1", 2),
        ({"data.partition": '"iiid"'}, None, "data.partition must be", 2),
        ({"data.alpha": "-1.0"}, None, "data.alpha must be greater than 0", 2),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    hasfl: Hasfl, tmp_path: Path, changes: dict[str, str], picture: str | None, expected: str, code: int
) -> None:
    options = () if picture is None else ("--picture", tmp_path / picture)
    done = hasfl("data", write(tmp_path, changes), *options)
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
    assert done.err.startswith("hasfl: ")
    assert expected in done.err
    assert files(tmp_path) == ["small.toml"]
