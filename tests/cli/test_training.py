"""`hasfl train`: what it prints and keeps, and one sentence for every wrong input, of `hasfl compare` too."""

import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hasfl.cli.training_view import TrainingView
from hasfl.data.sources import load_dataset
from hasfl.models.networks import network
from hasfl.planning.strategies.catalogue import STRATEGIES
from hasfl.runs.request import RunRequest
from hasfl.runs.store import RunFolder
from hasfl.units import format_seconds
from tests.cli.conftest import Hasfl, Outcome
from tests.lanes import quick_then_slow
from tests.learning.simulations import simulation, unequal_fleet
from tests.runs.scenarios import CONSTANTS, PIS, files, kept, rounds, sentence, write


@pytest.fixture
def train(hasfl: Hasfl, tmp_path: Path) -> Callable[..., Outcome]:
    """Train the small scenario with changes, as the run called run."""

    def run(changes: dict[str, str] | None = None, *options: object, tables: str = "") -> Outcome:
        scenario = write(tmp_path, changes, tables)
        return hasfl("train", scenario, "--out", tmp_path, "--run", "run", *options)

    return run


def accuracy_of_the_model_in(run: Path) -> float:
    data, model = load_dataset("digits"), network("small-cnn", classes=10, input_shape=(1, 8, 8))
    model.load_state_dict(load_file(run / "model.safetensors"))
    return float((model.eval()(data.x_test).argmax(dim=1) == data.y_test).double().mean())


def test_a_run_is_kept_whole(train: Callable[..., Outcome], tmp_path: Path) -> None:
    done = train({"training.checkpoint_seconds": "0"}, "--json")
    steps = ["loading digits", "cutting small-cnn", "planning", "hasfl, seed 0: training"]
    assert (done.code, done.err.splitlines()[:4], done.out.count("\n")) == (0, steps, 1)
    printed, run = json.loads(done.out), tmp_path / "run"
    with RunFolder.open(run) as folder:
        assert printed.pop("run") == str(run)
        assert printed == folder.result()
        assert printed["rounds"] == len(folder.records()) == 4
        assert folder.settings() == {
            "strategy": "hasfl",
            "seed": 0,
            "device": None,
            "folder": str(tmp_path),
            "scenario": "small.toml",
        }
        assert folder.scenario_text() == (tmp_path / "small.toml").read_text()
        assert json.loads((folder.path / "environment.json").read_text())["torch"]
        assert folder.load_checkpoint() is not None
    assert len((run / "timing.jsonl").read_text().splitlines()) == 4
    assert [row["aggregated"] for row in rounds(run)] == [False, True, False, True]
    assert accuracy_of_the_model_in(run) == pytest.approx(rounds(run)[-1]["accuracy"])


def test_the_same_scenario_gives_the_same_bytes(train: Callable[..., Outcome], tmp_path: Path) -> None:
    first = train()
    assert first.code == 0
    assert "4 rounds" in first.out
    (tmp_path / "run").rename(tmp_path / "first")
    assert train().out == first.out
    assert kept(tmp_path / "run") == kept(tmp_path / "first")
    assert train({}, "--resume").out == first.out  # there is nothing left to do


