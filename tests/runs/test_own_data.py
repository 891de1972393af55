"""Data, losses and metrics of a user's own in scenarios, and the examples of them."""

import json
import re
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hasfl import InputError
from hasfl.runs.build import Simulation
from hasfl.runs.files import read_toml
from hasfl.runs.scenario import Scenario
from hasfl.runs.task import load_data, settings_of, shared_data, task_of
from tests.cli.conftest import Hasfl
from tests.runs.scenarios import files, rounds, sentence, write

EXAMPLES = Path(__file__).parents[2] / "examples"
MINE = """
import numpy as np, torch
from torch.utils.data import TensorDataset
from hasfl import Dataset, Plan

X, Y = torch.randn(40, 1, 4, 4), torch.arange(40) % 3
pair = lambda: (TensorDataset(X, Y), TensorDataset(X[:9], Y[:9]))
drawn = lambda: Dataset.of_arrays("drawn", torch.randn(40, 3), Y, X[:9, 0, 0, :3], Y[:9])
finished = lambda: Dataset.of_arrays("finished", X, Y, X[:9], Y[:9])
tokens = lambda: Dataset.of_arrays("tokens", X, Y[:, None].repeat(1, 2), X[:9], Y[:9, None].repeat(1, 2))
numbers = lambda: Dataset.of_arrays("numbers", X, Y / 2, X[:9], Y[:9] / 2)
huge = lambda: Dataset.of_arrays("huge", X, Y + 2000000000 - 2, X, Y)
huge_pair = lambda: (TensorDataset(X, Y + 2000000000 - 2), TensorDataset(X, Y))
nobody = lambda situation: Plan.uniform(len(situation.devices), batch_size=0, cut=1)
nothing = lambda: None
three = lambda: (1, 2, 3)
not_torch = lambda: (X, Y)
value = 3

def broken():
    raise OSError("the disk is gone")

def loss(outputs, labels):
    return torch.nn.functional.cross_entropy(outputs, labels, reduction="none")

def near(outputs, labels):
    return torch.exp(-(outputs[:, 0] - labels).abs())

def scalar(outputs, labels):
    return loss(outputs, labels).mean()
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder with a module of data and losses."""
    (tmp_path / "mine.py").write_text(MINE)
    x, y = np.zeros((4, 1, 4, 4), np.float32), np.arange(4)
    np.savez(tmp_path / "huge.npz", x_train=x, y_train=y + 2_000_000_000 - 3, x_test=x, y_test=y)
    return tmp_path


def scenario(folder: Path, **changes: str) -> Scenario:
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return read_toml(str(write(folder, dotted)), Scenario)


def device_files(folder: Path, **sizes: int) -> Path:
    folder.mkdir()
    for name, size in sizes.items():
        np.savez(folder / f"{name}.npz", x=np.zeros((size, 1, 4, 4), np.float32), y=np.arange(size) % 3)
    np.savez(folder / "test.npz", x=np.zeros((5, 1, 4, 4), np.float32), y=np.arange(5) % 3)
    return folder


@pytest.mark.parametrize("name", ["pair", "finished"])
def test_a_callable_returns_data(mine: Path, name: str) -> None:
    data = load_data(scenario(mine, data__name=f'"mine:{name}"'), folder=mine)
    assert (len(data.x_train), len(data.x_test), data.classes) == (40, 9, 3)


def test_random_data_are_the_same_in_every_run(mine: Path) -> None:
    first, second = (
        load_data(scenario(mine, data__name='"mine:drawn"', seed=seed), folder=mine) for seed in "01"
    )
    assert first.x_train.tolist() == second.x_train.tolist()


