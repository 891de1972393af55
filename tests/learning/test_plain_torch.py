"""The engines against plain torch, where both must come to the same: SGD, FedAvg, split learning in turns."""

import itertools

import numpy as np
import pytest
import torch

from hasfl.learning.engine import LocalEngine
from hasfl.learning.optimizers import Adam, Updates
from hasfl.plan import Plan
from tests.learning.models import model
from tests.learning.oracles import (
    Weights,
    concatenated_sgd,
    fed_avg,
    sequential_split,
    weighted_sgd,
)
from tests.learning.trainings import ENGINES, LAST, Step, adam, carry_out, job, label, momentum, sgd, steady

# float64, about ten rounds, the same sums in another order.
TOLERANCE = 1e-12
# Adam may enlarge a rounding error of 1e-16 by 0.02 / 1e-3 where a gradient is 0 but for rounding.
ADAM_TOLERANCE = 1e-10
STEPPING = [sgd(0.3), momentum(0.1)]
ROUNDS = 8


def assert_same(engine: LocalEngine, expected: Weights, tolerance: float = TOLERANCE) -> None:
    found = engine.model()
    assert found.keys() == expected.keys()
    moved = max(
        float((weight - found[name]).detach().abs().max())
        for name, weight in engine.job.model.layers.named_parameters()
    )
    assert moved > 1e-2, "nothing was learnt, so that nothing was shown"
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=tolerance, atol=tolerance)


def train(
    kind: type[LocalEngine], optimizer: Updates, steps: list[Step], name: str, depth: int | None = None
) -> LocalEngine:
    engine = kind(job(model(name), optimizer, serving=LAST))
    list(carry_out(engine, steps, depth))
    return engine


