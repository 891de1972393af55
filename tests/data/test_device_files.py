"""A folder with one file for each device: written, read, matched to a fleet."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hasfl import Seeds
from hasfl.data.dataset import Dataset
from hasfl.data.npz_files import read_device_files, shares_of, write_device_files
from hasfl.data.partition import partition
from hasfl.data.sources import load_dataset
from hasfl.errors import InputError

X, Y = np.arange(36, dtype=np.float32).reshape(12, 3), np.arange(12) % 3
LABELS = {
    "classes": Y,
    "tokens": np.stack([Y, Y[::-1]], axis=1),
    "numbers": Y / 7,
    "pairs": np.stack([Y / 7, Y], 1),
}


def file(folder: Path, name: str, **changes: Any) -> None:
    folder.mkdir(exist_ok=True)
    arrays = {"x": X, "y": Y} | changes
    np.savez(folder / f"{name}.npz", **{key: value for key, value in arrays.items() if value is not None})


@pytest.mark.parametrize("kind", LABELS)
def test_what_is_written_is_read_back(tmp_path: Path, kind: str) -> None:
    labels = LABELS[kind]
    class_names = ["a", "b", "c"] if kind in ("classes", "tokens") else []
    data = Dataset.of_arrays("mine", X, labels, X[:2], labels[:2], class_names)
    shares = [np.array([4, 1]), np.array([0, 2, 11]), np.arange(5, 9)]
    write_device_files(data, shares, ["pi-10", "pi-2", "jetson"], tmp_path / "new" / "mine")
    read = load_dataset("mine", folder=tmp_path / "new")
    assert read.name == "mine"
    assert read.shares is not None
    assert list(read.shares) == ["jetson", "pi-2", "pi-10"]  # in the order of names, numbers by value
    for device, share in zip(["pi-10", "pi-2", "jetson"], shares, strict=True):
        assert torch.equal(read.x_train[read.shares[device]], data.x_train[share])
        assert torch.equal(read.y_train[read.shares[device]], data.y_train[share])
    assert torch.equal(read.x_test, data.x_test)
    assert torch.equal(read.y_test, data.y_test)
    assert read.class_names == data.class_names
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["mine"]


def test_files_are_matched_by_name_or_else_in_order(tmp_path: Path) -> None:
    for i, name in enumerate(["pi-2", "pi-10", "pi-1"]):
        file(tmp_path / "mine", name, x=X[: i + 1], y=Y[: i + 1])
    file(tmp_path / "mine", "test")
    data = read_device_files("mine", tmp_path / "mine")
    assert [len(share) for share in shares_of(data, ["pi-10", "pi-1", "pi-2"])] == [2, 3, 1]
    assert [len(share) for share in shares_of(data, ["1", "2", "3"])] == [3, 1, 2]
    assert [len(share) for share in shares_of(data, ["pi-1", "pi-2", "pi-3"])] == [3, 1, 2]
    assert sorted(np.concatenate(shares_of(data, ["1", "2", "3"])).tolist()) == list(range(6))
    with pytest.raises(InputError, match="samples of 3 devices but the fleet has 2"):
        shares_of(data, ["pi-1", "pi-2"])


def test_images_are_normalised_over_all_devices(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, 4, 4, 3), dtype=np.uint8)
    images[6:] //= 4  # the second device has darker images
    file(tmp_path / "mine", "1", x=images[:6], y=Y[:6])
    file(tmp_path / "mine", "2", x=images[6:], y=Y[6:])
    file(tmp_path / "mine", "test", x=images)
    whole = Dataset.of_arrays("mine", images, Y, images, Y)
    read = read_device_files("mine", tmp_path / "mine")
    assert torch.equal(read.x_train, whole.x_train)
    assert torch.equal(read.x_test, whole.x_test)


def test_hidden_files_and_others_do_not_count(tmp_path: Path) -> None:
    for name in ("1", "2", "test", "._1"):
        file(tmp_path / "mine", name)
    (tmp_path / "mine" / "notes.txt").write_text("")
    assert len(read_device_files("mine", tmp_path / "mine").shares or ()) == 2


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"1": {}}, "test.npz is missing"),
        ({"test": {}}, "a file for each device, such as 1.npz is missing"),
        ({"1": {"y": None}, "test": {}}, "1.npz must hold x, y, but lacks y"),
        ({"1": {"x": X[:3]}, "test": {}}, r"one label for each, got arrays of shape \(3, 3\) and \(12,\)"),
        ({"1": {"x": X[:0], "y": Y[:0]}, "test": {}}, "1.npz must hold samples"),
        ({"1": {}, "2": {"x": X[:, :2]}, "test": {}}, r"\(2,\) of float32 in 2.npz and \(3,\)"),
        ({"1": {}, "2": {"x": X.astype(int)}, "test": {}}, "one shape and type of x"),
        ({"1": {}, "2": {"y": Y / 2}, "test": {}}, "one shape and type of y"),
        ({"1": {}, "test": {"x": X[:, :2]}}, "x_train and x_test must hold samples of one shape"),
        ({"1": {}, "test": {"y": Y / 2}}, "y_train and y_test must hold labels of one shape and type"),
    ],
)  # fmt: skip
def test_faulty_folders_are_refused(tmp_path: Path, files: dict[str, dict[str, Any]], fault: str) -> None:
    for name, changes in files.items():
        file(tmp_path / "mine", name, **changes)
    with pytest.raises(InputError, match=fault):
        load_dataset("mine", folder=tmp_path)


@pytest.mark.parametrize(
    "names", [["a", "../b"], ["a", "test"], ["a", ""], ["a", ".b"], ["a", "a"], ["a", "b\n"], ["a"]]
)
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, names: list[str]) -> None:
    data = Dataset.of_arrays("mine", X, Y, X, Y)
    with pytest.raises(InputError, match=r"rename the device|give one name for each"):
        write_device_files(data, [np.arange(2), np.arange(2, 5)], names, tmp_path / "mine")
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    data = Dataset.of_arrays("mine", X, Y, X, Y)
    shares = partition(Y, 2, Seeds(0))
    write_device_files(data, shares, ["a", "b"], tmp_path / "mine")
    with pytest.raises(InputError, match="exists already"):
        write_device_files(data, shares, ["a", "b"], tmp_path / "mine")
