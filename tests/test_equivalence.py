"""Whatever the strategy: the reference engine and the simulated one write the same records."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hasfl.data.dataset import Dataset
from hasfl.models.layered_model import LayeredModel
from hasfl.planning.strategies.catalogue import STRATEGIES
from hasfl.record import RoundRecord
from tests.learning.models import AsDouble, Attention, MeanOverTokens, Residual
from tests.learning.simulations import CLASSES, run, simulation

# Both engines work in float64 on the same samples; sums are taken in another order, over twelve rounds. What
# is summed up for an evaluation is a float32, and Adam divides rounding errors by 1e-8.
TOLERANCE, TEST_TOLERANCE, ADAM_TOLERANCE, CONSTANTS_TOLERANCE = 1e-11, 1e-6, 1e-8, 1e-9
ROUNDS = 12  # four aggregations
STAYING = {"fl", "sl", "sfl", "cl"}  # strategies whose cuts never move


def assert_same(one: Sequence[RoundRecord], other: Sequence[RoundRecord], tolerance: float) -> None:
    """Field by field: all that does not come out of the model is the same to the last bit."""
    assert len(one) == len(other) == ROUNDS
    for left, right in zip(one, other, strict=True):
        found, expected = left.as_json(), right.as_json()
        assert found.pop("loss") == pytest.approx(expected.pop("loss"), rel=tolerance)
        tested = found.pop("test_loss"), expected.pop("test_loss")
        assert tested[0] == (tested[1] and pytest.approx(tested[1], rel=TEST_TOLERANCE))
        assert_same_constants(found.pop("constants"), expected.pop("constants"))
        assert found == expected


def assert_same_constants(one: dict[str, Any] | None, other: dict[str, Any] | None) -> None:
    """They come out of the model, as small differences of its gradients."""
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert (value is None) == (other[name] is None), name
            if value is not None:
                np.testing.assert_allclose(value, other[name], rtol=CONSTANTS_TOLERANCE, err_msg=name)


@pytest.mark.usefixtures("estimates_come_soon")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy(strategy: str) -> None:
    found, expected = (run(strategy, engine=engine) for engine in ("simulated", "reference"))
    assert_same(found, expected, TOLERANCE)


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name not in STAYING])
def test_the_world_above_is_an_eventful_one(strategy: str) -> None:
    """Cuts move, batches change, a device leaves within an interval, and one comes back."""
    records = run(strategy)
    cuts = {pair for record in records for pair in zip(record.devices, record.plan.cuts, strict=True)}
    assert len(cuts) > 4, "cuts never moved"
    batches = {tuple(record.plan.batch_sizes) for record in records}
    assert len(batches) > 2, "batches never changed"
    there = [len(record.devices) for record in records]
    assert any(there[t] < there[t - 1] for t in range(1, ROUNDS) if t % 3), "nobody left within an interval"
    back = [set(after.devices) - set(before.devices) for before, after in itertools.pairwise(records)]
    assert any(back), "nobody came back"
    assert all(not who for t, who in enumerate(back, start=1) if t % 3), "one came back within an interval"


class Words(nn.Module):
    """Tokens as vectors of float64."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.Embedding(9, 4, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.vectors(x)


def token_model() -> LayeredModel:
    layers = {
        "words": Words(),
        "attention": Attention(4),
        "residual": nn.Sequential(Residual(4), nn.Dropout(0.2)),
        "head": nn.Sequential(MeanOverTokens(), nn.Linear(4, CLASSES)),
    }
    return LayeredModel(layers, torch.zeros(1, 5, dtype=torch.int64)).double()


def token_data() -> Dataset:
    generator = torch.Generator().manual_seed(4)
    x = torch.randint(0, 9, (100, 5), generator=generator)
    y = x.sum(1) % CLASSES
    return Dataset(name="tokens", x_train=x[:80], y_train=y[:80], x_test=x[80:], y_test=y[80:])