def test_the_place_of_the_run_is_printed_in_one_piece(
    hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.cli.conftest.COLUMNS", "40")
    place = tmp_path / ("runs-" * 12)
    done = hasfl("train", write(tmp_path), "--out", place, "--strategy", "sfl")
    assert str(place / "small-sfl-seed0") in done.out


@pytest.mark.parametrize("name", quick_then_slow([*STRATEGIES, "fixed:b=4,cut=2", "b=3+rhams"], quick=4))
def test_every_strategy_trains(train: Callable[..., Outcome], tmp_path: Path, name: str) -> None:
    assert train({}, "--strategy", name).code == 0
    rows = rounds(tmp_path / "run")
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    assert all(np.isfinite(row["loss"]) and 1 <= min(row["cuts"]) <= max(row["cuts"]) <= 5 for row in rows)
    assert {len(row["devices"]) for row in rows} == ({1} if name == "sl" else {4})
    assert rows[-1]["accuracy"] is not None


SFL = {"training.strategy": '"sfl"'}  # plans at once
WORLDS: dict[str, tuple[dict[str, str], str]] = {
    "redrawn": ({"world.rates": '"redrawn"'}, ""),
    "walk": ({"world.rates": '"walk"', "world.step": "0.5", "world.bound": "3.0"}, ""),
    "trace": (  # with a plan that does not get out of its way
        {"world.rates": '"trace"', "world.trace": '"rates.csv"', "training.strategy": '"sfl:b=4"'},
        "",
    ),
    "dropout": ({"world.leave": "0.5"}, ""),
    "absences": ({}, '[[absence]]\ndevice = "2"\nfirst_round = 2\nlast_round = 3\n'),
    "shards": (SFL | {"data.partition": '"shards"'}, ""),
    "dirichlet": (SFL | {"data.partition": '"dirichlet"', "data.alpha": "0.05"}, ""),
    "samples": (SFL | {"data.samples": "20"}, ""),
    "overlapping samples": (SFL | {"data.samples": "900"}, ""),
    "statistics": ({}, CONSTANTS),
    "listed": ({"fleet.devices": ""}, PIS),
    "one device": ({"fleet.devices": "1"}, ""),
    "reference": (SFL | {"training.engine": '"reference"'}, ""),
    "adam": (SFL | {"training.optimizer": '"adam"', "model.norm": '"batch"'}, ""),
    "every round": (SFL | {"training.interval": "1"}, ""),
    "seconds": (SFL | {"stop.rounds": "", "stop.seconds": "0.004"}, ""),
}


@pytest.mark.parametrize("world", quick_then_slow(list(WORLDS), quick=8))
def test_scenarios(train: Callable[..., Outcome], tmp_path: Path, world: str) -> None:
    (tmp_path / "rates.csv").write_text("round,device,up_rate\n3,1,1 Mbps\n")
    changes, tables = WORLDS[world]
    done = train(changes, tables=tables)
    assert done.code == 0, done.err
    seconds = [row["seconds"] for row in rounds(tmp_path / "run")]
    if world == "trace":
        assert seconds[2] > 5 * seconds[0]
    if world == "absences":
        there = [row["devices"] for row in rounds(tmp_path / "run")]
        assert there == [[0, 1, 2, 3], [0, 2, 3], [0, 2, 3], [0, 2, 3]]


def test_devices_with_one_sample_each(train: Callable[..., Outcome]) -> None:
    """From these nothing can be estimated: then it is said so."""
    done = train({"data.samples": "1"})
    assert done.code == 0 or "sample" in sentence(done)
    assert "Warning" not in done.err


def test_estimates_are_kept_while_nobody_can_renew_them(
    hasfl: Hasfl, train: Callable[..., Outcome], tmp_path: Path
) -> None:
    uneven = {"data.partition": '"dirichlet"', "data.alpha": "0.001", "fleet.devices": "12"}
    held = json.loads(hasfl("data", write(tmp_path, uneven), "--json").out)["samples"]
    many = [name for name, counts in held.items() if sum(counts) > 1]
    assert 0 < len(many) < len(held)
    away = "".join(f'[[absence]]\ndevice = "{name}"\nfirst_round = 2\nlast_round = 9\n' for name in many)
    assert train(uneven, tables=away).code == 0
    assert len(rounds(tmp_path / "run")) == 4


def test_of_every_kind_of_note_the_first_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    made = simulation("sfl", unequal_fleet(), rounds=1)
    (record,) = made
    request = RunRequest(scenario_file=Path("a.toml"), text="", path=Path("run"), strategy="sfl", seed=0)
    with TrainingView() as view:
        view.started(request, made, None)
        for t, note in enumerate(("kept: no plan", "kept: none again", "no good plan", "no good plan")):
            view.recorded(replace(record, round=5 + t, notes=(note,)))
    told = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("plan of ")]
    assert told == ["sfl, seed 0: training", "round 5: kept: no plan", "round 7: no good plan"]


@pytest.mark.parametrize("wanted", ["0.05", "0.999999"])
def test_whether_the_goal_was_reached_is_told(train: Callable[..., Outcome], wanted: str) -> None:
    done = train({"stop.accuracy": wanted, "training.evaluate_every": "2"})
    assert ("hasfl reached 5 % on held-out samples after 2 rounds" in done.out) == (wanted == "0.05")
    assert ("hasfl used up its budget after 4 rounds" in done.out) == (wanted != "0.05")


