"""The served model: the running mean against a naive one, and training, which must not notice it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from hasfl.data.dataset import Dataset
from hasfl.errors import InputError
from hasfl.goal import Goal
from hasfl.learning.engine import LocalEngine
from hasfl.learning.served_model import DECAY, RunningMean
from hasfl.learning.state import LayerState, whole_model
from hasfl.models.layered_model import LayeredModel
from hasfl.record import RoundRecord
from hasfl.runs.build import Simulation
from hasfl.settings import Serving
from tests.lanes import quick_then_slow
from tests.learning.models import AsDouble, model
from tests.learning.simulations import CLASSES, images, run, simulation, unequal_fleet
from tests.learning.trainings import (
    ENGINES,
    LAST,
    OPTIMIZERS,
    carry_out,
    job,
    timetable,
)

UNMEASURED = Serving(serve="mean", calibrate=False)
TOLERANCE = 1e-12  # float64, sums of a few models in another order
Arrays = dict[str, NDArray[Any]]


def naive_mean(models: list[Arrays]) -> Arrays:
    """Σ_j s_j w_j, where the j-th of K models has the share a_j Π_{l>j} (1 − a_l) with a_k = 9/(k + 8)."""
    a = [9 / (k + 8) for k in range(1, len(models) + 1)]
    shares = [a[j] * np.prod([1 - later for later in a[j + 1 :]]) for j in range(len(models))]
    assert sum(shares) == pytest.approx(1)
    return {
        name: sum(share * each[name] for share, each in zip(shares, models, strict=True))
        if newest.dtype.kind == "f"
        else newest
        for name, newest in models[-1].items()
    }


def arrays(engine: LocalEngine, states: list[LayerState]) -> Arrays:
    return {name: tensor.numpy().copy() for name, tensor in whole_model(engine.state.names, states).items()}


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("name", ["plain", "frozen", "parametrised", "token", "residual images"])
def test_the_running_mean_is_the_naive_one(kind: type[LocalEngine], name: str) -> None:
    """… after every aggregation, and within intervals it stays; before the first it is the virtual mean."""
    engine = kind(job(model(name), OPTIMIZERS["momentum"], serving=UNMEASURED))
    steps = timetable(len(model(name)), intervals=12, interval=2)
    aggregated: list[Arrays] = []
    for step, _ in zip(steps, carry_out(engine, steps), strict=True):
        if step.ends:
            aggregated.append(arrays(engine, engine.state.shared))
        expected = naive_mean(aggregated) if aggregated else arrays(engine, engine.state.mean())
        found = {key: tensor.numpy() for key, tensor in engine.model().items()}
        assert found.keys() == expected.keys()
        for key, array in found.items():
            np.testing.assert_allclose(array, expected[key], rtol=TOLERANCE, atol=TOLERANCE)
    assert engine.running.count == 12
    last = arrays(engine, engine.state.mean())
    assert any(not np.allclose(array, last[key], atol=1e-4) for key, array in expected.items())


@pytest.mark.parametrize("kind", ENGINES)
def test_the_last_model_is_the_mean_of_all_parts_as_they_are(kind: type[LocalEngine]) -> None:
    engine = kind(job(model("small-cnn batch"), OPTIMIZERS["sgd"], serving=LAST))
    for _ in carry_out(engine, timetable(5)):
        replicas = [state.weights | state.buffers for state in engine.state.private]
        common = [state.weights | state.buffers for state in engine.state.common]
        for layer, tensors in zip(engine.state.names, [*replicas, *common], strict=True):
            for name, tensor in tensors.items():
                apart = tensor.double().mean(0) if layer in engine.state.names[: len(replicas)] else tensor
                apart = apart if tensor.is_floating_point() else apart.long()
                torch.testing.assert_close(engine.model()[f"{layer}.{name}"], apart, rtol=0, atol=TOLERANCE)
    assert engine.running.states == []


def layer_of(**buffers: torch.Tensor) -> LayerState:
    return LayerState({}, buffers, {})


def test_what_does_not_change_stays_to_the_last_bit() -> None:
    """Masks too, which hold infinite numbers."""
    weight = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    mask = torch.full((3, 3), -torch.inf).triu(1)
    mean = RunningMean()
    for _ in range(50):
        mean.take([layer_of(frozen=weight, mask=mask)])
    assert torch.equal(mean.states[0].buffers["frozen"], weight)
    assert torch.equal(mean.states[0].buffers["mask"], mask)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64])
def test_what_is_counted_is_taken_from_the_last(dtype: torch.dtype) -> None:
    mean = RunningMean()
    for number in (0, 3, 0, 1):
        newest = torch.tensor([number, 1]).to(dtype)
        mean.take([layer_of(counter=newest)])
        assert torch.equal(mean.states[0].buffers["counter"], newest)
        assert mean.states[0].buffers["counter"].dtype == dtype


def test_what_is_averaged_is_a_copy_without_the_optimisers_slots() -> None:
    weight = torch.ones(2, dtype=torch.complex64)
    given = LayerState({"w": weight}, {}, {"w": {"momentum": torch.ones(2)}})
    mean = RunningMean()
    for value in (2, 4):
        weight.fill_(value)
        mean.take([given])
    assert mean.states[0].slots == {}
    torch.testing.assert_close(mean.states[0].weights["w"], torch.full((2,), 2 + 0.9 * 2 + 0j))


def test_the_window_is_a_ninth_of_training() -> None:
    """… so that the mean age of what is served is a tenth: (K − 1)/10 aggregations, whatever K is."""
    mean_age = 1 / (DECAY + 2)  # of the models in the mean, as a share of training
    assert mean_age == 0.1
    for count in (5, 60, 500):
        mean = RunningMean()
        for k in range(1, count + 1):
            mean.take([layer_of(age=torch.tensor(float(k), dtype=torch.float64))])
        assert count - float(mean.states[0].buffers["age"]) == pytest.approx((count - 1) * mean_age)


def noisy_model() -> LayeredModel:
    """Batch norms and dropout in private and in common layers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layers = {
            "conv1": nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
            "conv2": nn.Sequential(nn.Conv2d(4, 4, 3, stride=2), nn.Dropout(0.3), nn.ReLU()),
            "fc1": nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8, momentum=0.5)),
            "fc2": nn.Sequential(nn.Dropout(0.2), nn.Linear(8, CLASSES)),
        }
        made = LayeredModel(layers, torch.empty(1, 1, 8, 8)).double()
    made.layers["conv1"].insert(0, AsDouble())
    return made