def moving_cuts(layers: int, devices: int, rounds: int, *, interval: int = 1) -> list[list[int]]:
    """Other cuts in every interval, each of them at some time the deepest."""
    endless = itertools.cycle(range(1, layers + 1))
    by_interval = [[next(endless) for _ in range(devices)] for _ in range(rounds)]
    return [by_interval[t // interval] for t in range(rounds)]


@pytest.mark.parametrize("optimizer", STEPPING, ids=label)
@pytest.mark.parametrize("name", ["plain", "residual", "tied", "small-cnn none", "token"])
@pytest.mark.parametrize("kind", ENGINES)
def test_with_an_aggregation_every_round_it_is_sgd_on_all_samples(
    kind: type[LocalEngine], name: str, optimizer: Updates
) -> None:
    cuts = moving_cuts(len(model(name)), 4, ROUNDS)
    plans = [Plan(np.full(4, 1 + t % 4), np.array(cuts[t])) for t in range(ROUNDS)]
    steps = steady(plans, interval=1)
    engine = train(kind, optimizer, steps, name)
    expected = concatenated_sgd(engine.job, [step.order for step in steps])
    tied = {key: tensor for key, tensor in expected.items() if "second.weight" not in key}
    assert_same(engine, tied)


@pytest.mark.parametrize("kind", ENGINES)
def test_unequal_batches_are_not_sgd_on_all_samples(kind: type[LocalEngine]) -> None:
    """Devices weigh alike, not samples: the law above could fail."""
    steps = steady([Plan([1, 2, 4, 1], [1, 2, 3, 4])] * ROUNDS, interval=1)
    engine = train(kind, sgd(0.3), steps, "plain")
    orders = [step.order for step in steps]
    assert_same(engine, weighted_sgd(engine.job, orders))
    with pytest.raises(AssertionError):
        assert_same(engine, concatenated_sgd(engine.job, orders), 1e-6)


@pytest.mark.parametrize("optimizer", [*STEPPING, adam(0.02)], ids=label)
@pytest.mark.parametrize(("name", "interval"), [("plain", 3), ("small-cnn batch", 2), ("recurrent", 5)])
@pytest.mark.parametrize("kind", ENGINES)
def test_one_device_has_nobody_to_federate_with(
    kind: type[LocalEngine], name: str, interval: int, optimizer: Updates
) -> None:
    cuts = moving_cuts(len(model(name)), 1, ROUNDS, interval=interval)
    steps = steady([Plan([2 + t % 3], cuts[t]) for t in range(ROUNDS)], interval=interval)
    engine = train(kind, optimizer, steps, name)
    expected = concatenated_sgd(engine.job, [step.order for step in steps])
    assert_same(engine, expected, ADAM_TOLERANCE if isinstance(optimizer.optimizer, Adam) else TOLERANCE)


@pytest.mark.parametrize("optimizer", [*STEPPING, adam(0.02)], ids=label)
@pytest.mark.parametrize("kind", ENGINES)
def test_with_no_private_layer_it_is_centralised(kind: type[LocalEngine], optimizer: Updates) -> None:
    """Batch norm then sees all samples at once, as any centralised training has it."""
    steps = steady([Plan([1 + t % 2, 3, 2, 1 + t % 4], [5] * 4) for t in range(ROUNDS)], interval=3)
    engine = train(kind, optimizer, steps, "small-cnn batch", depth=0)
    expected = weighted_sgd(engine.job, [step.order for step in steps])
    assert_same(engine, expected, ADAM_TOLERANCE if isinstance(optimizer.optimizer, Adam) else TOLERANCE)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("optimizer", [*STEPPING, adam(0.02)], ids=label)
@pytest.mark.parametrize(("name", "interval"), [("plain", 4), ("plain", 1), ("residual images", 2)])
def test_with_every_layer_private_it_is_fed_avg(
    kind: type[LocalEngine], name: str, interval: int, optimizer: Updates
) -> None:
    """Weights, batch-norm buffers and what the optimiser keeps are averaged alike."""
    plans = [Plan([1 + t % 2, 3, 2, 1 + t % 4], [len(model(name))] * 4) for t in range(ROUNDS)]
    steps = steady(plans, interval=interval)
    engine = train(kind, optimizer, steps, name)
    expected = fed_avg(engine.job, [step.order for step in steps], interval)
    assert_same(engine, expected, ADAM_TOLERANCE if isinstance(optimizer.optimizer, Adam) else TOLERANCE)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_devices_in_turns_are_sequential_split_learning(kind: type[LocalEngine], cut: int) -> None:
    interval = 2

    def whose_turn(t: int) -> np.ndarray:
        return np.array([(t - 1) // interval % 4])

    steps = steady([Plan([2 + t % 3], [cut]) for t in range(10)], interval=interval, devices=whose_turn)
    engine = train(kind, sgd(0.3), steps, "plain")
    assert_same(engine, sequential_split(engine.job, [step.order for step in steps], interval))


@pytest.mark.parametrize("kind", ENGINES)
def test_a_device_that_leaves_is_left_out_of_the_mean(kind: type[LocalEngine]) -> None:
    """… and what it learnt alone is lost: the others come to what they would have come to without it."""
    with_it = steady(
        [Plan([2, 3, 2], [4] * 3), Plan([2, 2], [4] * 2)],
        interval=2,
        devices=lambda t: np.array([0, 1, 3]) if t == 1 else np.array([0, 3]),
    )
    without = steady([Plan([2, 2], [4] * 2)] * 2, interval=2, devices=lambda t: np.array([0, 3]))
    engines = [train(kind, momentum(0.3), steps, "plain") for steps in (with_it, without)]
    assert_same(engines[0], engines[1].model())


@pytest.mark.parametrize("kind", ENGINES)
def test_samples_are_not_repeated_within_an_epoch(kind: type[LocalEngine]) -> None:
    """Whatever the batch sizes; and which ones a device uses does not depend on who else is there."""
    engine = kind(job(model("plain"), sgd(0.1)))
    data, seen, drawn = engine.job.data, [], 0
    for size in (4, 1, 5, 1):  # the eleven samples of device 0
        step = steady([Plan([size, 2, 1], [1] * 3)], interval=1, devices=lambda t: np.array([0, 1, 3]))[0]
        object.__setattr__(step.order, "drawn", np.array([drawn, 0, 0]))
        seen += [row.tolist() for row in data.batch(step.order)[0][:size]]
        drawn += size
    held = [row.tolist() for row in data.x[data.shares[0]]]
    assert sorted(seen) == sorted(held)