def images(folder: Path, **arrays: Any) -> dict[str, str]:
    """Images like those of fashion-mnist in a file, and the scenario that trains on them."""
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (60, 12, 12), dtype=np.uint8), np.arange(60) % 3
    given = {"x_train": x, "y_train": y, "x_test": x[:9], "y_test": y[:9]} | arrays
    np.savez(folder / "images.npz", **given)
    return {"data.name": '"images.npz"', "data.folder": '"."'}


def test_images_of_ones_own_with_augmentation(train: Callable[..., Outcome], tmp_path: Path) -> None:
    assert train(images(tmp_path) | {"data.augment": "true"}).code == 0
    (tmp_path / "run").rename(tmp_path / "augmented")
    assert train(images(tmp_path)).code == 0
    losses = [[row["loss"] for row in rounds(tmp_path / name)] for name in ("run", "augmented")]
    assert losses[0] != losses[1]


def test_tokens_for_a_model_of_images(train: Callable[..., Outcome], tmp_path: Path) -> None:
    tokens = np.arange(60 * 64).reshape(60, 1, 8, 8)
    said = sentence(train(images(tmp_path, x_train=tokens, x_test=tokens[:9])))
    assert "images.npz" in said or "int64" in said


def test_a_scenario_says_what_is_served(hasfl: Hasfl, tmp_path: Path) -> None:
    """Four models come out of one training; two of them where nothing is said of norms."""
    runs: dict[tuple[str, str], tuple[list[float], bytes]] = {}
    for serve in ("mean", "last"):
        for calibrate in ("true", "false", ""):
            name = f"{serve}-{calibrate}"
            changes = {"training.serve": f'"{serve}"', "training.calibrate": calibrate}
            scenario = write(tmp_path, changes, name=name)
            assert hasfl("train", scenario, "--out", tmp_path, "--run", name, "--strategy", "sfl").code == 0
            losses = [row["loss"] for row in rounds(tmp_path / name)]
            runs[serve, calibrate] = (losses, (tmp_path / name / "model.safetensors").read_bytes())
    assert len({str(losses) for losses, _ in runs.values()}) == 1
    assert len({served for _, served in runs.values()}) == 4
    assert runs["mean", ""] == runs["mean", "true"]
    assert runs["last", ""] == runs["last", "false"]


