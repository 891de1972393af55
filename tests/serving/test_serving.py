"""The served model: the running mean against a naive one, and training, which must not notice it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from hasfl.engines.local import LocalEngine
from hasfl.networks import LayeredModel
from hasfl.record import RoundRecord
from hasfl.runner.simulation import Simulation
from hasfl.serving.running_mean import MEAN_AGE, WAYS, RunningMean
from hasfl.settings import Serving
from hasfl.state.layer_state import LayerState
from hasfl.state.split_state import whole_model
from tests.engines.models import AsDouble, model
from tests.engines.simulations import CLASSES, simulation
from tests.engines.trainings import (
    ENGINES,
    LAST,
    OPTIMIZERS,
    carry_out,
    job,
    largest_difference,
    snapshot,
    timetable,
)

UNMEASURED = Serving("mean", calibrate=False)
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
    assert MEAN_AGE == 0.1
    for count in (5, 60, 500):
        mean = RunningMean()
        for k in range(1, count + 1):
            mean.take([layer_of(age=torch.tensor(float(k), dtype=torch.float64))])
        assert count - float(mean.states[0].buffers["age"]) == pytest.approx((count - 1) * MEAN_AGE)


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


@pytest.mark.parametrize("engine", ["simulated", "reference"])
@pytest.mark.parametrize("strategy", ["b=4+hams", "b=4+rms", "fl", "sl:b=4", "cl"])
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
    assert not Serving("last").calibrates
    assert Serving("last", calibrate=True).calibrates
    assert not replace(Serving(), calibrate=False).calibrates


@pytest.mark.parametrize("calibrate", [False, True])
@pytest.mark.parametrize("kind", ENGINES)
def test_a_mean_that_is_watched_is_the_one_that_would_be_served(
    kind: type[LocalEngine], calibrate: bool
) -> None:
    """And training goes on as if nobody looked."""
    engines = [
        kind(job(model("residual images"), OPTIMIZERS["momentum"], serving=serving))
        for serving in (
            Serving("last", calibrate, watch=True),
            Serving("mean", calibrate),
            Serving("last", calibrate),
        )
    ]
    watching, serving, plain = engines
    for step in timetable(len(watching.layers), intervals=4, smallest=2):
        for engine in engines:
            list(carry_out(engine, [step]))
        mean = watching.mean_accuracy()
        assert (mean is None) == (step.order.round < 3)
        if mean is not None:
            assert mean == serving.evaluate()[0]
        assert watching.evaluate() == plain.evaluate()
        assert serving.mean_accuracy() is plain.mean_accuracy() is None
        assert largest_difference(snapshot(watching), snapshot(plain)) == 0


def test_the_mean_is_watched_where_it_is_asked_for_and_not_served() -> None:
    assert [Serving(serve, watch=watch).watches for serve in WAYS for watch in (False, True)] == [
        False, False, False, True,
    ]  # fmt: skip
    assert [Serving(serve, watch=watch).averages for serve in WAYS for watch in (False, True)] == [
        True, True, False, True,
    ]  # fmt: skip
