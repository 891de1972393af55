"""`hasfl profile`: the layer table for people and for programs."""

import json
from pathlib import Path

import pytest

from hasfl.runs.files import ProfileFile, read_json
from hasfl.runs.model_costs import shipped_layers
from tests.cli.conftest import Hasfl


def test_the_table_has_a_row_for_every_layer(hasfl: Hasfl) -> None:
    outcome = hasfl("profile", "vgg16")
    assert outcome.code == 0
    for name in (*(f"conv{j}" for j in range(1, 14)), "fc1", "fc2", "fc3"):
        assert f" {name} " in outcome.out
    assert "627 MFLOP forward" in outcome.out
    assert "15,249,354 parameters" in outcome.out


def test_json_can_be_read_again(hasfl: Hasfl, tmp_path: Path) -> None:
    outcome = hasfl("profile", "resnet18", "--json")
    path = tmp_path / "resnet18.json"
    path.write_text(outcome.out)
    assert read_json(str(path), ProfileFile).rows() == shipped_layers("resnet18", classes=None, norm=None)


def test_options_change_what_they_should(hasfl: Hasfl) -> None:
    plain = json.loads(hasfl("profile", "small-cnn", "--json").out)
    adam = json.loads(hasfl("profile", "small-cnn", "--optimizer", "adam", "--json").out)
    weights = sum(layer["param_bits"] for layer in plain["layers"])
    assert plain["profile"]["optimizer_bits_upto"][-1] == 0
    assert adam["profile"]["optimizer_bits_upto"][-1] == 2 * weights
    other = json.loads(hasfl("profile", "small-cnn", "--classes", 3, "--norm", "none", "--json").out)
    assert other["layers"][-1]["output_shape"] == [3]
    assert all(layer["buffer_bits"] == 0 for layer in other["layers"])


def test_a_model_of_ones_own(hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_model_for_profile.py").write_text(
        "from torch import nn\n"
        "def make(): return nn.Sequential(nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("unused")
    printed = json.loads(hasfl("profile", "own_model_for_profile:make", "--input", "12", "--json").out)
    assert [layer["forward_flops"] for layer in printed["layers"]] == [120, 0, 20]


def test_a_model_of_tokens_needs_to_be_told(
    hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token_model_for_profile.py").write_text(
        "from torch import nn\n"
        "def make(): return nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(15, 2))\n"
    )
    monkeypatch.chdir(tmp_path)
    asked = ("profile", "token_model_for_profile:make", "--input", "5")
    refused = hasfl(*asked)
    assert refused.code == 2
    assert "it takes whole numbers: give samples of int64, or say with --tokens that" in refused.err
    assert hasfl(*asked, "--tokens").code == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("vgg19",), "unknown model 'vgg19'"),
        (("vgg16", "--norm", "layer"), "norm must be 'batch', 'group' or 'none', got 'layer'"),
        (
            ("vgg16", "--optimizer", "lion"),
            "optimizer must be one of sgd, momentum, nesterov, adam, adamw, got 'lion'",
        ),
        (("vgg16", "--input", "3by3"), "--input must be the shape of one sample like 3x32x32, got '3by3'"),
        (("vgg16", "--input", "3x64x64"), "'vgg16' takes no input, got input = (3, 64, 64)"),
        (("vgg16", "--classes", "0"), "--classes"),
        (("vgg16", "--classes", "99999999999"), "classes must be less than or equal to 1000000, got 9999"),
        (("small-cnn", "--input", "1x8x8", "--tokens"), "'small-cnn' takes no tokens, got tokens = True"),
        (("small-cnn", "--tokens"), "a sample of the shape input is whole numbers: give input too"),
    ],
)
def test_wrong_options(hasfl: Hasfl, arguments: tuple[str, ...], sentence: str) -> None:
    outcome = hasfl("profile", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert sentence in outcome.err