def test_a_scenario_on_standard_input(hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is trained, or refused at once; but nothing else is trained in its place."""
    monkeypatch.setenv("HASFL_DATA", "/dev/null/none")
    monkeypatch.setattr(sys, "stdin", io.StringIO(write(tmp_path).read_text()))
    done = hasfl("train", "-", "--out", tmp_path / "runs")
    assert "cifar10" not in done.err
    assert done.code == 0 or sentence(done)


@pytest.mark.parametrize(
    ("name", "which", "changes"),
    [
        ("sfl", "test", {"training.serve": '"last"'}),
        ("hasfl", "test", {"training.serve": '"last"'}),
        ("sfl", "training", {"model.norm": '"none"', "training.evaluate_every": "20"}),
    ],
)
def test_a_loss_that_is_no_number(
    train: Callable[..., Outcome], tmp_path: Path, name: str, which: str, changes: dict[str, str]
) -> None:
    """Batch norms hide large weights in training, but not with the statistics that they keep."""
    changes = changes | {"training.learning_rate": "1e6", "stop.rounds": "20"}
    said = sentence(train(changes, "--strategy", name), code=1)
    assert f"the {which} loss is not a finite number any more" in said
    assert "lower the learning rate" in said
    recorded = rounds(tmp_path / "run")
    assert f"loss is not a finite number any more in round {len(recorded) + 1}:" in said
    assert all(np.isfinite(row["loss"]) for row in recorded)
    assert "result.json" not in files(tmp_path / "run")


@pytest.mark.parametrize("round", [None, 2, 3])  # not at all, in the midst of an interval, at its beginning
def test_training_goes_on_when_a_device_leaves(
    train: Callable[..., Outcome], tmp_path: Path, round: int | None
) -> None:
    """Even if those who stay could not reach the target by themselves."""
    away = f'[[absence]]\ndevice = "2"\nfirst_round = {round}\nlast_round = {round}\n' if round else ""
    done = train({"training.target": "0.21"}, tables=away + CONSTANTS)
    assert (done.code, len(rounds(tmp_path / "run"))) == (0, 4), done.err


@pytest.mark.parametrize("columns", [80, 120])
def test_a_live_line_says_all_that_matters(
    terminal: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """In the last round; then it says how training ended."""
    finish = TrainingView.finished

    def seen(view: TrainingView, reached: Any) -> None:
        view.progress.refresh()
        finish(view, reached)

    monkeypatch.setattr(TrainingView, "finished", seen)
    train = ("train", write(tmp_path), "--out", tmp_path, "--strategy", "rbs+rhams")
    lines = [line for line in terminal(*train, columns=columns) if "round 4" in line]
    last = rounds(tmp_path / "small-rbs+rhams-seed0")[-1]
    live = [line for line in lines if "loss" in line][-1]
    assert re.search(r"left \S*\d:\d\d", live)  # the time that is left
    assert f"{last['loss']:.3f}" in live
    for line in (live, lines[-1]):
        for what in ("rbs+rhams", f"{last['accuracy']:.1%}", format_seconds(last["clock"])):
            assert what in line
        assert "…" not in line
    assert lines[-1].rstrip().endswith("done")


@pytest.mark.parametrize("wanted", [None, "0.999999"])
def test_a_live_line_says_how_far_it_is_to_the_goal(
    terminal: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str | None
) -> None:
    """By the samples that decide; without such a goal, by the test set."""
    monkeypatch.setattr(TrainingView, "finished", lambda view, reached: None)  # the last live line stays
    changes = {"stop.accuracy": wanted} if wanted else {"data.held_out": "0.2"}
    train = ("train", write(tmp_path, changes), "--out", tmp_path, "--run", "run", "--strategy", "sfl")
    live = [line for line in terminal(*train) if "round 4" in line][-1]
    last = rounds(tmp_path / "run")[-1]
    goal = f"· accuracy {last['held_out_accuracy']:.1%} of 99.9999% ·"
    assert (goal if wanted else f"· accuracy {last['accuracy']:.1%} ·") in live


def test_a_dry_run_says_what_it_takes_and_trains_nothing(hasfl: Hasfl, tmp_path: Path) -> None:
    shown = hasfl("train", write(tmp_path), "--out", tmp_path / "runs", "--dry-run", "--strategy", "rbs+rms")
    assert (shown.code, "activations" in shown.out) == (0, True)
    printed = hasfl("train", write(tmp_path), "--out", tmp_path / "runs", "--dry-run", "--json")
    found = json.loads(printed.out)
    assert found["first"]["need"]["activations"] > 0
    assert found["largest"]["samples"] == 32 >= found["first"]["samples"]  # 4 devices, max_batch 8
    some = write(tmp_path, {"training.participation": "0.5"})
    largest = json.loads(hasfl("train", some, "--dry-run", "--json").out)["largest"]
    assert (largest["devices"], largest["samples"]) == (2, 16)  # that many take part at a time
    largest = json.loads(hasfl("train", some, "--dry-run", "--json", "--strategy", "sl").out)["largest"]
    assert (largest["devices"], largest["samples"]) == (1, 8)  # in turns
    assert not (tmp_path / "runs").exists()


def test_a_picture_of_the_plans(hasfl: Hasfl, tmp_path: Path) -> None:
    drawn = tmp_path / "plans.png"
    done = hasfl("train", write(tmp_path), "--out", tmp_path / "runs", "--picture", drawn)
    assert (done.code, drawn.read_bytes()[:4]) == (0, b"\x89PNG")
    said = sentence(
        hasfl("train", write(tmp_path), "--out", tmp_path / "more", "--picture", tmp_path / "plans.pdf")
    )
    assert "a picture is written as .png or .svg" in said
    assert not (tmp_path / "more").exists()


def test_a_dry_run_refuses_what_does_not_fit(
    hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hasfl.runs.dry_run.available_memory", lambda device: 0)
    said = sentence(hasfl("train", write(tmp_path), "--dry-run"))
    assert "GiB of memory, but 0.0 GiB are free: lower training.max_batch" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(hasfl: Hasfl, tmp_path: Path) -> None:
    said = sentence(hasfl("train", write(tmp_path), "--out", tmp_path / "runs", "--device", "cuda"))
    assert "torch finds no GPU here" in said
    assert not (tmp_path / "runs").exists()
