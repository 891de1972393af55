"""Folders that Hugging Face's package `datasets` saved."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hasfl.data.dataset import Dataset
from hasfl.data.sources import load_dataset
from hasfl.errors import InputError, MissingExtra
from tests.extras import extra

TOKENS, Y = np.arange(24).reshape(8, 3) % 5, np.arange(8) % 2


def test_without_the_package_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "dataset_dict.json").write_text("{}")
    with pytest.raises(
        MissingExtra, match=r"reading .*mine needs the package datasets.*pip install 'datasets'"
    ):
        load_dataset("mine", folder=tmp_path)


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    package = extra("datasets")
    package.disable_progress_bars()
    return package


def saved(
    datasets: Any, folder: Path, columns: dict[str, Any], features: dict[str, Any] | None = None
) -> None:
    table = datasets.Dataset.from_dict(columns, features=datasets.Features(features) if features else None)
    datasets.DatasetDict(train=table, test=table).save_to_disk(str(folder))


def same(one: Dataset, other: Dataset) -> bool:
    fields = ("x_train", "y_train", "x_test", "y_test")
    return one.class_names == other.class_names and all(
        torch.equal(getattr(one, field), getattr(other, field)) for field in fields
    )


@pytest.mark.extras
def test_tokens_by_their_usual_names(datasets: Any, tmp_path: Path) -> None:
    saved(datasets, tmp_path / "mine", {"input_ids": TOKENS.tolist(), "text": ["a"] * 8, "label": Y.tolist()})
    expected = Dataset.of_arrays("mine", TOKENS, Y, TOKENS, Y)
    assert same(load_dataset("mine", folder=tmp_path), expected)
    assert same(load_dataset("mine", folder=tmp_path, columns=["input_ids", "label"]), expected)
    per_token = load_dataset("mine", folder=tmp_path, columns=["label", "input_ids"])
    assert per_token.y_train.tolist() == TOKENS.tolist()


@pytest.mark.extras
def test_images_and_names_of_classes(datasets: Any, tmp_path: Path) -> None:
    image = extra("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 6, 6, 3), dtype=np.uint8)
    features = {"img": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    saved(
        datasets, tmp_path / "mine", {"img": [image.fromarray(each) for each in pixels], "label": Y}, features
    )
    expected = Dataset.of_arrays("mine", pixels, Y, pixels, Y, ["cat", "dog"])
    assert same(load_dataset("mine", folder=tmp_path), expected)
    arrays = {"x": datasets.Array3D(shape=(6, 6, 3), dtype="uint8"), "y": datasets.Value("int64")}
    saved(datasets, tmp_path / "arrays", {"x": pixels, "y": Y}, arrays)
    found = load_dataset("arrays", folder=tmp_path)
    assert torch.equal(found.x_train, expected.x_train)
    saved(datasets, tmp_path / "lists", {"x": pixels, "y": Y})  # without features: lists of lists of bytes
    found = load_dataset("lists", folder=tmp_path)
    assert torch.equal(found.x_train, expected.x_train)


@pytest.mark.extras
def test_numbers(datasets: Any, tmp_path: Path) -> None:
    saved(datasets, tmp_path / "mine", {"x": (TOKENS / 4).tolist(), "y": (Y / 3).tolist()})
    assert same(
        load_dataset("mine", folder=tmp_path), Dataset.of_arrays("mine", TOKENS / 4, Y / 3, TOKENS / 4, Y / 3)
    )


@pytest.mark.extras
@pytest.mark.parametrize(
    ("columns", "asked", "fault"),
    [
        ({"a": [1, 2], "b": [0, 1]}, None, "have no usual names, but a, b: give data.columns"),
        ({"x": [1, 2], "y": [0, 1]}, ["x", "z"], r"are not \['x', 'z'\], but x, y"),
        ({"x": [1, 2], "y": [0, 1]}, ["x", "x"], "data.columns"),
        ({"x": [1, 2], "y": [0, 1]}, ["x"], "data.columns"),
        ({"x": [[1], [1, 2]], "y": [0, 1]}, None, "must hold numbers or images of one shape, got object"),
        ({"x": ["a", "b"], "y": [0, 1]}, None, "must hold numbers or images"),
    ],
)
def test_faulty_columns_are_refused(
    datasets: Any, tmp_path: Path, columns: dict[str, Any], asked: list[str] | None, fault: str
) -> None:
    saved(datasets, tmp_path / "mine", columns)
    with pytest.raises(InputError, match=fault):
        load_dataset("mine", folder=tmp_path, columns=asked)


@pytest.mark.extras
def test_both_splits_are_needed(datasets: Any, tmp_path: Path) -> None:
    table = datasets.Dataset.from_dict({"x": [1, 2], "y": [0, 1]})
    table.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict(train=table).save_to_disk(str(tmp_path / "half"))
    for name, found in (("one", "no splits"), ("half", "train")):
        with pytest.raises(InputError, match=f"the splits train and test, got {found}: save a DatasetDict"):
            load_dataset(name, folder=tmp_path)
    (tmp_path / "half" / "train" / "state.json").unlink()
    with pytest.raises(InputError, match=r"cannot read .*half as datasets saved it"):
        load_dataset("half", folder=tmp_path)
