"""torch's datasets become what the same arrays would become."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from hasfl.data.dataset import Dataset
from hasfl.errors import InputError

X = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(7) % 3


class Listed(TorchDataset[Any]):
    """Samples from a list."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


class WithoutLength(TorchDataset[Any]):
    def __getitem__(self, index: int) -> Any:
        return X[index], Y[index]


def same(one: Dataset, other: Dataset) -> bool:
    fields = ("x_train", "y_train", "x_test", "y_test")
    return all(torch.equal(getattr(one, field), getattr(other, field)) for field in fields)


@pytest.mark.parametrize(
    "dataset",
    [
        TensorDataset(X, Y),
        Listed([(x, y) for x, y in zip(X, Y, strict=True)]),
        Listed([[x.numpy(), int(y)] for x, y in zip(X, Y, strict=True)]),
        Listed([(x.tolist(), y.numpy()) for x, y in zip(X, Y, strict=True)]),
        Subset(TensorDataset(torch.cat([X, X]), torch.cat([Y, Y])), range(7)),
        ConcatDataset([TensorDataset(X[:4], Y[:4]), TensorDataset(X[4:], Y[4:])]),
    ],
    ids=["tensors", "pairs of tensors", "arrays and ints", "lists", "subset", "concatenated"],
)
def test_a_torch_dataset_equals_its_arrays(dataset: TorchDataset[Any]) -> None:
    expected = Dataset.of_arrays("mine", X, Y, X, Y)
    assert same(Dataset.of_torch("mine", dataset, dataset), expected)
    assert Dataset.of_torch("mine", dataset, dataset, ["a", "b", "c"]).class_names == ("a", "b", "c")


def test_images_numbers_and_tokens_keep_their_meaning() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 3), dtype=np.uint8)
    one = Listed([(image, 0.5 * i) for i, image in enumerate(images)])
    expected = Dataset.of_arrays("mine", images, np.arange(5) / 2, images, np.arange(5) / 2)
    assert same(Dataset.of_torch("mine", one, one), expected)
    assert expected.y_train.dtype == torch.float32
    tokens = TensorDataset(torch.ones(4, 6, dtype=torch.int32), torch.tensor([[0, 1, -100, 1, 0, 0]] * 4))
    data = Dataset.of_torch("mine", tokens, tokens)
    assert (data.x_train.dtype, data.y_train.shape, data.classes) == (torch.int64, (4, 6), 2)


def broken(index: int) -> Tensor:
    raise OSError(f"the file of sample {index} is gone")


class Broken(Listed):
    def __getitem__(self, index: int) -> Any:
        return broken(index)


@pytest.mark.parametrize(
    ("dataset", "fault"),
    [
        (Endless(), "train must be a map-style dataset.* got Endless: read it into tensors"),
        (WithoutLength(), "with a length and numbered samples, got WithoutLength"),
        (TensorDataset(X), "two tensors, inputs and labels, got 1"),
        (TensorDataset(X, Y, Y), "got 3"),
        (Listed([]), "train must hold at least one sample"),
        (Listed([{"x": X[0], "y": 1}]), r"sample 0 of train must be a pair \(input, label\), got a dict"),
        (Listed([X[0]]), "got a Tensor"),
        (Listed([(X[0], 0), (X[1], 1, 2)]), "sample 1 of train must be a pair.* got a tuple of 3"),
        (Listed([(X[0], 0), (X[1, :2], 1)]), r"\(3,\) of torch.float32 and, in sample 1, \(2,\)"),
        (Listed([(X[0], 0), (X[1], 0.5)]), "labels of train must all have one shape and type"),
        (Listed([([[1.0], [1.0, 2.0]], 0)]), "cannot be made an array"),
        (Listed([("cat", 0)]), "x_train must hold numbers"),
        (Broken([1]), "sample 0 of train cannot be read: OSError: the file of sample 0 is gone"),
    ],
)  # fmt: skip
def test_other_datasets_are_refused_in_a_sentence(dataset: TorchDataset[Any], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        Dataset.of_torch("mine", dataset, TensorDataset(X, Y))
