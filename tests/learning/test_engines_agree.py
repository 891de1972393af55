"""The reference engine and the simulated one: the same numbers for every model, optimiser and cut."""

import math

import pytest
import torch
from torch import nn

from hasfl.errors import OneValueError
from hasfl.learning import simulated_engine
from hasfl.learning.engine import LocalEngine
from hasfl.learning.reference_engine import ReferenceEngine
from hasfl.learning.simulated_engine import SimulatedEngine
from hasfl.models.layered_model import LayeredModel
from hasfl.plan import Plan
from tests.learning.models import CLASSES, FEATURES, MODELS, AsDouble, model
from tests.learning.trainings import (
    ENGINES,
    KNOBS,
    OPTIMIZERS,
    carry_out,
    job,
    largest_difference,
    snapshot,
    steady,
    timetable,
)

# Sums of some hundred products in another order, in float64, over nine rounds: about 1e3 · 1e-16. Adam
# divides a gradient of rounding errors alone by its ε: each step may be off by 0.01 · 1e-16 / 1e-3.
# With the usual ε, Adam enlarges errors more.
TOLERANCE = {"adam": 1e-10, "adamw": 1e-8, "adam with decay": 1e-8}
STEPPING = OPTIMIZERS | KNOBS
CASES = [
    *((name, "momentum") for name in MODELS),
    *((name, "adam") for name in ("plain", "batch norm 1d", "small-cnn batch", "dropout", "encoder")),
    *(("plain", stepping) for stepping in ("sgd", "everything", "adamw", "clip")),
    ("small-cnn batch", "adamw"),
    ("recurrent", "everything"),
    pytest.param("small-cnn batch", "everything", marks=pytest.mark.slow),
    *(pytest.param("recurrent", stepping, marks=pytest.mark.slow) for stepping in list(KNOBS)[3:]),
]


@pytest.mark.parametrize(("name", "optimizer"), CASES)
def test_engines_agree_after_every_round(name: str, optimizer: str) -> None:
    smallest = 2 if name == "batch norm 1d" else 1  # one value has no variance
    engines = [kind(job(model(name), STEPPING[optimizer])) for kind in (ReferenceEngine, SimulatedEngine)]
    tolerance = TOLERANCE.get(optimizer, 1e-12)
    steps = timetable(len(model(name)), smallest=smallest)
    assert len({step.order.plan.deepest_cut for step in steps if step.begins}) > 1
    assert any(len(step.order.devices) < 4 for step in steps)
    start = snapshot(engines[0])
    for losses in zip(*(carry_out(engine, steps) for engine in engines), strict=True):
        assert losses[0] == pytest.approx(losses[1], rel=tolerance)
        assert largest_difference(*map(snapshot, engines)) < tolerance
        one, other = (engine.evaluate() for engine in engines)
        assert one.accuracy == other.accuracy
        assert one.test_loss == pytest.approx(other.test_loss, rel=1e-6)  # summed in float32
    assert largest_difference(snapshot(engines[0]), start) > 1e-3


@pytest.mark.parametrize("name", ["plain", "recurrent", "small-cnn batch"])
def test_engines_agree_when_more_devices_and_layers_come(name: str) -> None:
    """Also where the first layer has no weights that would tell how many there is room for."""
    engines = [kind(job(model(name), OPTIMIZERS["momentum"])) for kind in (ReferenceEngine, SimulatedEngine)]
    plans = [Plan([2, 3], [1, 2]), Plan([1, 2, 2], [2, 1, 2]), Plan([2, 3, 1, 4], [3, 2, 1, 4])]
    steps = steady([plan for plan in plans for _ in range(2)], interval=2)
    for losses in zip(*(carry_out(engine, steps) for engine in engines), strict=True):
        assert losses[0] == pytest.approx(losses[1], rel=1e-12)
        assert largest_difference(*map(snapshot, engines)) < 1e-12


def test_engines_agree_where_layers_are_of_several_types() -> None:
    engines = []
    for kind in (ReferenceEngine, SimulatedEngine):
        torch.manual_seed(0)
        layers = {
            "narrow": nn.Linear(FEATURES, FEATURES),
            "wide": nn.Sequential(AsDouble(), nn.Linear(FEATURES, CLASSES, dtype=torch.float64)),
        }
        made = LayeredModel(layers, torch.empty(1, FEATURES))
        engines.append(kind(job(made, OPTIMIZERS["sgd"])))
    for losses in zip(*(carry_out(engine, timetable(2)) for engine in engines), strict=True):
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)  # one layer is in float32


@pytest.mark.parametrize("name", ["plain", "small-cnn batch", "token"])
def test_engines_agree_however_deep_the_private_part_is(name: str) -> None:
    """Federated learning holds every layer apart, centralised none."""
    layers = len(model(name))
    for depth in (0, layers):
        engines = [kind(job(model(name), OPTIMIZERS["adam"])) for kind in (ReferenceEngine, SimulatedEngine)]
        steps = timetable(layers)
        for losses in zip(*(carry_out(engine, steps, depth) for engine in engines), strict=True):
            assert losses[0] == pytest.approx(losses[1], rel=TOLERANCE["adam"])
        assert largest_difference(*map(snapshot, engines)) < TOLERANCE["adam"]


def norm_of_vectors(momentum: float | None) -> LayeredModel:
    """A batch norm with one value a channel in each sample. Without momentum, devices train in turn."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(FEATURES, momentum=momentum)
    layers = {"one": nn.Linear(FEATURES, FEATURES), "two": norm, "three": nn.Linear(FEATURES, CLASSES)}
    return LayeredModel(layers, torch.empty(1, FEATURES, dtype=torch.float64)).double()


@pytest.mark.parametrize("large", [False, True], ids=["small layers", "large layers"])
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("kind", ENGINES)
def test_one_value_a_channel_is_refused_in_a_private_batch_norm(
    kind: type[LocalEngine], momentum: float | None, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the same error whether layers run for all devices at once or for one after the other."""
    if large:
        monkeypatch.setattr(simulated_engine, "LARGE_LAYER", 0.0)
    for sizes in ([1, 1, 1], [3, 1, 4]):
        engine = kind(job(norm_of_vectors(momentum), OPTIMIZERS["sgd"]))
        with pytest.raises(OneValueError, match="batch norm"):
            list(carry_out(engine, steady([Plan(sizes, [1, 2, 1])], interval=1)))


@pytest.mark.parametrize("kind", ENGINES)
def test_one_sample_a_device_is_enough_for_a_common_batch_norm(kind: type[LocalEngine]) -> None:
    """It sees the samples of all devices; only where that is a single one, there is one value a channel."""
    engine = kind(job(norm_of_vectors(0.1), OPTIMIZERS["sgd"]))
    losses = list(carry_out(engine, steady([Plan([1, 1, 1], [1, 1, 1])], interval=1)))
    assert all(map(math.isfinite, losses))
    alone = kind(job(norm_of_vectors(0.1), OPTIMIZERS["sgd"]))
    with pytest.raises(OneValueError):
        list(carry_out(alone, steady([Plan([1], [1])], interval=1)))


@pytest.mark.parametrize("kind", ENGINES)
def test_one_sample_of_many_values_is_enough_for_a_batch_norm(kind: type[LocalEngine]) -> None:
    engine = kind(job(model("residual images"), OPTIMIZERS["sgd"]))
    losses = list(carry_out(engine, steady([Plan([1, 1, 1], [2, 1, 2])], interval=1)))
    assert all(map(math.isfinite, losses))
