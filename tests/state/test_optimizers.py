"""Each optimiser against torch's own, for one weight and for replicas that are stacked."""

import pytest
import torch
from torch import Tensor

from hasfl.profile import SLOTS_PER_WEIGHT
from hasfl.settings import Settings
from hasfl.state.layer_state import LayerState
from hasfl.state.optimizers import OPTIMIZERS as BY_NAME
from hasfl.state.optimizers import Adam, Momentum, Sgd
from hasfl.state.own_optimizer import slots_per_weight
from hasfl.state.updates import Updates
from tests.engines.oracles import torch_optimizer
from tests.engines.trainings import at_rate, label

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
PLAIN = OPTIMIZERS[:6]  # without weight decay
SHAPES = [(), (3,), (2, 3), (4, 1, 2, 2)]
STEPS = 12
TOLERANCE = 1e-13  # a dozen steps of a few roundings each, in float64, on numbers around 1


def draw(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def stepped(rule: Updates, state: LayerState, gradients: dict[str, Tensor]) -> None:
    rule.step(state, gradients, torch.tensor(rule.rates.at(1), dtype=torch.float64))


def reach(rule: Updates, state: LayerState, gradient: Tensor) -> Tensor:
    return rule.reach(state, {"w": gradient}, 1)["w"]


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


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rule", PLAIN[:4], ids=label)
def test_reach_is_how_far_a_gradient_moves_a_weight(rule: Updates, shape: tuple[int, ...]) -> None:
    """One step with the gradient, then many with none; what other gradients left behind comes off."""
    state, gradient = layer(rule, draw(shape, 0)), draw(shape, 1)
    stepped(rule, state, {"w": draw(shape, 2)})
    alone = state.map(Tensor.clone)
    expected = reach(rule, state, gradient)
    for t in range(400):  # 0.9 ** 400 is 5e-19
        stepped(rule, state, {"w": gradient if t == 0 else torch.zeros(shape, dtype=torch.float64)})
        stepped(rule, alone, {"w": torch.zeros(shape, dtype=torch.float64)})
    torch.testing.assert_close(alone.weights["w"] - state.weights["w"], expected, rtol=1e-12, atol=1e-12)


def test_reach_of_plain_steps_is_one_step() -> None:
    gradient, rule = draw((3,), 1), OPTIMIZERS[0]
    assert torch.equal(reach(rule, layer(rule, draw((3,), 0)), gradient), 0.1 * gradient)


@pytest.mark.parametrize("rule", PLAIN[4:], ids=label)
@pytest.mark.parametrize("steps", [1, 3, 3000])
def test_reach_of_adam_is_by_the_second_moment(rule: Updates, steps: int) -> None:
    """γ g/(√v̂ + ε), where v̂ is the mean of squares that Adam has seen, the later the heavier."""
    adam = rule.optimizer
    assert isinstance(adam, Adam)
    generator = torch.Generator().manual_seed(0)
    stream = torch.tensor([0.5, 1.0, 4.0]) * torch.randn(steps, 3, generator=generator)
    state = layer(rule, torch.zeros(3, dtype=torch.float64))
    for gradient in stream.double():
        stepped(rule, state, {"w": gradient})
    weights = adam.decay[1] ** torch.arange(steps - 1, -1, -1, dtype=torch.float64)
    second = (weights[:, None] * stream.double().square()).sum(0) / weights.sum()
    g = draw((3,), 9)
    expected = rule.rates.learning_rate * g / (second.sqrt() + adam.epsilon)
    torch.testing.assert_close(reach(rule, state, g), expected, rtol=1e-9, atol=0)
    if steps == 3000 and adam.decay[1] > 0.99:
        scale = torch.tensor([0.5, 1.0, 4.0], dtype=torch.float64)
        torch.testing.assert_close(second.sqrt(), scale, rtol=0.1, atol=0)  # about 2,000 squares are averaged


def test_reach_of_adam_before_the_first_step_is_a_first_step() -> None:
    rule, gradient = PLAIN[4], draw((2, 3), 1)
    state = layer(rule, draw((2, 3), 0))
    expected = reach(rule, state, gradient)
    stepped(rule, state, {"w": gradient})
    torch.testing.assert_close(draw((2, 3), 0) - state.weights["w"], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", OPTIMIZERS, ids=label)
def test_reach_changes_nothing_and_is_linear(rule: Updates) -> None:
    state = layer(rule, draw((2, 3), 0))
    for t in range(3):
        stepped(rule, state, {"w": draw((2, 3), t)})
    before = [tensor.clone() for tensor in state.tensors()]
    g, h = draw((2, 3), 8), draw((2, 3), 9)
    of_g, of_h, of_both = (reach(rule, state, each) for each in (g, h, 2 * g - h))
    torch.testing.assert_close(of_both, 2 * of_g - of_h, rtol=1e-12, atol=1e-12)
    assert all(torch.equal(now, then) for now, then in zip(state.tensors(), before, strict=True))
