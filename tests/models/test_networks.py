"""The models that come with hasfl, and finding a user's own."""

import sys
from pathlib import Path

import pytest
import torch

from hasfl.errors import InputError, ModelError
from hasfl.models.layered_model import LayeredModel
from hasfl.models.networks import Norm, network, resnet18, small_cnn, vgg16


def test_vgg16_has_13_convolutions_and_3_linear_layers() -> None:
    model = vgg16()
    assert model.names == (*(f"conv{j}" for j in range(1, 14)), "fc1", "fc2", "fc3")
    kinds = [type(module).__name__ for module in model.modules()]
    assert (kinds.count("Conv2d"), kinds.count("Linear"), kinds.count("MaxPool2d")) == (13, 3, 5)


def test_resnet18_is_a_chain_of_blocks() -> None:
    model = resnet18(classes=10)
    assert model.names == ("stem", *(f"block{k}" for k in range(1, 9)), "fc")
    kinds = [type(module).__name__ for module in model.modules()]
    assert (kinds.count("Conv2d"), kinds.count("Linear")) == (17 + 3, 1)  # three projections


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("name", ["vgg16", "resnet18", "small-cnn"])
def test_every_norm_and_number_of_classes(name: str, norm: Norm) -> None:
    model = network(name, classes=7, norm=norm)
    x = torch.randn(2, *model.example_input.shape[1:])
    output = model(x)
    assert output.shape == (2, 7)
    output.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    kinds = {type(module).__name__ for module in model.modules()}
    assert ("BatchNorm2d" in kinds, "GroupNorm" in kinds) == (norm == "batch", norm == "group")


def test_the_bias_is_where_no_norm_is() -> None:
    convolution = small_cnn(norm="none").layers["conv1"].get_submodule("0")
    assert convolution.bias is not None
    assert small_cnn(norm="batch").layers["conv1"].get_submodule("0").bias is None


MINE = """
import torch
from torch import nn
from hasfl.models.networks import small_cnn

def plain(): return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
def embedding(): return nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2))
def pair(): return plain(), torch.zeros(1, 4)
def chain(): return small_cnn()
def nothing(): return None
def failing(): raise KeyError("weights")
def leaving(): raise SystemExit(3)
def greedy(size): return plain()
ready = plain()
number = 5
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's in the working folder, importable only from there."""
    name = f"mine_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    return name


def test_a_model_of_ones_own(mine: str) -> None:
    before = list(sys.path)
    assert network(f"{mine}:plain", input_shape=(4,)).names == ("0", "1", "2")
    assert network(f"{mine}:pair").names == ("0", "1", "2")
    assert network(f"{mine}:ready", input_shape=(4,)).names == ("0", "1", "2")
    assert isinstance(network(f"{mine}:chain"), LayeredModel)
    assert sys.path == before
    with pytest.raises(ModelError, match="brings its own example input: leave out --input and --tokens"):
        network(f"{mine}:pair", input_shape=(4,))


def test_a_plain_module_takes_samples_like_those_of_the_data(mine: str) -> None:
    samples = torch.empty(3, 7, 4)
    assert network(f"{mine}:plain", samples=samples).example_input.shape == samples.shape
    assert network(f"{mine}:plain", samples=samples, input_shape=(4,)).example_input.shape == (1, 4)
    assert network(f"{mine}:pair", samples=samples).example_input.shape == (1, 4)
    rows = torch.empty(3, 6, dtype=torch.int64)
    for options in ({"samples": rows}, {"input_shape": (6,), "tokens": True}):
        example = network(f"{mine}:embedding", **options).example_input
        assert (example.shape[1:], example.dtype) == ((6,), torch.int64)
    assert network("small-cnn", samples=torch.empty(2, 3, 12, 12)).example_input.shape == (1, 3, 12, 12)
    assert network("vgg16", samples=rows).example_input.shape == (1, 3, 32, 32)


def test_a_callable_is_searched_in_its_folder_first(tmp_path: Path) -> None:
    (tmp_path / "lies_beside_a_scenario.py").write_text(MINE)
    assert len(network("lies_beside_a_scenario:pair", folder=tmp_path)) == 3


@pytest.mark.parametrize(
    ("attribute", "error", "message"),
    [
        ("plain", ModelError, "returns a plain module: give the shape of one sample, as --input 3x32x32, or"),
        (
            "nothing",
            ModelError,
            "must return a module, a LayeredModel or a pair .module, example input., got NoneType",
        ),
        ("number", ModelError, "must be a callable that returns a module, got int"),
        ("missing", InputError, "cannot find model .*missing"),
        ("failing", InputError, "calling model .* failed: KeyError: 'weights'"),
        ("leaving", InputError, "calling model .* failed: SystemExit: 3"),
        ("greedy", InputError, "calling model .* failed: TypeError"),
    ],
)
def test_what_is_not_a_model_says_why(
    mine: str, attribute: str, error: type[Exception], message: str
) -> None:
    before = list(sys.path)
    with pytest.raises(error, match=message):
        network(f"{mine}:{attribute}")
    assert sys.path == before


def test_unknown_names_and_options() -> None:
    with pytest.raises(ModelError, match="unknown model 'vgg19': expected one of vgg16, resnet18, small-cnn"):
        network("vgg19")
    with pytest.raises(
        InputError, match="cannot find model 'no_such_module:f': ModuleNotFoundError: No module named"
    ):
        network("no_such_module:f")
    with pytest.raises(ModelError, match="'vgg16' takes no input,"):
        network("vgg16", input_shape=(3, 64, 64))
    with pytest.raises(ModelError, match="'small-cnn' takes no tokens, got tokens = True: leave it out"):
        network("small-cnn", tokens=True)
    with pytest.raises(ModelError, match="'a:b' takes no classes"):
        network("a:b", classes=3)
    with pytest.raises(ModelError, match="norm must be one of batch, group, none, got 'layer'"):
        vgg16(norm="layer")