def test_files_lie_beside_the_scenario_or_in_the_data_folder(tmp_path: Path, monkeypatch: Any) -> None:
    home, cache = tmp_path / "home", tmp_path / "cache"
    home.mkdir()
    cache.mkdir()
    monkeypatch.setenv("HASFL_DATA", str(cache))
    monkeypatch.chdir(tmp_path)  # which is not searched
    device_files(cache / "far", a=3, b=4)
    device_files(home / "near", a=5, b=6)
    device_files(tmp_path / "here", a=7, b=8)
    for name, size in (("far", 7), ("near", 11)):
        assert len(load_data(scenario(home, data__name=f'"{name}"'), folder=home).x_train) == size
    with pytest.raises(InputError, match=r"home/here and .*cache/here do not exist"):
        load_data(scenario(home, data__name='"here"'), folder=home)
    other = scenario(home, data__name='"far"', data__folder='"../cache"')
    assert len(load_data(other, folder=home).x_train) == 7


def test_files_of_devices_are_not_dealt_out(tmp_path: Path) -> None:
    device_files(tmp_path / "own", **{"1": 3, "2": 4, "3": 5, "4": 6})
    asked = scenario(tmp_path, data__name='"own"')
    assert [len(share) for share in shared_data(asked, ("4", "3", "2", "1"), folder=tmp_path)[1]] == [
        6,
        5,
        4,
        3,
    ]
    made = Simulation.of(task_of(asked, folder=tmp_path))
    assert made.training.samples.tolist() == [3, 4, 5, 6]
    keys = {"partition": '"iid"', "samples": "2"}
    for key, value in keys.items():
        with pytest.raises(
            InputError, match=f"data.{key} has no effect on own, whose samples belong to devices"
        ):
            shared_data(
                scenario(tmp_path, data__name='"own"', **{f"data__{key}": value}), "1234", folder=tmp_path
            )
    with pytest.raises(InputError, match="samples of 4 devices but the fleet has 3"):
        Simulation.of(task_of(scenario(tmp_path, data__name='"own"', fleet__devices="3"), folder=tmp_path))


def test_own_loss_and_metric_replace_their_names(mine: Path) -> None:
    settings = settings_of(
        scenario(mine, training__loss='"mine:loss"', training__metric='"mine:near"'), folder=mine
    )
    assert (settings.loss.__name__, settings.metric.__name__) == ("loss", "near")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"data.name": '"mine:nothing"'}, "mine:nothing must return a hasfl.Dataset, or a pair"),
        ({"data.name": '"mine:three"'}, "must return a hasfl.Dataset"),
        ({"data.name": '"mine:not_torch"'}, "sample 0 of train must be a pair"),
        ({"data.name": '"mine:broken"'}, "calling data 'mine:broken' failed: OSError: the disk is gone"),
        ({"data.name": '"mine:absent"'}, "cannot find data 'mine:absent'"),
        ({"data.name": '"absent:data"'}, "cannot find data 'absent:data'"),
        ({"data.name": '"mine:value"'}, "data 'mine:value' must be a function or a class, got int"),
        ({"data.name": '"mine:pair"', "data.columns": '["x", "y"]'}, "data.columns has no effect on mine"),
        ({"data.columns": '["x", "y"]'}, "columns belong to a folder"),
        ({"data.name": '"absent.npz"'}, "absent.npz do not exist"),
        ({"data.name": '"~nobody-here/a.npz"'}, "the home folder of a user"),
        ({"data.name": '"mine:tokens"', "data.partition": '"shards"'}, "needs one class a sample"),
        ({"data.name": '"mine:numbers"'}, "labels of numbers are numbers, .* give a metric"),
        ({"training.loss": '"focal"'}, "training.loss: .* its name as package.module:callable, got 'focal'"),
        ({"training.loss": '"mine:value"'}, "training.loss: .* got 'mine:value' of type int"),
        ({"training.loss": '"./mine.py:loss"'}, "training.loss: cannot find loss .*: write mine:loss$"),
        ({"training.optimizer": '"mine:absent"'}, "training.optimizer: cannot find optimizer 'mine:absent'"),
        ({"data.name": '"mine:huge"'}, "data 'mine:huge': y_train must number .* too large, 2000000000"),
        ({"data.name": '"mine:huge_pair"'}, "data 'mine:huge_pair': y_train must .* too large, 2000000000"),
        ({"data.name": '"huge.npz"'}, r"/huge\.npz: y_train must number .* too large, 2000000000"),
        ({"data.samples": "2000"}, r"\[data\] of digits: samples must be at most 1438"),
        ({"model.classes": "9"}, "model.classes must be at least 10, .* digits needs, got 9: leave"),
        ({"data.name": '"mine:numbers"', "model.classes": "3", "training.metric": '"mine:near"'},
         "model.classes must be 1, .* got 3: leave it out"),
        ({"training.strategy": '"mine:nobody"'}, "strategy 'mine:nobody': batch_sizes.0. must be at least 1"),
        ({"training.loss": '"mine:scalar"'}, "the loss must return a tensor with one number for each sample"),
        ({"training.metric": '"mine:loss"'}, "the metric must give each sample a score from 0 to 1"),
        ({"training.metric": '"mine:absent"'}, "cannot find metric 'mine:absent'"),
        ({"training.keep": '"worst"'}, "training.keep must be 'final' or 'best'"),
        ({"training.keep": '"best"', "data.held_out": "0"}, "held_out must be above 0 where the best model"),
    ],
)  # fmt: skip
def test_wrong_names_end_in_a_sentence(hasfl: Hasfl, mine: Path, changes: dict[str, str], fault: str) -> None:
    path = write(mine, changes)
    before = [name for name in files(mine) if "__pycache__" not in name]
    done = hasfl("train", path, "--out", mine / "runs")

    assert re.search(fault, sentence(done))
    assert [name for name in files(mine) if "__pycache__" not in name] == before


