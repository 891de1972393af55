"""Training by devices and servers over TLS, beside the simulation of the same scenario."""

from collections.abc import Sequence
from copy import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from hasfl.deployment.meeting import Meeting
from hasfl.models.layered_model import LayeredModel
from hasfl.record import RoundRecord
from hasfl.runs.build import Simulation
from hasfl.runs.files import parse_toml
from hasfl.runs.scenario import Scenario
from hasfl.runs.store import RunFolder
from hasfl.runs.task import Task, model_of, settings_of, shared_data
from tests.deployment.fleets import Stock, fleet_of
from tests.lanes import quick_then_slow

# Batch sizes and cuts are drawn at random, for each interval anew: plans do not depend on how fast machines
# are. The model has batch norms. Devices hold out samples, so that evaluations have something to judge.
SCENARIO = """seed = 5
[data]
name = "digits"
held_out = 0.1
[fleet]
devices = 4
[training]
strategy = "rbs+rms"
interval = 3
learning_rate = 0.05
optimizer = "momentum"
clip = 0.5
max_batch = 16
evaluate_every = 3
participation = {participation}
keep = "best"
[stop]
rounds = {rounds}
"""


def scenario_of(rounds: int, participation: float) -> Scenario:
    text = SCENARIO.format(rounds=rounds, participation=participation)
    return parse_toml(text, Scenario, "scenario")


def stock_of(scenario: Scenario, dtype: torch.dtype, folder: Path) -> Stock:
    data, shares = shared_data(scenario, scenario.draw().names, folder=folder)
    data = copy(data)
    for name in ("x_train", "x_test"):
        object.__setattr__(data, name, getattr(data, name).to(dtype))
    return Stock(data, [torch.from_numpy(np.asarray(share)) for share in shares])


def simulated(scenario: Scenario, stock: Stock, folder: Path) -> tuple[Simulation, list[RoundRecord]]:
    """The scenario in a simulation, in the type of the samples."""
    made = model_of(scenario, stock.data, folder=folder).to(stock.data.x_train.dtype)
    model = LayeredModel(dict(made.layers.items()), stock.data.x_train[:1])
    settings = settings_of(scenario, folder=folder)
    shares = [share.numpy() for share in stock.shares]
    run = Simulation.of(Task.of(model, stock.data, scenario.draw(), settings, shares))
    return run, list(run)


def records_of(path: Path) -> list[RoundRecord]:
    with RunFolder.open(path) as folder:
        return folder.records()


def require_same(
    found: Sequence[RoundRecord], expected: Sequence[RoundRecord], path: Path, made: Simulation, close: float
) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.devices.tolist() == other.devices.tolist()
        assert one.plan.batch_sizes.tolist() == other.plan.batch_sizes.tolist()
        assert one.plan.cuts.tolist() == other.plan.cuts.tolist()
        assert one.loss == pytest.approx(other.loss, rel=close)
        assert one.measured is not None
        assert not one.measured.dropped
        for name in ("accuracy", "held_out_accuracy", "mean_device_accuracy", "worst_device_accuracy"):
            assert getattr(one, name) == getattr(other, name), name
        for name in ("test_loss", "held_out_loss"):
            loss = getattr(other, name)
            assert getattr(one, name) == (None if loss is None else pytest.approx(loss, rel=max(close, 1e-6)))
        assert one.kept == other.kept
    arrays = load_file(path / "model.safetensors")
    weights = made.model()
    assert arrays.keys() == weights.keys()
    for name, array in arrays.items():
        np.testing.assert_allclose(array, weights[name].numpy(), rtol=close, atol=close, err_msg=name)


# In float64, sums of some hundred products in another order differ by 1e3 · 1e-16 in a round; nine rounds
# enlarge that tenfold. In float32 the unit is 6e-8 instead of 1e-16, and nothing else is different.
CLOSE = {torch.float64: 1e-12, torch.float32: 6e-4}


# In float64 with all devices, a resumed training is compared below.
CASES = [(torch.float64, 0.5), (torch.float32, 1.0)]


@pytest.mark.parametrize("case", quick_then_slow(CASES), ids=str)
def test_a_fleet_trains_what_a_simulation_trains(
    keys: Path, tmp_path: Path, case: tuple[torch.dtype, float]
) -> None:
    """Moving cuts, ragged batches, momentum, clipping and batch norms, over three intervals."""
    dtype, participation = case
    scenario = scenario_of(9, participation)
    stock = stock_of(scenario, dtype, tmp_path)
    made, expected = simulated(scenario, stock, tmp_path)
    assert len({record.plan.deepest_cut for record in expected}) > 1
    file = tmp_path / "scenario.toml"
    file.write_text(SCENARIO.format(rounds=9, participation=participation))
    with fleet_of(keys, tmp_path, stock) as fleet:
        fleet.train(file, tmp_path / "run")
    require_same(records_of(tmp_path / "run"), expected, tmp_path / "run", made, CLOSE[dtype])


def test_a_resumed_fleet_trains_what_an_uninterrupted_one_trains(keys: Path, tmp_path: Path) -> None:
    """Every process is a new one, and the edge server was one interval ahead of the fed server."""
    stock = stock_of(scenario_of(9, 1.0), torch.float64, tmp_path)
    made, expected = simulated(scenario_of(9, 1.0), stock, tmp_path)
    for rounds in (6, 9):
        file = tmp_path / f"scenario{rounds}.toml"
        file.write_text(SCENARIO.format(rounds=rounds, participation=1.0))
        with fleet_of(keys, tmp_path, stock) as fleet:
            fleet.train(file, tmp_path / "run", resume=rounds == 9)
    require_same(records_of(tmp_path / "run"), expected, tmp_path / "run", made, CLOSE[torch.float64])


GUESSING = """seed = 5
[data]
name = "digits"
partition = "{partition}"
[fleet]
devices = 4
flops = ["200 MFLOPS", "4 GFLOPS"]
up_rate = ["5 Mbps", "50 Mbps"]
[training]
strategy = "hasfl"
interval = 3
learning_rate = 0.05
max_batch = 32
[stop]
rounds = 3
"""


def test_the_first_plan_knows_how_unlike_labels_are_as_in_a_simulation(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the fleet is the same. With labels that are less unlike, the plan is another one."""
    plans = []
    for partition in ("iid", "shards"):
        text, folder = GUESSING.format(partition=partition), tmp_path / partition
        folder.mkdir()
        scenario = parse_toml(text, Scenario, "scenario")
        stock = stock_of(scenario, torch.float32, folder)
        _, expected = simulated(scenario, stock, folder)
        measured = scenario.draw()
        monkeypatch.setattr(Meeting, "_fleet", lambda meeting, measured=measured: measured)
        file = folder / "scenario.toml"
        file.write_text(text)
        with fleet_of(keys, folder, stock) as fleet:
            fleet.train(file, folder / "run")
        found = records_of(folder / "run")
        assert found[0].plan == expected[0].plan
        assert [one.loss for one in found] == pytest.approx([each.loss for each in expected], rel=6e-4)
        plans.append(found[0].plan)
    assert plans[0] != plans[1]
