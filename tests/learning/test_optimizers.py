"""Each optimiser against torch's own, for one weight and for replicas that are stacked."""

import pytest
import torch
from torch import Tensor

from hasfl.learning.optimizers import OPTIMIZERS as BY_NAME
from hasfl.learning.optimizers import Adam, Momentum, Sgd, Updates, slots_per_weight
from hasfl.learning.state import LayerState
from hasfl.profile import SLOTS_PER_WEIGHT
from hasfl.settings import Settings
from tests.learning.oracles import torch_optimizer
from tests.learning.trainings import at_rate, label

OPTIMIZERS = [
    at_rate(0.1, Sgd()),
    at_rate(0.1, Momentum()),
    at_rate(0.3, Momentum(0.5)),
    at_rate(0.1, Momentum(nesterov=True)),
    at_rate(0.01, Adam()),
    at_rate(0.1, Adam((0.5, 0.7), 1e-3)),
    at_rate(0.1, Sgd(), weight_decay=0.2),
    at_rate(0.1, Momentum(nesterov=True), weight_decay=0.2),
    at_rate(0.01, Adam(), weight_decay=0.2),
    at_rate(0.1, Adam(decays_apart=True), weight_decay=0.2),
]
SHAPES = [(), (3,), (2, 3), (4, 1, 2, 2)]
STEPS = 12
TOLERANCE = 1e-13  # a dozen steps of a few roundings each, in float64, on numbers around 1


def draw(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def stepped(rule: Updates, state: LayerState, gradients: dict[str, Tensor]) -> None:
    rule.step(state, gradients, torch.tensor(rule.rates.at(1), dtype=torch.float64))


def layer(optimizer: Updates, weight: Tensor) -> LayerState:
    return LayerState({"w": weight.clone()}, {}, {"w": optimizer.slots(weight)})


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rule", OPTIMIZERS, ids=label)
def test_one_weight(rule: Updates, shape: tuple[int, ...]) -> None:
    state, theirs = layer(rule, draw(shape, 0)), draw(shape, 0).requires_grad_()
    stepping = torch_optimizer(rule, [theirs])
    for t in range(1, STEPS + 1):
        theirs.grad = draw(shape, t)
        stepping.step()
        stepped(rule, state, {"w": draw(shape, t)})
        torch.testing.assert_close(state.weights["w"], theirs.detach(), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rule", OPTIMIZERS, ids=label)
def test_stacked_replicas_step_as_each_would_alone(rule: Updates, shape: tuple[int, ...]) -> None:
    """Also when they have taken unequal numbers of steps before they were stacked."""
    devices = 3
    alone = [layer(rule, draw(shape, i)) for i in range(devices)]
    for i, state in enumerate(alone):
        for t in range(i):
            stepped(rule, state, {"w": draw(shape, 10 * i + t)})
    stacked = LayerState(
        {"w": torch.stack([state.weights["w"] for state in alone])},
        {},
        {"w": {slot: torch.stack([s.slots["w"][slot] for s in alone]) for slot in alone[0].slots["w"]}},
    )
    for t in range(STEPS):
        gradients = [draw(shape, 100 * i + t) for i in range(devices)]
        stepped(rule, stacked, {"w": torch.stack(gradients)})
        for i, state in enumerate(alone):
            stepped(rule, state, {"w": gradients[i]})
            torch.testing.assert_close(
                stacked.weights["w"][i], state.weights["w"], rtol=TOLERANCE, atol=TOLERANCE
            )


@pytest.mark.parametrize("rule", OPTIMIZERS, ids=label)
def test_a_weight_without_a_gradient_stays(rule: Updates) -> None:
    weights = {"used": draw((2,), 1), "unused": draw((2,), 2)}
    slots = {name: rule.slots(weight) for name, weight in weights.items()}
    state = LayerState({name: weight.clone() for name, weight in weights.items()}, {}, slots)
    stepped(rule, state, {"used": draw((2,), 3)})
    assert torch.equal(state.weights["unused"], weights["unused"])
    assert not torch.equal(state.weights["used"], weights["used"])


def test_the_number_of_slots_that_plans_count_is_that_of_the_optimizers() -> None:
    """Memory and traffic are counted without torch; a counter of steps is too small to count."""
    assert {name: slots_per_weight(rule) for name, rule in BY_NAME.items()} == SLOTS_PER_WEIGHT
    assert Settings().optimizer in BY_NAME
