"""Files of a run that are lost, damaged or changed: nothing is mixed up, and every advice can be followed."""

import importlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hasfl.runs.build import Simulation, simulate
from tests.cli.conftest import Hasfl, Outcome
from tests.learning.simulations import images, unequal_fleet
from tests.runs.scenarios import files, kept, sentence, write

OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))
"""
Train = Callable[..., Outcome]


def write_data(path: Path, shift: float = 0.0) -> None:
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(80, 6)).astype(np.float32) + shift, draws.integers(3, size=80)
    np.savez(path, x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:])


@pytest.fixture
def train(hasfl: Hasfl, tmp_path: Path) -> Train:
    """Train a model of the user's own on a file of the user's own, in the run `run`."""
    module = f"own_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{module}.py").write_text(OWN)
    write_data(tmp_path / "mine.npz")
    own = {"model.name": f'"{module}:Net"', "data.name": '"mine.npz"', "training.strategy": '"b=4+cut=1"'}

    def run(rounds: int = 4, *options: object) -> Outcome:
        scenario = write(tmp_path, own | {"stop.rounds": str(rounds)})
        return hasfl("train", scenario, "--out", tmp_path, "--run", "run", *options)

    assert run().code == 0
    return run


def contents(folder: Path) -> dict[str, bytes]:
    return {file: (folder / file).read_bytes() for file in files(folder)}


@pytest.mark.usefixtures("train")
@pytest.mark.parametrize("file", ["model.safetensors", "rounds.jsonl", "lock"])
def test_an_export_replaces_no_file_of_a_run(hasfl: Hasfl, tmp_path: Path, file: str) -> None:
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    (tmp_path / "link").symlink_to(tmp_path / "other", target_is_directory=True)
    before = contents(tmp_path / "run")
    for target in (tmp_path / "run" / file, tmp_path / "link" / file):
        said = sentence(hasfl("export", tmp_path / "run", "--to", "state-dict", "--out", target))
        assert f"is the {file} of the run" in said
    assert contents(tmp_path / "run") == contents(tmp_path / "other") == before
    assert hasfl("export", tmp_path / "run", "--to", "state-dict", "--out", tmp_path / file).code == 0


def test_a_lost_model_is_trained_again(hasfl: Hasfl, train: Train, tmp_path: Path) -> None:
    before = kept(tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    assert json.loads(hasfl("runs", tmp_path / "run", "--json").out)["runs"][0]["state"] == "stopped"
    export = ("export", tmp_path / "run", "--to", "state-dict")
    assert "has no model.safetensors: continue it with --resume" in sentence(hasfl(*export))
    done = train(4, "--resume")
    assert done.code == 0
    assert "has no model.safetensors any more, so the last rounds are trained again" in done.err
    assert "4 recorded rounds are trained again, because the last checkpoint is of round 0" in done.err
    assert kept(tmp_path / "run") == before
    assert hasfl(*export).code == 0


def test_changed_data_are_another_training(train: Train, tmp_path: Path) -> None:
    before = contents(tmp_path / "run")
    write_data(tmp_path / "mine.npz", shift=1.0)
    said = sentence(train(6, "--resume"))
    assert f"the data are not those that {tmp_path / 'run'} began with: restore the data" in said
    assert contents(tmp_path / "run") == before
    write_data(tmp_path / "mine.npz")
    assert train(6, "--resume").code == 0


def test_a_changed_model_is_another_training(train: Train, tmp_path: Path) -> None:
    """The other model has weights with the same names and shapes, so loading alone would not notice."""
    before = contents(tmp_path / "run")
    (module,) = tmp_path.glob("own_*.py")
    module.write_text(OWN.replace("torch.relu", "torch.tanh"))
    forget(module.stem)
    said = sentence(train(6, "--resume"))
    assert f"the model is not the one that {tmp_path / 'run'} began with: restore the model" in said
    assert contents(tmp_path / "run") == before
    module.write_text(OWN.replace("class Net", "# a remark\nclass Net"))
    forget(module.stem)
    assert train(6, "--resume").code == 0


def forget(module: str) -> None:
    """As if another process imported it."""
    del sys.modules[module]
    importlib.invalidate_caches()


class Doubling(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class Tripling(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 3 * x


def test_marks_are_those_of_data_and_model_alone() -> None:
    def marks(shares: int = 4, activation: torch.nn.Module | None = None, **settings: int) -> dict[str, str]:
        made = simulation(shares, activation, **settings)
        return dict(made.marks)

    def simulation(shares: int, activation: torch.nn.Module | None, **settings: int) -> Simulation:
        data = images()
        width = data.x_train[0].numel()
        layers = (torch.nn.Flatten(), torch.nn.Linear(width, 8), activation or torch.nn.ReLU())
        model = torch.nn.Sequential(*layers, torch.nn.Linear(8, data.classes))
        every = np.arange(len(data.y_train))
        dealt = [every[i::shares] for i in range(4)]
        return simulate(model, data, unequal_fleet(), shares=dealt, strategy="sfl", rounds=1, **settings)

    first = marks()
    assert marks(max_batch=4) == first  # and other weights, which were drawn anew
    assert marks(5)["data"] != first["data"]
    assert marks(5)["model"] == first["model"]
    others = [torch.nn.Tanh(), torch.nn.LeakyReLU(0.1), torch.nn.LeakyReLU(0.2), Doubling(), Tripling()]
    found = {marks(activation=each)["model"] for each in others}
    assert len(found | {first["model"]}) == len(others) + 1


def test_an_export_needs_no_data(hasfl: Hasfl, train: Train, tmp_path: Path) -> None:
    (tmp_path / "mine.npz").unlink()
    done = hasfl("export", tmp_path / "run", "--to", "torch-export")
    assert (done.code, done.out) == (0, f"wrote {tmp_path / 'run' / 'model.pt2'}\n")
    program = torch.export.load(tmp_path / "run" / "model.pt2").module()
    assert program(torch.zeros(5, 6)).shape == (5, 3)
    result = tmp_path / "run" / "result.json"
    assert json.loads(result.read_text())["model_input"] == {"shape": [6], "type": "float32", "outputs": 3}
    result.write_text(json.dumps(json.loads(result.read_text()) | {"model_input": {"shape": "?"}}))
    said = sentence(hasfl("export", tmp_path / "run", "--to", "torch-export"))
    assert "must say in model_input which samples the model takes" in said


def test_only_commands_that_can_succeed_are_offered(hasfl: Hasfl, train: Train, tmp_path: Path) -> None:
    def offered() -> list[str]:
        return list(json.loads(hasfl("show", tmp_path / "run", "--json").out)["commands"])

    assert offered() == ["export", "train longer, after raising [stop]"]
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    checkpoint.write_bytes(b"nothing")
    said = sentence(train(6, "--resume"))
    assert said.endswith("restore it from a copy, or remove the run's folder and begin it anew")
    checkpoint.unlink()
    assert offered() == ["export"]
    (tmp_path / "run" / "result.json").unlink()
    assert offered() == []
    shutil.rmtree(tmp_path / "run")  # as the message says
    assert train(6).code == 0


def test_a_result_with_fewer_records_is_broken(hasfl: Hasfl, train: Train, tmp_path: Path) -> None:
    records = tmp_path / "run" / "rounds.jsonl"
    records.write_bytes(b"".join(records.read_bytes().splitlines(keepends=True)[:2]))
    (found,) = json.loads(hasfl("runs", tmp_path / "run", "--json").out)["runs"]
    expected = "must hold the 4 rounds that result.json counts, but its last round is 2"
    assert found["state"] == "broken"
    assert expected in found["fault"]
    assert expected in sentence(train(4, "--resume"))
    assert expected in sentence(hasfl("show", tmp_path / "run"))
