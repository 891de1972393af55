"""A run's model, handed out: loaded by plain torch, and exported in three formats."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from hasfl import Dataset, load_dataset
from hasfl.models.networks import small_cnn
from hasfl.runs.exports.saved_model import saved_weights, trained_module
from hasfl.runs.store import RunFolder
from tests.cli.conftest import Hasfl
from tests.extras import extra
from tests.runs.scenarios import files, rounds, sentence, write

OWN = """
import torch
from torch import nn
from hasfl import Dataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.inner = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4 * 64, 10)
        self.spare = nn.Linear(2, 2)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        return self.head(torch.relu(x + self.inner(x)).flatten(1))

class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.memory = nn.Embedding(5, 6), nn.LSTM(6, 6, batch_first=True)
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        outputs, _ = self.memory(self.token(x))
        return self.head(outputs[:, -1])

def stubborn():
    class Stubborn(nn.Sequential):
        def forward(self, x):
            return super().forward(x) if torch.compiler.is_compiling() is False else x.tolist()
    return Stubborn(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 10))

def rows():
    x = torch.randint(5, (90, 4), generator=torch.Generator().manual_seed(0))
    return Dataset.of_arrays("rows", x[:60], x[:60, -1], x[60:], x[60:, -1])
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A module of the user's, beside the scenario and nowhere else."""
    name = f"own_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(OWN)
    return name


def train(hasfl: Hasfl, folder: Path, **changes: str) -> Path:
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    path = write(folder, {"training.strategy": '"b=8+cut=1"'} | dotted)
    assert hasfl("train", path, "--out", folder / "runs", "--run", "run").code == 0
    return folder / "runs" / "run"


def fresh(own: str, name: str) -> nn.Module:
    module: nn.Module = getattr(sys.modules[own], name)()
    return module


def samples(own: str, name: str) -> tuple[Tensor, Tensor]:
    data: Dataset = load_dataset("digits") if name == "Net" else sys.modules[own].rows()
    return data.x_test, data.y_test


@pytest.mark.parametrize(("name", "data"), [("Net", "digits"), ("Rows", "{}:rows")])
def test_a_run_hands_out_the_users_module(
    hasfl: Hasfl, tmp_path: Path, own: str, name: str, data: str
) -> None:
    run = train(hasfl, tmp_path, model__name=f'"{own}:{name}"', data__name=f'"{data.format(own)}"')
    module, (x, y) = fresh(own, name), samples(own, name)
    module.load_state_dict(load_file(run / "model.safetensors"))
    expected = module.eval()(x)
    accuracy = float((expected.argmax(dim=1) == y).float().mean())
    assert accuracy == pytest.approx(rounds(run)[-1]["accuracy"])

    outcome = hasfl("export", run, "--to", "state-dict")
    assert (outcome.code, outcome.out) == (0, f"wrote {run / 'model.pt'}\n")
    again = fresh(own, name)
    again.load_state_dict(torch.load(run / "model.pt"))
    assert torch.equal(again.eval()(x), expected)

    file = tmp_path / "other.pt2"
    outcome = hasfl("export", run, "--to", "torch-export", "--out", file)
    assert (outcome.code, outcome.out) == (0, f"wrote {file}\n")
    program = torch.export.load(file).module()
    for batch in (1, 3, len(x)):
        torch.testing.assert_close(program(x[:batch]), expected[:batch])
    assert set(program.state_dict()) <= set(module.state_dict())


@pytest.mark.extras
@pytest.mark.parametrize(("name", "data"), [("Net", "digits"), ("Rows", "{}:rows")])
def test_onnx_computes_the_same(hasfl: Hasfl, tmp_path: Path, own: str, name: str, data: str) -> None:
    runtime, _ = extra("onnxruntime"), extra("onnxscript")  # torch writes ONNX with onnxscript
    run = train(hasfl, tmp_path, model__name=f'"{own}:{name}"', data__name=f'"{data.format(own)}"')
    outcome = hasfl("export", run, "--to", "onnx")
    assert (outcome.code, outcome.out, outcome.err) == (0, f"wrote {run / 'model.onnx'}\n", "")
    module, (x, _) = fresh(own, name), samples(own, name)
    module.load_state_dict(load_file(run / "model.safetensors"))
    session = runtime.InferenceSession(run / "model.onnx")
    for batch in (1, 3, len(x)):
        (found,) = session.run(None, {"samples": x[:batch].numpy()})
        torch.testing.assert_close(torch.from_numpy(found), module.eval()(x[:batch]), rtol=1e-3, atol=1e-4)


def test_a_model_of_hasfl_is_handed_out_too(hasfl: Hasfl, tmp_path: Path) -> None:
    run = train(hasfl, tmp_path)
    model = small_cnn()
    model.load_state_dict(load_file(run / "model.safetensors"))
    folder = RunFolder.open(run)
    rebuilt, batch = trained_module(folder, saved_weights(folder))
    assert torch.equal(rebuilt(batch), model.eval()(batch))


def test_what_cannot_be_exported_says_why(
    hasfl: Hasfl, tmp_path: Path, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(hasfl, tmp_path, model__name=f'"{own}:stubborn"')
    before = files(tmp_path)
    state = "state-dict"
    known = "state-dict, onnx, torch-export, tensorboard, mlflow, trace"
    assert f"--to must be one of {known}, got 'gif'" in sentence(hasfl("export", run, "--to", "gif"))
    nowhere = sentence(hasfl("export", tmp_path / "runs" / "typo", "--to", state))
    assert "must be the folder of a run, but is not there" in nowhere
    assert "torch cannot export Stubborn for all batch sizes" in sentence(
        hasfl("export", run, "--to", "torch-export")
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    needs = sentence(hasfl("export", run, "--to", "onnx"))
    assert "writing ONNX needs onnx and onnxscript: pip install 'hasfl[export]'" in needs
    monkeypatch.undo()
    assert files(tmp_path) == before
    model = run / "model.safetensors"
    model.write_bytes(b"nothing")
    assert "must hold the weights of a model, but cannot be read" in sentence(
        hasfl("export", run, "--to", state)
    )
    model.unlink()
    assert "must be a finished run, but has no model.safetensors" in sentence(
        hasfl("export", run, "--to", state)
    )


def test_a_model_that_was_changed_since_is_refused(
    hasfl: Hasfl, tmp_path: Path, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(hasfl, tmp_path, model__name=f'"{own}:Net"')
    monkeypatch.setattr(sys.modules[own], "Net", sys.modules[own].stubborn)  # as if its file was edited
    refused = sentence(hasfl("export", run, "--to", "torch-export"))
    assert f"must fit model '{own}:Net', but do not (" in refused
    assert not (run / "model.pt2").exists()