def group_norm_model() -> LayeredModel:
    layers = {
        "conv1": nn.Sequential(nn.Conv2d(1, 4, 3, groups=1, dilation=2), nn.GroupNorm(2, 4), nn.ReLU()),
        "conv2": nn.Sequential(nn.Conv2d(4, 4, 3, groups=2, bias=False), nn.Dropout2d(0.2)),
        "pool": nn.Sequential(nn.MaxPool2d(2), nn.Flatten()),
        "head": nn.Linear(4, CLASSES),
    }
    model = LayeredModel(layers, torch.empty(1, 1, 8, 8)).double()
    model.layers["conv1"].insert(0, AsDouble())
    return model


def seeded(make: Callable[[], LayeredModel]) -> LayeredModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return make()


@pytest.mark.parametrize("strategy", ["rbs+rms", "hasfl", "cl"])
def test_tokens_attention_and_dropout(strategy: str) -> None:
    found, expected = (
        run(strategy, model=seeded(token_model), data=token_data(), engine=engine)
        for engine in ("simulated", "reference")
    )
    assert_same(found, expected, TOLERANCE)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_optimizers_and_images_that_are_cropped_and_flipped(optimizer: str) -> None:
    settings = {"optimizer": optimizer, "learning_rate": 0.01, "augment": True}
    found, expected = (
        run("rbs+rms", model=seeded(group_norm_model), engine=engine, **settings)
        for engine in ("simulated", "reference")
    )
    assert_same(found, expected, ADAM_TOLERANCE if optimizer == "adam" else TOLERANCE)


def plain_module() -> nn.Module:
    """Nobody has cut it yet, and it is in float32 as most are."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(0.1),
        nn.Flatten(), nn.Linear(36, 8), nn.ReLU(inplace=True), nn.Linear(8, CLASSES),
    )  # fmt: skip


@pytest.mark.parametrize("strategy", ["rbs+rms", "sfl"])
def test_a_plain_module_in_float32(strategy: str) -> None:
    torch.manual_seed(1)
    module = plain_module()
    found, expected = (run(strategy, model=module, engine=engine) for engine in ("simulated", "reference"))
    for left, right in zip(found, expected, strict=True):
        assert left.plan == right.plan
        # float32 has 1e-7 for each of some hundred sums a round, and batch norm enlarges that a little
        assert left.loss == pytest.approx(right.loss, rel=1e-3)


@pytest.mark.parametrize("strategy", ["rbs+rms", "fl"])
def test_a_plain_module_in_bfloat16(strategy: str) -> None:
    torch.manual_seed(1)
    module = plain_module()
    half, expected, whole = (
        run(strategy, model=module, engine=engine, precision=precision, rounds=6)
        for engine, precision in (
            ("simulated", "bfloat16"),
            ("reference", "bfloat16"),
            ("reference", "float32"),
        )
    )
    assert [record.loss for record in expected] != [record.loss for record in whole]
    # bfloat16 rounds to 1 in 256, in each of a few layers and for six rounds
    for left, right in zip(half, expected, strict=True):
        assert left.loss == pytest.approx(right.loss, rel=0.05)


@pytest.mark.parametrize("engine", ["simulated", "reference"])
def test_a_repeated_training_is_the_same_to_the_last_bit(engine: str) -> None:
    """Whatever was drawn from torch's or NumPy's own generators before."""
    trainings = []
    for noise in (0, 1):
        torch.manual_seed(noise)
        training = simulation("rbs+rms", model=seeded(token_model), data=token_data(), engine=engine)
        trainings.append(([record.as_json() for record in training.training.rounds()], training.model()))
    (first, model), (second, again) = trainings
    assert first == second
    assert all(torch.equal(model[name], again[name]) for name in model)


def test_a_training_leaves_the_generators_of_others_alone() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    run("rbs+rms", model=seeded(token_model), data=token_data(), rounds=4)
    assert torch.equal(torch.get_rng_state(), before)


def test_another_seed_is_another_training() -> None:
    losses = [[record.loss for record in run("sfl", rounds=3, seed=seed)] for seed in (0, 1)]
    assert losses[0] != losses[1]