def done(strategy: str, engine: str, **serving: Any) -> tuple[Simulation, list[RoundRecord]]:
    made = simulation(
        strategy, model=noisy_model(), rounds=13, engine=engine, optimizer="momentum", **serving
    )
    return made, list(made.training.rounds())


@pytest.mark.parametrize("engine", quick_then_slow(["simulated", "reference"]))
@pytest.mark.parametrize("strategy", ["b=4+rms", "fl", "sl:b=4", "cl"])
def test_training_does_not_notice_what_is_served(strategy: str, engine: str) -> None:
    """Not a bit of it, however it is served, though rounds are evaluated all the time."""
    plain, expected = done(strategy, engine, serve="last", evaluate_every=13)
    trained = plain.engine.state.saved()
    for serve, calibrate in (("last", True), ("mean", False), ("mean", True)):
        made, records = done(strategy, engine, serve=serve, calibrate=calibrate, evaluate_every=1)
        assert [record.loss for record in records] == [record.loss for record in expected]
        assert [record.plan for record in records] == [record.plan for record in expected]
        found = made.engine.state.saved()
        assert found.keys() == trained.keys()
        assert all(torch.equal(tensor, trained[name]) for name, tensor in found.items())
        assert records[-1].test_loss != expected[-1].test_loss


def test_the_mean_changes_hands_when_the_depth_does() -> None:
    """Its weights alone, though the optimiser's slots travel with the layers themselves."""
    last, mean = (done("b=4+rms", "simulated", serve=serve) for serve in ("last", "mean"))
    profile = last[0].training.clock.profile
    upto = [0.0, *profile.param_bits_upto]
    depths = [int(record.plan.cuts.max()) for record in last[1][::3]]  # where an interval begins
    moved = set()
    for without, with_mean in zip(last[1], mean[1], strict=True):
        extra = {arrow: with_mean.bits[arrow] - bits for arrow, bits in without.bits.items()}
        expected = dict.fromkeys(without.bits, 0.0)
        if without.aggregated:
            before, after = depths[without.round // 3 - 1 : without.round // 3 + 1]
            moved.add(np.sign(after - before))
            expected["server_submodel_upload"] = max(upto[after] - upto[before], 0.0)
            expected["server_submodel_download"] = max(upto[before] - upto[after], 0.0)
        assert extra == expected
        assert with_mean.seconds >= without.seconds
    assert moved >= {1, -1}


def test_norms_are_measured_where_the_mean_is_served_unless_it_is_said() -> None:
    assert Serving().calibrates
    assert not Serving(serve="last").calibrates
    assert Serving(serve="last", calibrate=True).calibrates
    assert not replace(Serving(), calibrate=False).calibrates


@pytest.mark.parametrize("engine", ["simulated", "reference"])
@pytest.mark.usefixtures("estimates_come_soon")
def test_plans_losses_and_weights_do_not_depend_on_the_served_model(engine: str) -> None:
    """Also where plans follow estimates of constants: after every round, to the last bit."""
    mean, last = (
        simulation("hasfl", model=noisy_model(), rounds=15, engine=engine, serve=serve, constants="paper")
        for serve in ("mean", "last")
    )
    records = []
    for one, other in zip(mean, last, strict=True):
        assert (one.loss, one.plan, one.constants) == (other.loss, other.plan, other.constants)
        assert one.devices.tolist() == other.devices.tolist()
        served_by_mean, served_by_last = mean.engine.state.saved(), last.engine.state.saved()
        assert served_by_mean.keys() == served_by_last.keys()
        assert all(torch.equal(tensor, served_by_last[name]) for name, tensor in served_by_mean.items())
        records.append(one)
    assert sum(record.constants is not None for record in records) >= 2, "nothing was estimated"
    assert len({record.plan for record in records}) > 3, "plans never changed"


@pytest.mark.parametrize("engine", ["simulated", "reference"])
def test_the_last_model_is_scored_as_where_it_is_served(engine: str) -> None:
    """… and scoring it changes nothing else. Data with held-out samples and without."""
    for held_out in (0.0, 0.2):
        options: dict[str, Any] = {
            "model": noisy_model(), "rounds": 14, "engine": engine, "evaluate_every": 4, "held_out": held_out,
        }  # fmt: skip
        scored, plain, last = (
            list(simulation("rbs+rms", **options, **serving))
            for serving in ({"score_last": True}, {}, {"serve": "last"})
        )
        assert [each.last_accuracy for each in scored] == [each.accuracy for each in last]
        assert any(each.last_accuracy != each.accuracy for each in scored), "the mean is another model"
        for one, other in zip(scored, plain, strict=True):
            assert "last_accuracy" not in other.as_json()
            assert replace(one, last_accuracy=None).as_json() == other.as_json()
            assert RoundRecord.from_json(one.as_json()).last_accuracy == one.last_accuracy


def test_scoring_the_last_model_is_refused_where_it_is_served() -> None:
    with pytest.raises(InputError, match="score_last has no effect with serve = 'last': leave it out"):
        Serving(serve="last", score_last=True)
    with pytest.raises(InputError, match="score_last must be true or false, got 'yes'"):
        Serving(score_last="yes")


def learnable(permuted: bool) -> Dataset:
    """Images of three classes that a small model learns to tell; the test labels may be shuffled."""
    noise = images(train=200, test=60)
    x_train, x_test = (
        x + 0.4 * (y - 1.0).view(-1, 1, 1, 1)
        for x, y in ((noise.x_train, noise.y_train), (noise.x_test, noise.y_test))
    )
    order = torch.randperm(len(noise.y_test), generator=torch.Generator().manual_seed(1))
    y_test = noise.y_test[order] if permuted else noise.y_test
    return replace(noise, x_train=x_train, x_test=x_test, y_test=y_test)


def would_end(goal: Goal, accuracies: list[float], losses: list[float]) -> int | None:
    """The number of the first evaluation that reaches the goal; None if none does."""
    reached = (n for n in range(1, len(losses) + 1) if goal.reached(accuracies[:n], losses[:n]))
    return next(reached, None)


@pytest.mark.parametrize(
    ("goal", "strategy"),
    [
        (Goal(accuracy=0.6, rounds=60), "hasfl"),
        (Goal(loss=0.95, rounds=60), "b=2+cut=1"),
        (Goal(converged=True, rounds=60), "b=2+cut=1"),
    ],
    ids=str,
)
def test_the_test_set_decides_nothing(goal: Goal, strategy: str) -> None:
    """With other test labels, training is the same and only the reported test results differ."""
    settings: dict[str, Any] = {"goal": goal, "evaluate_every": 3, "learning_rate": 0.1}
    fleet = unequal_fleet()
    records, others = (run(strategy, fleet, data=learnable(mixed), **settings) for mixed in (False, True))
    assert 3 < len(records) == len(others) < 60, "the goal ends training, not the number of rounds"
    for one, other in zip(records, others, strict=True):
        mine, theirs = one.as_json(), other.as_json()
        for row in (mine, theirs):
            del row["accuracy"], row["test_loss"]
        assert mine == theirs
    accuracies = [record.accuracy for record in others if record.accuracy is not None]
    losses = [record.test_loss for record in others if record.test_loss is not None]
    assert losses != [record.test_loss for record in records if record.test_loss is not None]
    assert would_end(goal, accuracies, losses) != len(losses), "test labels would have decided the same"
