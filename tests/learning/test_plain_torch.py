"""The engines against plain torch, where both must come to the same: SGD and FedAvg, with every knob."""

import itertools

import numpy as np
import pytest
import torch

from hasfl.learning.engine import LocalEngine
from hasfl.learning.optimizers import Momentum, Sgd, Updates
from hasfl.learning.simulated_engine import SimulatedEngine
from hasfl.plan import Plan
from tests.learning.models import model
from tests.learning.oracles import Weights, concatenated_sgd, fed_avg, weighted_sgd
from tests.learning.trainings import (
    CLIP,
    COSINE,
    ENGINES,
    KNOBS,
    LAST,
    Step,
    adam,
    at_rate,
    carry_out,
    job,
    largest_difference,
    momentum,
    sgd,
    snapshot,
    steady,
)

# float64, about ten rounds, the same sums in another order.
TOLERANCE = 1e-12
# Adam may enlarge a rounding error of 1e-16 by 0.02 / 1e-3 where a gradient is 0 but for rounding.
ADAM_TOLERANCE = 1e-10
ROUNDS = 9
STEPPING: dict[str, Updates] = {"sgd": sgd(0.3), "momentum": momentum(0.1), "adam": adam(0.02), **KNOBS}
STEPPING_PLAIN = [
    pytest.param("plain", stepping, marks=pytest.mark.slow if k >= 6 else ())
    for k, stepping in enumerate(STEPPING)
]


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


def unequal_plans(layers: int) -> list[Plan]:
    return [Plan([1 + t % 2, 3, 2, 1 + t % 4], [layers] * 4) for t in range(ROUNDS)]


def tolerance_of(stepping: str) -> float:
    return ADAM_TOLERANCE if stepping == "adam" else TOLERANCE


@pytest.mark.parametrize(
    ("name", "stepping"),
    [
        ("plain", "sgd"), ("plain", "momentum"), ("residual", "momentum"), ("tied", "sgd"),
        ("small-cnn none", "momentum"), ("token", "momentum"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ENGINES)
def test_with_an_aggregation_every_round_it_is_sgd_on_all_samples(
    kind: type[LocalEngine], name: str, stepping: str
) -> None:
    cuts = moving_cuts(len(model(name)), 4, ROUNDS)
    plans = [Plan(np.full(4, 1 + t % 4), np.array(cuts[t])) for t in range(ROUNDS)]
    steps = steady(plans, interval=1)
    engine = train(kind, STEPPING[stepping], steps, name)
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


@pytest.mark.parametrize(
    ("name", "stepping"),
    [*STEPPING_PLAIN, ("small-cnn batch", "momentum"), ("small-cnn batch", "adam"), ("recurrent", "adam")],
)
@pytest.mark.parametrize("kind", ENGINES)
def test_one_device_has_nobody_to_federate_with(kind: type[LocalEngine], name: str, stepping: str) -> None:
    """Cuts move, so that layers are private in one interval and common in the next."""
    interval = 5 if name == "recurrent" else 2
    cuts = moving_cuts(len(model(name)), 1, ROUNDS, interval=interval)
    steps = steady([Plan([2 + t % 3], cuts[t]) for t in range(ROUNDS)], interval=interval)
    engine = train(kind, STEPPING[stepping], steps, name)
    expected = concatenated_sgd(engine.job, [step.order for step in steps])
    assert_same(engine, expected, tolerance_of(stepping))


@pytest.mark.parametrize(
    ("name", "stepping"), [*STEPPING_PLAIN, ("small-cnn batch", "momentum"), ("small-cnn batch", "adam")]
)
@pytest.mark.parametrize("kind", ENGINES)
def test_with_no_private_layer_it_is_centralised(kind: type[LocalEngine], name: str, stepping: str) -> None:
    """Batch norm then sees all samples at once, as any centralised training has it."""
    steps = steady(unequal_plans(len(model(name))), interval=3)
    engine = train(kind, STEPPING[stepping], steps, name, depth=0)
    expected = weighted_sgd(engine.job, [step.order for step in steps])
    assert_same(engine, expected, tolerance_of(stepping))


@pytest.mark.parametrize(
    ("name", "stepping"), [*STEPPING_PLAIN, ("residual images", "momentum"), ("residual images", "adam")]
)
@pytest.mark.parametrize("kind", ENGINES)
def test_with_every_layer_private_it_is_fed_avg(kind: type[LocalEngine], name: str, stepping: str) -> None:
    """Weights, batch-norm buffers and what the optimiser keeps are averaged alike."""
    interval = {"sgd": 1, "momentum": 4}.get(stepping, 3)
    steps = steady(unequal_plans(len(model(name))), interval=interval)
    engine = train(kind, STEPPING[stepping], steps, name)
    expected = fed_avg(engine.job, [step.order for step in steps], interval)
    assert_same(engine, expected, tolerance_of(stepping))


def test_the_laws_above_can_fail() -> None:
    """Gradients were clipped, and every knob makes a difference."""
    steps = steady([Plan([2, 3, 2, 4], [2] * 4)] * ROUNDS, interval=3)
    plain = train(SimulatedEngine, at_rate(0.2, Sgd()), steps, "plain").model()
    others = [
        Updates(Sgd(), COSINE),
        at_rate(0.2, Sgd(), clip=CLIP),
        at_rate(0.2, Sgd(), weight_decay=0.1),
        at_rate(0.2, Momentum()),
        at_rate(0.2, Momentum(nesterov=True)),
        at_rate(0.2, Sgd(), clip=1e9),
    ]
    gaps = [
        largest_difference(plain, train(SimulatedEngine, other, steps, "plain").model()) for other in others
    ]
    assert min(gaps[:-1]) > 1e-3
    assert gaps[-1] == 0


@pytest.mark.parametrize("kind", ENGINES)
def test_clipping_with_private_and_common_layers(kind: type[LocalEngine]) -> None:
    """Against the definition, in a loop over devices: n_i for private gradients, n for the common one."""
    depth, order = 2, steady([Plan([2, 3, 2, 4], [1, 2, 2, 1])], interval=1)[0].order
    moves = []
    for updates in (at_rate(1.0, Sgd()), at_rate(1.0, Sgd(), clip=CLIP)):
        engine = kind(job(model("plain"), updates))
        engine.split(depth, np.arange(4))
        before = snapshot(engine)
        engine.split_train(order)
        moves.append({name: tensor - before[name] for name, tensor in snapshot(engine).items()})
    free, clipped = moves
    private = {name for name in free if name.startswith(tuple(f"{each}." for each in engine.state.names[:2]))}
    own = [sum(float(free[name][i].square().sum()) for name in private) for i in range(4)]
    common = sum(float(free[name].square().sum()) for name in free if name not in private)
    factors = [min(1.0, CLIP / (np.sqrt(square + common) + 1e-6)) for square in own]
    factor = min(1.0, CLIP / (np.sqrt(np.mean(own) + common) + 1e-6))
    assert max(factors) < 1
    for name in free:
        if name not in private:
            torch.testing.assert_close(clipped[name], factor * free[name], rtol=1e-12, atol=1e-12)
        for i in range(4 if name in private else 0):
            torch.testing.assert_close(clipped[name][i], factors[i] * free[name][i], rtol=1e-12, atol=1e-12)


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
