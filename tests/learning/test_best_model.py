"""What is handed out is what is reported: the last served model, or the best one on held-out samples."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hasfl import Dataset, Goal, InputError, Serving, Settings
from hasfl.data.sources import load_dataset
from hasfl.learning.served_model import BestModel
from hasfl.learning.state import LayerState
from hasfl.record import RoundRecord
from hasfl.report.analysis import outcome
from hasfl.runs.build import Simulation
from hasfl.runs.files import read_toml
from hasfl.runs.scenario import Scenario
from hasfl.runs.task import task_of
from tests.cli.conftest import Hasfl
from tests.cli.conftest import hasfl as hasfl
from tests.learning.simulations import images, simulation, small_model, unequal_fleet
from tests.runs.scenarios import write

Model = dict[str, Tensor]
EVERY_ROUND = {"serve": "last", "evaluate_every": 1, "learning_rate": 0.8, "rounds": 12}


def same(one: Model, other: Model) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def with_models(made: Simulation) -> tuple[list[RoundRecord], list[Model]]:
    """The records of a training, and a copy of the served model after every round."""
    records, models = [], []
    for record in made:
        records.append(record)
        served = {
            f"{layer}.{name}": tensor.clone()
            for layer, state in zip(made.engine.state.names, made.engine.served(), strict=True)
            for name, tensor in (state.weights | state.buffers).items()
        }
        models.append(served)
    return records, models


def best_of(records: list[RoundRecord]) -> int:
    """The index of the first evaluation with the highest accuracy, and of those with the lowest loss."""
    best = 0
    for i, record in enumerate(records):
        assert record.held_out_accuracy is not None
        assert record.held_out_loss is not None
        ahead = records[best]
        assert ahead.held_out_accuracy is not None
        assert ahead.held_out_loss is not None
        if record.held_out_accuracy > ahead.held_out_accuracy or (
            record.held_out_accuracy == ahead.held_out_accuracy and record.held_out_loss < ahead.held_out_loss
        ):
            best = i
    return best


@pytest.mark.parametrize("engine", ["reference", "simulated"])
def test_the_best_evaluation_is_handed_out(engine: str) -> None:
    made = simulation("sfl", unequal_fleet(), keep="best", engine=engine, **EVERY_ROUND)
    records, models = with_models(made)
    best = best_of(records)
    assert 0 < best < len(records) - 1  # neither the first nor the last, or this would prove nothing
    assert same(made.engine.model(), models[best])
    reached = outcome("sfl", records)
    assert reached.saved_round == records[best].round
    assert reached.accuracy == records[best].accuracy
    assert reached.held_out_accuracy == records[best].held_out_accuracy
    assert [record.kept for record in records] == [
        best_of(records[: i + 1]) == i for i in range(len(records))
    ]
    plain, data, held_out = small_model(), images(), made.engine.job.data.held_out
    made.load_into(plain)  # plain torch finds it as good
    assert held_out is not None
    assert accuracy(plain, data.x_test, data.y_test) == reached.accuracy
    assert accuracy(plain, data.x_train[held_out], data.y_train[held_out]) == reached.held_out_accuracy


def accuracy(module: torch.nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((module.eval()(x).argmax(dim=1) == y).double().mean())


def _without_clock(row: dict[str, Any]) -> dict[str, Any]:
    timed = ("seconds", "clock", "phases", "bits", "forecast")
    return {name: value for name, value in row.items() if name not in timed}


@pytest.mark.parametrize("serve", ["mean", "last"])
def test_training_does_not_notice(serve: str) -> None:
    """But for the clock: evaluations that choose the model are on it."""
    settings = EVERY_ROUND | {"serve": serve, "held_out": 0.2}
    kept, final = (simulation("sfl", unequal_fleet(), keep=keep, **settings) for keep in ("best", "final"))
    rows = [[record.as_json() for record in made] for made in (kept, final)]
    flags = [[row.pop("kept") for row in each] for each in rows]
    assert all(flags[1])
    assert not all(flags[0])
    assert [_without_clock(row) for row in rows[0]] == [_without_clock(row) for row in rows[1]]
    for judged, reported in zip(*rows, strict=True):
        extra = {name: s for name, s in judged["phases"].items() if name not in reported["phases"]}
        assert set(extra) == {"evaluation_passes", "evaluation_exchange"}
        assert {name: judged["phases"][name] for name in reported["phases"]} == reported["phases"]
        assert judged["seconds"] == pytest.approx(reported["seconds"] + sum(extra.values()), rel=1e-12)
    assert not final.engine.best.states


def test_rounds_without_an_evaluation_keep_nothing() -> None:
    records = list(simulation("sfl", unequal_fleet(), **EVERY_ROUND | {"evaluate_every": 4}))
    assert [record.round for record in records if record.kept] == [4, 8, 12]
    assert outcome("sfl", records).saved_round == 12


def test_the_test_set_does_not_choose() -> None:
    """With other samples in the test set, the same model is handed out."""
    data = images()
    other = Dataset(
        name="other", x_train=data.x_train, y_train=data.y_train, x_test=-data.x_test, y_test=2 - data.y_test
    )
    models = []
    for each in (data, other):
        made = simulation("sfl", unequal_fleet(), data=each, keep="best", **EVERY_ROUND)
        list(made)
        models.append(made.model())
    assert same(*models)


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.5, 0.9]), st.sampled_from([0.2, 0.4])), min_size=1))
def test_ties_go_to_the_lower_loss_and_then_to_the_first(evaluations: list[tuple[float, float]]) -> None:
    best = BestModel()
    for i, (score, loss) in enumerate(evaluations):
        best.take([LayerState({"w": torch.tensor(float(i))}, {}, {})], score, loss)
    ranked = sorted(range(len(evaluations)), key=lambda i: (-evaluations[i][0], evaluations[i][1], i))
    assert int(best.states[0].weights["w"]) == ranked[0]


def test_a_model_that_has_diverged_is_never_the_best() -> None:
    """Its outputs are NaN, and still the first class counts as its answer."""
    best = BestModel()
    model = [LayerState({"w": torch.tensor(1.0)}, {}, {})]
    assert not best.take(model, 0.9, float("nan"))
    assert not best.take(model, 0.9, float("inf"))
    assert not best.states
    assert best.take(model, 0.1, 3.0)
    assert not best.take(model, 0.9, float("nan"))
    assert best.accuracy == 0.1


def test_samples_are_held_out_for_it() -> None:
    rounds = Goal(rounds=5)
    assert Settings(goal=rounds).held_out_share == 0
    assert Settings(goal=rounds, serving=Serving(keep="best")).held_out_share == 0.1
    assert Settings(goal=rounds, serving=Serving(keep="best"), held_out=0.3).held_out_share == 0.3
    with pytest.raises(InputError, match="held_out must be above 0 where the best model is kept"):
        Settings(goal=rounds, serving=Serving(keep="best"), held_out=0.0)
    with pytest.raises(InputError, match="no device has two samples"):
        simulation("b=1+cut=2", unequal_fleet(), shares=[np.array([i]) for i in range(4)], keep="best")


@pytest.mark.parametrize("overlap", [False, True])
def test_accuracies_of_devices_are_those_of_a_loop(overlap: bool) -> None:
    """Each on its own held-out samples; a device without any does not count."""
    shares = [np.arange(30), np.arange(30, 31), np.arange(31, 60), np.arange(60, 90)]
    if overlap:
        shares[2] = np.arange(10, 60)
    made = simulation(
        "b=2+cut=2", unequal_fleet(), shares=shares, learning_rate=0.1, rounds=6, held_out=0.3, serve="last"
    )
    *_, last = made
    plain, data = small_model(), made.engine.job.data
    made.load_into(plain)
    assert data.held_out is not None
    put_aside = set(data.held_out.tolist())
    own = [[i for i in share.tolist() if i in put_aside] for share in shares]
    assert [len(each) for each in own][1] == 0
    found = [accuracy(plain, data.x[each], data.y[each]) for each in own if each]
    assert len(found) == 3
    assert last.mean_device_accuracy == pytest.approx(sum(found) / 3, rel=1e-12)
    assert last.worst_device_accuracy == min(found)
    assert min(found) < max(found)


def test_the_saved_file_is_what_the_command_reports(hasfl: Hasfl, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    changes = {
        "training.keep": '"best"',
        "training.learning_rate": "0.4",
        "training.evaluate_every": "1",
        "training.serve": '"last"',
        "stop.rounds": "12",
    }
    path = write(tmp_path, changes)
    result: dict[str, Any] = json.loads(
        hasfl("train", str(path), "--run", "one", "--out", str(tmp_path), "--json").out
    )
    rows = [json.loads(line) for line in (tmp_path / "one" / "rounds.jsonl").read_text().splitlines()]
    assert result["best_accuracy"] == max(row["accuracy"] for row in rows)
    assert result["held_out_accuracy"] == max(row["held_out_accuracy"] for row in rows)
    plain = Simulation.of(task_of(read_toml(str(path), Scenario), folder=tmp_path)).engine.job.model
    plain.load_state_dict(safetensors.load_file(tmp_path / "one" / "model.safetensors"))
    data = load_dataset("digits")
    assert accuracy(plain, data.x_test, data.y_test) == pytest.approx(result["accuracy"])
    told = hasfl("train", str(path), "--run", "one", "--out", str(tmp_path), "--resume").out
    assert f"the saved model, of round {result['saved_round']}, has {result['accuracy']:.2%}" in told
    assert f"{result['worst_device_accuracy']:.2%} on the worst device" in told
