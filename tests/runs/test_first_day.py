"""A new user's first day: models and data of their own, from a file to predictions of the plain module.

Each case does what a person would type, in a folder of its own: profile, plan, train for a few rounds, raise
the budget and resume, plan with the rounds of the run, load the weights into the plain module, predict. The
plain module must have the accuracy that the run reports.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.cli.conftest import Hasfl

OWN_CODE = '''
import torch
from torch import nn
from torch.utils.data import Dataset

class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))

class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.r1, self.r2 = Residual(8), Residual(8)
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(self.r2(self.r1(torch.relu(self.stem(x)))).mean(dim=(2, 3)))

class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Embedding(6, 16), nn.Parameter(0.1 * torch.randn(5, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.unused = nn.Linear(3, 3)  # belongs to the file too
        self.head = nn.Linear(16, 6, bias=False)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(5).to(x.device)
        return self.head(self.blocks(self.token(x) + self.position, mask=mask, is_causal=True))

class Rows(Dataset):
    """Rows of tokens; every token's label is the token before it, and the first one's is left out."""

    def __init__(self, count, seed):
        self.x = torch.randint(6, (count, 5), generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        return x, torch.cat([torch.tensor([-100]), x[:-1]])

def rows():
    return Rows(240, 0), Rows(60, 1)
'''
SCENARIO = """
seed = 3
[model]
name = "{module}:{model}"
[data]
name = "{data}"
[fleet]
devices = 4
flops = ["1 GFLOPS", "9 GFLOPS"]
[training]
learning_rate = 0.02
optimizer = "{optimizer}"
interval = 3
max_batch = 8
[stop]
rounds = {rounds}
"""


@dataclass(frozen=True)
class Case:
    """A model, its data, and how right answers of the plain module are counted."""

    model: str
    data: str
    optimizer: str
    shape: tuple[str, ...]  # of a sample, for `hasfl profile`
    right: Callable[[Tensor, Tensor], Tensor]


def right_classes(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) == labels).double()


def right_tokens(outputs: Tensor, labels: Tensor) -> Tensor:
    counted = labels != -100
    right = (outputs.argmax(dim=2) == labels) & counted
    return right.sum(dim=1).double() / counted.sum(dim=1)


CASES = {
    "residual CNN on an .npz file": Case("Cnn", "blobs.npz", "momentum", ("--input", "1x6x6"), right_classes),
    "GPT on a torch Dataset": Case(
        "Gpt", "{module}:rows", "adam", ("--input", "5", "--tokens"), right_tokens
    ),
}


def write_blobs(path: Path) -> None:
    """Grey images with a bright spot; the spot's row is the class."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, 300)
    x = draw.normal(0, 0.3, (300, 1, 6, 6)).astype(np.float32)
    x[np.arange(300), 0, 2 * y, draw.integers(0, 6, 300)] += 3.0
    np.savez(path, x_train=x[:240], y_train=y[:240], x_test=x[240:], y_test=y[240:])


def test_data(module: Any, folder: Path, case: Case) -> tuple[Tensor, Tensor]:
    """The test set, read without hasfl."""
    if case.model == "Gpt":
        _, test = module.rows()
        pairs = [test[i] for i in range(len(test))]
        return torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])
    arrays = np.load(folder / "blobs.npz")
    return torch.from_numpy(arrays["x_test"]), torch.from_numpy(arrays["y_test"])


test_data.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", CASES)
def test_from_a_file_to_predictions(
    name: str, hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, module_name = CASES[name], f"first_day_{list(CASES).index(name)}"
    elsewhere, project = tmp_path / "elsewhere", tmp_path / "project"
    elsewhere.mkdir()
    project.mkdir()
    (project / f"{module_name}.py").write_text(OWN_CODE)
    write_blobs(project / "blobs.npz")

    def scenario(rounds: int) -> Path:
        path, data = project / "own.toml", case.data.format(module=module_name)
        text = SCENARIO.format(
            module=module_name, model=case.model, data=data, optimizer=case.optimizer, rounds=rounds
        )
        path.write_text(text)
        return path

    def ok(*arguments: object) -> str:
        done = hasfl(*arguments)
        assert (done.code, "Traceback" in done.err) == (0, False), done
        return done.out

    monkeypatch.chdir(project)  # without a scenario, the model is found from the working folder
    layers = json.loads(ok("profile", f"{module_name}:{case.model}", *case.shape, "--json"))["layers"]
    monkeypatch.chdir(elsewhere)  # with one, model and data are found from the scenario's folder
    guessed = json.loads(ok("plan", scenario(6), "--json"))
    assert guessed["constants"] == "guessed"
    assert len(guessed["cuts"]) == 4
    assert max(guessed["cuts"]) <= len(layers)
    ok("train", scenario(6), "--out", "runs", "--run", "mine")
    ok("train", scenario(15), "--out", "runs", "--run", "mine", "--resume")
    result = json.loads((elsewhere / "runs/mine/result.json").read_text())
    assert result["rounds"] == 15
    measured = json.loads(ok("plan", scenario(15), "--from", "runs/mine", "--json"))
    assert measured["constants"] == "measured"
    assert "mine" in ok("runs", "runs")
    assert "15 rounds" in ok("show", "runs/mine")

    module = sys.modules[module_name]  # hasfl has imported it
    plain: nn.Module = getattr(module, case.model)()
    plain.load_state_dict(load_file(elsewhere / "runs/mine/model.safetensors"))
    x, y = test_data(module, project, case)
    with torch.no_grad():
        accuracy = float(case.right(plain.eval()(x), y).mean())
    assert accuracy == pytest.approx(result["accuracy"], abs=1e-9)

    ok("export", "runs/mine", "--to", "torch-export", "--out", "mine.pt2")
    exported = torch.export.load(elsewhere / "mine.pt2").module()
    torch.testing.assert_close(exported(x), plain(x))