def test_counts_of_labels_that_are_no_classes(hasfl: Hasfl, mine: Path) -> None:
    for name in ("tokens", "numbers"):
        path = write(mine, {"data.name": f'"mine:{name}"'})
        told = json.loads(hasfl("data", path, "--json").out)
        assert told == {"classes": [], "samples": {str(i): [10] for i in range(1, 5)}}
        assert "samples" in hasfl("data", path).out
        assert "have one class each" in sentence(hasfl("data", path, "--picture", mine / "a.png"))


@pytest.mark.parametrize("name", ["own_data", "own_loss_and_metric"])
def test_the_examples_of_scenarios(hasfl: Hasfl, tmp_path: Path, name: str) -> None:
    """In a copy, trained for two rounds; another folder is the working folder."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    path = tmp_path / "examples" / f"{name}.toml"
    text = path.read_text()
    path.write_text(text[: text.index("rounds = ")] + "rounds = 2\n")
    done = hasfl("train", path, "--out", tmp_path / "runs", "--run", "one")
    assert done.code == 0, done.err
    (row,) = [row for row in rounds(tmp_path / "runs" / "one") if row["accuracy"] is not None]
    assert 0 <= row["worst_device_accuracy"] <= row["mean_device_accuracy"] <= 1


def test_the_example_of_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["own_data.py", str(tmp_path / "files")])
    runpy.run_path(str(EXAMPLES / "own_data.py"), run_name="__main__")
    assert capsys.readouterr().out.count("on the worst device") == 4
    assert files(tmp_path / "files") == ["1.npz", "2.npz", "3.npz", "4.npz", "test.npz"]


def test_a_label_that_is_a_number_is_trained_from_a_scenario(hasfl: Hasfl, mine: Path) -> None:
    """With a network of hasfl's own, which gets one output."""
    path = write(
        mine, {"data.name": '"mine:numbers"', "training.metric": '"mine:near"', "data.held_out": "0.1"}
    )
    done = hasfl("train", path, "--out", mine / "runs", "--run", "one", "--json")
    assert done.code == 0, done.err
    assert 0 < json.loads(done.out)["accuracy"] < 1
