"""Data sets by name, from the right place, with faults told in a sentence."""

import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from hasfl.data.sources import DATASETS, PUBLISHED, default_folder, load_dataset
from hasfl.errors import InputError, MissingExtra
from tests.data.fake_files import write_cifar10

PUBLISHED_SIZES = {
    "fashion-mnist": ((60_000, 10_000), (1, 28, 28), 10),
    "cifar10": ((50_000, 10_000), (3, 32, 32), 10),
    "cifar100": ((50_000, 10_000), (3, 32, 32), 100),
}


def npz(path: Path, **changes: object) -> Path:
    x, y = np.zeros((4, 3), np.float32), np.array([0, 1, 2, 0])
    arrays = {"x_train": x, "y_train": y, "x_test": x, "y_test": y, **changes}
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


def test_digits() -> None:
    data = load_dataset("digits")
    assert (len(data.x_train), len(data.x_test)) == (1438, 359)
    assert (data.classes, data.sample_shape) == (10, (1, 8, 8))
    assert (float(data.x_train.min()), float(data.x_train.max())) == (0.0, 1.0)


def test_digits_keep_every_fifth_for_testing() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.load_digits(return_X_y=True)
    data = load_dataset("digits")
    assert (data.x_test.flatten(1).numpy() * 16 == images[4::5]).all()
    assert data.y_test.tolist() == labels[4::5].tolist()
    assert data.y_train[:9].tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 0]


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtra, match=r"digits needs scikit-learn.* pip install 'hasfl\[train\]'"):
        load_dataset("digits")


def test_npz_is_relative_to_the_folder_or_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = npz(tmp_path / "mine.npz", class_names=np.array(["cat", "dog", "eel"]), more=np.zeros(3))
    data = load_dataset("mine.npz", folder=tmp_path)
    assert (data.name, data.class_names) == ("mine.npz", ("cat", "dog", "eel"))
    assert load_dataset(str(path)).y_train.tolist() == [0, 1, 2, 0]
    monkeypatch.setenv("HASFL_DATA", str(tmp_path))
    assert load_dataset("mine.npz").classes == 3


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"y_train": None, "x_test": None}, "lacks y_train, x_test"),
        ({"x_train": np.array([None] * 4, dtype=object)}, "cannot read .* Object arrays cannot be loaded"),
        ({"y_train": np.array([0])}, "x_train has 4 samples but y_train has 1"),
        ({"class_names": np.array(["cat"])}, "for 1 class names"),
    ],
)
def test_faulty_npz_files_are_refused(tmp_path: Path, changes: dict[str, object], fault: str) -> None:
    npz(tmp_path / "mine.npz", **changes)
    with pytest.raises(InputError, match=fault):
        load_dataset("mine.npz", folder=tmp_path)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04cut short", pickle.dumps([1])])
def test_other_files_are_no_npz(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mine.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"cannot read .*mine\.npz as arrays"):
        load_dataset("mine.npz", folder=tmp_path)


def test_an_array_alone_is_no_npz(tmp_path: Path) -> None:
    with (tmp_path / "mine.npz").open("wb") as stream:
        np.save(stream, np.zeros(3))
    with pytest.raises(InputError, match="cannot read"):
        load_dataset("mine.npz", folder=tmp_path)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("cifar-10", "did you mean cifar10"),
        ("imagenet", "expected one of digits, fashion-mnist"),
        ("absent.npz", r"absent\.npz does not exist: expected"),
    ],
)
def test_unknown_names_are_refused_with_advice(tmp_path: Path, name: str, advice: str) -> None:
    with pytest.raises(InputError, match=advice):
        load_dataset(name, folder=tmp_path)


@pytest.mark.parametrize("name", [*DATASETS, "mine.npz"])
def test_a_given_folder_must_exist(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="absent does not exist"):
        load_dataset(name, folder=tmp_path / "absent")


def test_the_default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HASFL_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_folder() == Path.home() / ".cache/hasfl"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_folder() == tmp_path / "cache/hasfl"
    monkeypatch.setenv("HASFL_DATA", str(tmp_path / "data"))
    assert default_folder() == tmp_path / "data"


def test_files_in_the_default_folder_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(tmp_path)
    monkeypatch.setenv("HASFL_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert len(load_dataset("cifar10").x_test) == 4


@pytest.mark.parametrize("name", PUBLISHED)
def test_real_data(name: str) -> None:
    """Only where HASFL_DATA names a folder that has it."""
    folder = os.environ.get("HASFL_DATA")
    if not folder or PUBLISHED[name].missing(Path(folder)):
        pytest.skip(f"set HASFL_DATA to a folder that holds {name}")
    data = load_dataset(name, folder=Path(folder))
    sizes = (len(data.x_train), len(data.x_test))
    assert (sizes, data.sample_shape, data.classes) == PUBLISHED_SIZES[name]
    assert data.y_train.bincount().unique().tolist() == [sizes[0] // data.classes]
    assert data.x_train.mean((0, 2, 3)).abs().max() < 1e-4
    assert (data.x_train.std((0, 2, 3)) - 1).abs().max() < 1e-3


def test_files_are_searched_beside_the_scenario_first(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    for place, classes in ((near, 2), (far, 3)):
        place.mkdir()
        npz(place / "mine.npz", y_train=np.arange(4) % classes, y_test=np.arange(4) % classes)
    npz(far / "other.npz")
    assert load_dataset("mine.npz", folder=far, beside=near).classes == 2
    assert load_dataset("mine.npz", folder=far).classes == 3
    assert load_dataset("other.npz", folder=far, beside=near).classes == 3
    with pytest.raises(InputError, match=r"near/absent\.npz and .*far/absent\.npz do not exist"):
        load_dataset("absent.npz", folder=far, beside=near)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "there is no data set ''"),
        ("x" * 5000, "do not exist"),
        ("a\0b", "do not exist"),
        ("~nobody-of-this-name/mine.npz", "home folder of a user"),
        ("empty", r"must hold one \.npz file for each device and test\.npz"),
    ],
)
def test_names_that_are_no_paths_are_refused(tmp_path: Path, name: str, fault: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "beside").mkdir()
    with pytest.raises(InputError, match=fault):
        load_dataset(name, folder=tmp_path, beside=tmp_path / "beside")


@pytest.mark.parametrize("name", ["digits", "cifar10", "mine.npz"])
def test_columns_belong_to_one_kind_of_folder(tmp_path: Path, name: str) -> None:
    npz(tmp_path / "mine.npz")
    with pytest.raises(InputError, match=f"columns belong to .* which {name} is not"):
        load_dataset(name, folder=tmp_path, columns=["x", "y"])
