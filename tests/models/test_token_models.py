"""A GPT, torch's transformer encoder and an LSTM over tokens, trained from Python and from a scenario."""

import json
import runpy
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from hasfl import Dataset, Machine, layered, simulate
from hasfl.callables import find
from tests.cli.conftest import Hasfl
from tests.cli.conftest import hasfl as hasfl
from tests.lanes import quick_then_slow
from tests.learning.simulations import unequal_fleet
from tests.runs.scenarios import rounds

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = {
    "GPT": ("token", "position", "blocks_0", "blocks_1", "norm", "head", "getitem"),
    "Encoder": ("token", "add", "encoder_layers_0", "encoder_layers_1", "mean", "head"),
    "LSTM": ("token", "memory", "getitem_2", "head"),
}


@pytest.fixture
def example() -> ModuleType:
    assert find("token_models:data", "data", EXAMPLES)
    return sys.modules["token_models"]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_cut_and_trained_alike_by_both_engines(example: ModuleType, name: str) -> None:
    data, losses = example.data(60, 20), []
    module: nn.Module = getattr(example, name)()
    chain = layered(module, data.x_train[:2])
    assert chain.names == NAMES[name]
    torch.testing.assert_close(chain.eval()(data.x_test), module.eval()(data.x_test))
    for engine in ("simulated", "reference"):
        training = simulate(
            module.double(),
            data,
            unequal_fleet(3),
            strategy="b=4+cut=2",
            interval=2,
            rounds=4,
            learning_rate=0.05,
            machine=Machine(engine=engine),
        )
        losses.append([record.loss for record in training])
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    getattr(example, name)().load_state_dict(training.model())


class EveryToken(nn.Module):
    """Classifies every token of a row: outputs of shape (samples, tokens, classes)."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.mix, self.head = nn.Embedding(8, 6), nn.Linear(6, 6), nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.token(x))))


def test_a_class_for_every_token() -> None:
    x = torch.randint(8, (80, 5), generator=torch.Generator().manual_seed(0))
    data = Dataset.of_arrays("the same again", x[:60], x[:60], x[60:], x[60:])
    module = EveryToken()
    training = simulate(
        module, data, unequal_fleet(3), strategy="b=8+cut=1", optimizer="adam", learning_rate=0.05, rounds=30
    )
    *_, last = training
    training.load_into(module)
    right = (module(x[60:]).argmax(dim=-1) == x[60:]).float().mean()
    assert float(right) == pytest.approx(last.accuracy)
    assert last.accuracy > 0.9


@pytest.mark.parametrize("name", quick_then_slow(list(NAMES)))
def test_a_scenario_trains_it(hasfl: Hasfl, tmp_path: Path, name: str) -> None:
    shutil.copy(EXAMPLES / "token_models.py", tmp_path)
    text = (EXAMPLES / "tokens.toml").read_text()
    short = text.replace("rounds = 60", "rounds = 3").replace("token_models:GPT", f"token_models:{name}")
    scenario = tmp_path / "tokens.toml"
    scenario.write_text(short)
    outcome = hasfl("train", scenario, "--out", tmp_path, "--run", "run", "--strategy", "b=8+cut=2")
    assert outcome.code == 0, outcome.err
    assert len(rounds(tmp_path / "run")) == 3
    module: nn.Module = getattr(sys.modules["token_models"], name)()
    module.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))


def test_a_profile_of_a_token_model(hasfl: Hasfl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    outcome = hasfl("profile", "token_models:GPT", "--input", 6, "--tokens", "--json")
    assert [layer["name"] for layer in json.loads(outcome.out)["layers"]] == list(NAMES["GPT"])
    refused = hasfl("profile", "token_models:GPT", "--json")
    assert refused.code == 2
    assert "--input 64 --tokens if a sample is 64 tokens" in refused.err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt", "encoder", "lstm"])
def test_the_example_learns(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["token_models.py", name])
    runpy.run_path(str(EXAMPLES / "token_models.py"), run_name="__main__")
    last = capsys.readouterr().out.splitlines()[-1]
    assert float(last.split()[-2].removesuffix("%")) > 90


@pytest.mark.parametrize("is_causal", [None, True])
def test_an_encoder_with_a_mask_is_cut_between_its_layers(is_causal: bool | None) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            self.blocks = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)

        def forward(self, x: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(5).to(x.device)
            outputs: Tensor = self.blocks(x, mask=mask, is_causal=is_causal)
            return outputs

    module, x = Masked(), torch.randn(3, 5, 8)
    chain = layered(module, x)
    assert chain.names == ("blocks_layers_0", "blocks_layers_1", "blocks_norm")
    torch.testing.assert_close(chain(x), module(x))
