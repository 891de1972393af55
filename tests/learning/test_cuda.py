"""The simulated engine on a GPU, where rounds are captured and played again, against the reference engine."""

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hasfl.learning.engine import Job, LocalEngine
from hasfl.learning.optimizers import Updates
from hasfl.learning.reference_engine import ReferenceEngine
from hasfl.learning.simulated_engine import SimulatedEngine
from tests.learning.models import model
from tests.learning.test_own_rules import half_way, proximal
from tests.learning.trainings import KNOBS, OPTIMIZERS, carry_out, job, snapshot, timetable

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
# float64; forty rounds of sums in other orders, by other algorithms. What is 0 but for
# rounding, Adam enlarges.
TOLERANCE = {"sgd": 1e-8, "momentum": 1e-8, "adam": 1e-6}


def on_gpu(given: Job) -> Job:
    data = dataclasses.replace(given.data, x=given.data.x.cuda(), y=given.data.y.cuda())
    return dataclasses.replace(
        given, model=given.model.cuda(), data=data, test=(given.test[0].cuda(), given.test[1].cuda())
    )


def pair(name: str, optimizer: str) -> tuple[LocalEngine, SimulatedEngine]:
    return pair_with(name, OPTIMIZERS[optimizer])


def pair_with(name: str, updates: Updates, **own: Any) -> tuple[LocalEngine, SimulatedEngine]:
    return (
        ReferenceEngine(job(model(name), updates, **own)),
        SimulatedEngine(on_gpu(job(model(name), updates, **own))),
    )


def gap(one: LocalEngine, other: LocalEngine) -> float:
    left, right = snapshot(one), snapshot(other)
    return max(float((left[key].cpu().double() - right[key].cpu().double()).abs().max()) for key in left)


CASES = [
    *((name, "momentum") for name in ("plain", "residual", "tied", "residual images", "small-cnn group")),
    *(("small-cnn batch", optimizer) for optimizer in OPTIMIZERS),
    ("parametrised", "sgd"),
    *((name, "sgd") for name in ("token", "causal", "vision")),
]


@pytest.mark.parametrize(("name", "optimizer"), CASES)
def test_engines_agree(name: str, optimizer: str) -> None:
    """Cuts move, devices come and go, batches change: and the same graphs are played again."""
    reference, simulated = pair(name, optimizer)
    steps = timetable(len(model(name)), intervals=10, interval=4)
    for losses in zip(carry_out(reference, steps), carry_out(simulated, steps), strict=True):
        assert losses[0] == pytest.approx(losses[1], rel=TOLERANCE[optimizer])
        assert gap(reference, simulated) < TOLERANCE[optimizer]
    if simulated.graphs is not None:
        assert simulated.graphs.captured, "no round came twice"


@pytest.mark.parametrize("knob", ["everything", "adamw", "clip", "cosine", "step"])
def test_engines_agree_with_every_knob(knob: str) -> None:
    """The learning rate changes from round to round, while the same graph is played."""
    rates = replace(KNOBS[knob].rates, length=40)
    reference, simulated = pair_with("small-cnn batch", replace(KNOBS[knob], rates=rates))
    tolerance = TOLERANCE["adam" if knob == "adamw" else "sgd"]
    steps = timetable(5, intervals=10, interval=4)
    for losses in zip(carry_out(reference, steps), carry_out(simulated, steps), strict=True):
        assert losses[0] == pytest.approx(losses[1], rel=tolerance)
        assert gap(reference, simulated) < tolerance
    assert simulated.graphs is not None
    assert simulated.graphs.captured, "no round came twice"


def test_engines_agree_with_a_rule_and_a_term_of_ones_own() -> None:
    """The term is a part of the captured round, and its anchor changes with every interval."""
    own = {"aggregation": half_way, "local_term": proximal(0.5)}
    reference, simulated = pair_with("small-cnn batch", KNOBS["clip"], **own)
    steps = timetable(5, intervals=10, interval=4)
    for losses in zip(carry_out(reference, steps), carry_out(simulated, steps), strict=True):
        assert losses[0] == pytest.approx(losses[1], rel=TOLERANCE["sgd"])
        assert gap(reference, simulated) < TOLERANCE["sgd"]
    assert simulated.graphs is not None
    assert simulated.graphs.captured, "no round came twice"


def test_a_captured_training_can_be_saved_and_restored() -> None:
    steps = timetable(5, intervals=8, interval=4)
    _, whole = pair("small-cnn batch", "adam")
    losses = list(carry_out(whole, steps))
    _, first = pair("small-cnn batch", "adam")
    list(carry_out(first, steps[:18]))
    arrays, values = first.saved()
    _, second = pair("small-cnn batch", "adam")
    list(carry_out(second, steps[:5]))  # it has graphs of its own, which must not be played on old tensors
    second.restore({name: np.array(array) for name, array in arrays.items()}, values)
    assert list(carry_out(second, steps[18:])) == pytest.approx(losses[18:], rel=1e-6)


@pytest.mark.filterwarnings("ignore:.*debug mode is a prototype")
@pytest.mark.parametrize("name", ["small-cnn batch", "residual images", "plain"])
def test_the_served_model_is_that_of_the_reference(name: str) -> None:
    """Running mean and measured norms, while captured rounds go on; and they never wait for the GPU."""
    reference, simulated = pair(name, "momentum")
    steps = timetable(len(model(name)), intervals=10, interval=4)
    for step, losses in zip(
        steps, zip(carry_out(reference, steps), carry_out(simulated, steps), strict=True), strict=True
    ):
        assert losses[0] == pytest.approx(losses[1], rel=TOLERANCE["momentum"])
        if step.order.round % 3 == 0:
            expected, found = reference.model(), simulated.model()
            for key, tensor in found.items():
                torch.testing.assert_close(tensor.cpu(), expected[key], rtol=1e-7, atol=1e-8)
            loss = reference.evaluate().test_loss
            assert simulated.evaluate().test_loss == pytest.approx(loss, rel=1e-5)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        simulated.served()
        simulated.aggregate()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", ["token", "causal", "vision"])
def test_transformers_are_captured(name: str) -> None:
    _, simulated = pair(name, "sgd")
    list(carry_out(simulated, timetable(4, intervals=10, interval=4)))
    assert simulated.graphs is not None
    assert simulated.graphs.captured


@pytest.mark.parametrize("name", ["dropout", "encoder"])
def test_both_engines_draw_the_same_on_a_gpu(name: str) -> None:
    engines = [
        kind(on_gpu(job(model(name), OPTIMIZERS["sgd"]))) for kind in (ReferenceEngine, SimulatedEngine)
    ]
    steps = timetable(len(model(name)))
    for losses in zip(*(carry_out(engine, steps) for engine in engines), strict=True):
        assert losses[0] == pytest.approx(losses[1], rel=TOLERANCE["sgd"])
        assert gap(*engines) < TOLERANCE["sgd"]


@pytest.mark.parametrize("part", ["private", "common"])
def test_dropout_draws_by_round_and_not_by_what_was_drawn_before(part: str) -> None:
    """torch has another generator for each GPU: it too must be set, or a resumed training is another one."""
    found = []
    for noise in (1, 2):
        _, engine = pair("dropout", "sgd")
        torch.cuda.manual_seed(noise)
        steps = timetable(4)
        found.append(list(carry_out(engine, steps, depth=0 if part == "common" else 4)))
    assert found[0] == pytest.approx(found[1], rel=1e-12)
