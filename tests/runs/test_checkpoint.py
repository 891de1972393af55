"""Tensors on disk: they come back as they were, and an old checkpoint stays until a new one is complete."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from hasfl.errors import Diverged, InputError, StorageError
from hasfl.runs.store import RunFolder, read_tensors, write_tensors
from tests.report.runs import no_file_above, record

STATE = {"round": 12, "clock": 0.1, "plan": {"cuts": [1, 2]}, "random": 2**127 + 1, "note": "ε"}
DTYPES = [np.float64, np.float32, np.float16, np.int64, np.int8, np.uint8, np.bool_]
SHAPES = hnp.array_shapes(min_dims=0, min_side=0)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path / "run", scenario_text="", settings={}, environment={}) as folder:
        yield folder


def tensors(seed: int = 0) -> dict[str, NDArray[Any]]:
    draw = np.random.default_rng(seed)
    return {"client.weight": draw.normal(size=(20, 30)), "step": np.array(seed), "empty": np.zeros((0, 3))}


def same(left: dict[str, NDArray[Any]], right: dict[str, NDArray[Any]]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and np.array_equal(left[name], right[name]) for name in left
    )


def load(run: RunFolder) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    found = RunFolder.open(run.path).load_checkpoint()
    assert found is not None
    return found


def test_a_checkpoint_comes_back_as_it_was(run: RunFolder) -> None:
    run.save_checkpoint(tensors(), STATE)
    found, state = load(run)
    assert same(found, tensors())
    assert state == STATE
    run.save_checkpoint({}, {"round": 13})
    assert load(run) == ({}, {"round": 13})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, SHAPES)),
    step=st.sampled_from([1, 2, -1]),
)
def test_however_an_array_lies_in_memory(tmp_path: Path, values: NDArray[Any], step: int) -> None:
    strided = values.T[::step] if values.ndim else values
    swapped = strided.astype(strided.dtype.newbyteorder(">"))
    write_tensors(tmp_path / "x", {"strided": strided, "swapped": swapped}, "{}")
    for found in read_tensors(tmp_path / "x")[0].values():
        assert found.shape == strided.shape
        assert found.dtype == strided.dtype
        np.testing.assert_array_equal(found, strided)


def test_the_same_checkpoint_is_the_same_bytes(run: RunFolder) -> None:
    run.save_checkpoint(tensors(), STATE)
    first = (run.path / "checkpoint.safetensors").read_bytes()
    run.save_checkpoint(dict(reversed(tensors().items())), STATE)
    assert (run.path / "checkpoint.safetensors").read_bytes() == first


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_checkpoint_that_was_cut_off_is_refused(tmp_path: Path, share: float) -> None:
    write_tensors(tmp_path / "whole", tensors(), "{}")
    whole = (tmp_path / "whole").read_bytes()
    (tmp_path / "cut").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(InputError, match="cut must hold tensors and a state, but"):
        read_tensors(tmp_path / "cut")


@pytest.mark.parametrize("text", [None, "{", "NaN}"])
def test_a_checkpoint_without_its_state_is_refused(run: RunFolder, text: str | None) -> None:
    write_tensors(run.path / "checkpoint.safetensors", tensors(), text)
    with pytest.raises(InputError, match=r"cannot be read \("):
        run.load_checkpoint()


def test_the_old_checkpoint_stays_until_the_new_one_is_complete(run: RunFolder) -> None:
    run.save_checkpoint(tensors(1), {"round": 1})
    names = sorted(path.name for path in run.path.iterdir())
    with (
        no_file_above(2000),
        pytest.raises(StorageError, match=r"safetensors: File too large; the earlier"),
    ):
        run.save_checkpoint(tensors(2), {"round": 2})
    with pytest.raises(Diverged, match="got loss = nan"):
        run.save_checkpoint(tensors(2), {"loss": float("nan")})
    found, state = load(run)
    assert same(found, tensors(1))
    assert state == {"round": 1}
    assert sorted(path.name for path in run.path.iterdir()) == names


def test_what_a_killed_process_left_is_cleared_away(run: RunFolder) -> None:
    left = run.path / ".checkpoint.safetensors.part"
    left.mkdir()
    (left / "checkpoint.safetensors").write_bytes(b"half")
    (left / ".tmpX").write_bytes(b"more")
    assert run.load_checkpoint() is None
    run.save_checkpoint(tensors(), STATE)
    assert same(load(run)[0], tensors())
    assert not left.exists()


def test_records_are_on_disk_before_the_checkpoint_that_builds_on_them(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def watched_fsync(file: int) -> None:
        done.append(f"sync {Path(f'/proc/self/fd/{file}').readlink().name}")
        fsync(file)

    def watched_replace(made: Path, path: Path) -> Path:
        done.append(f"replace {path.name}")
        return replace(made, path)

    run.append(record(1))
    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    run.save_checkpoint(tensors(), STATE)
    assert done == [
        "sync rounds.jsonl",
        "sync checkpoint.safetensors",
        "replace checkpoint.safetensors",
        "sync run",
    ]


def test_a_model_can_be_read_by_whoever_may_read_the_rest(run: RunFolder) -> None:
    run.save_model(tensors())
    model = run.path / "model.safetensors"
    assert model.stat().st_mode == (run.path / "settings.json").stat().st_mode
    from safetensors.numpy import load_file

    assert same(load_file(model), tensors())
