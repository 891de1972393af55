"""Schedules, weight decay, clipping and every optimiser against torch's own, and engine against engine."""

import numpy as np
import pytest
import torch

from hasfl.learning.engine import LocalEngine
from hasfl.learning.optimizers import Adam, Momentum, Sgd, Updates
from hasfl.learning.reference_engine import ReferenceEngine
from hasfl.learning.simulated_engine import SimulatedEngine
from hasfl.plan import Plan
from hasfl.schedule import RateSchedule
from tests.lanes import quick_then_slow
from tests.learning.models import model
from tests.learning.oracles import concatenated_sgd, fed_avg, weighted_sgd
from tests.learning.test_plain_torch import assert_same, moving_cuts, train
from tests.learning.trainings import (
    ENGINES,
    OPTIMIZERS,
    at_rate,
    carry_out,
    job,
    largest_difference,
    snapshot,
    steady,
    timetable,
)

ROUNDS, CLIP = 9, 0.1
COSINE = RateSchedule(0.2, "cosine", warm_up=3, length=ROUNDS)
KNOBS = {
    "everything": Updates(Momentum(nesterov=True), COSINE, weight_decay=0.1, clip=CLIP),
    "adamw": Updates(Adam(decays_apart=True), COSINE, weight_decay=0.1, clip=CLIP),
    "clip": at_rate(0.3, Sgd(), clip=CLIP),
    "cosine": Updates(Sgd(), COSINE),
    "warm-up": Updates(Sgd(), RateSchedule(0.2, warm_up=5)),
    "step": Updates(Momentum(), RateSchedule(0.2, "step", step_every=2, step_factor=0.5)),
    "step after a warm-up": Updates(Sgd(), RateSchedule(0.2, "step", 2, step_every=3, step_factor=0.1)),
    "nesterov": at_rate(0.1, Momentum(nesterov=True)),
    "sgd with decay": at_rate(0.3, Sgd(), weight_decay=0.1),
    "momentum with decay": at_rate(0.1, Momentum(), weight_decay=0.1),
    "adam with decay": at_rate(0.02, Adam(), weight_decay=0.1),
}


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("knob", quick_then_slow(list(KNOBS), quick=3))
def test_one_device_trains_as_plain_torch_does(kind: type[LocalEngine], knob: str) -> None:
    """Cuts move, so that layers are private in one interval and common in the next."""
    cuts = moving_cuts(4, 1, ROUNDS, interval=2)
    steps = steady([Plan([2 + t % 3], cuts[t]) for t in range(ROUNDS)], interval=2)
    engine = train(kind, KNOBS[knob], steps, "plain")
    assert_same(engine, concatenated_sgd(engine.job, [step.order for step in steps]))


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("knob", quick_then_slow(list(KNOBS), quick=3))
def test_without_private_layers_it_is_plain_torch_on_all_samples(kind: type[LocalEngine], knob: str) -> None:
    steps = steady([Plan([1 + t % 2, 3, 2, 1 + t % 4], [4] * 4) for t in range(ROUNDS)], interval=3)
    engine = train(kind, KNOBS[knob], steps, "plain", depth=0)
    assert_same(engine, weighted_sgd(engine.job, [step.order for step in steps]))


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("knob", quick_then_slow(list(KNOBS), quick=3))
def test_without_common_layers_every_device_is_plain_torch(kind: type[LocalEngine], knob: str) -> None:
    plans = [Plan([1 + t % 2, 3, 2, 1 + t % 4], [4] * 4) for t in range(ROUNDS)]
    steps = steady(plans, interval=3)
    engine = train(kind, KNOBS[knob], steps, "plain")
    assert_same(engine, fed_avg(engine.job, [step.order for step in steps], interval=3))


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


@pytest.mark.parametrize("knob", quick_then_slow(list(KNOBS), quick=3))
@pytest.mark.parametrize("name", ["plain", "small-cnn batch", "recurrent"])
def test_engines_agree(name: str, knob: str) -> None:
    """With cuts that move, and devices that come and go. Adam enlarges rounding errors."""
    tolerance = 1e-8 if isinstance(KNOBS[knob].optimizer, Adam) else 1e-12
    engines = [kind(job(model(name), KNOBS[knob])) for kind in (ReferenceEngine, SimulatedEngine)]
    steps = timetable(len(model(name)))
    for losses in zip(*(carry_out(engine, steps) for engine in engines), strict=True):
        assert losses[0] == pytest.approx(losses[1], rel=tolerance)
        assert largest_difference(*map(snapshot, engines)) < tolerance


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


def test_a_constant_rate_is_what_it_was() -> None:
    assert OPTIMIZERS["sgd"].rates.at(1) == OPTIMIZERS["sgd"].rates.at(10**6) == 0.1
