"""Each optimiser against torch's own, for one weight and for replicas that are stacked."""

import pytest
import torch
from torch import Tensor

from hasfl.errors import InputError
from hasfl.state.layer_state import LayerState
from hasfl.state.optimizers import Adam, Momentum, Optimizer, Sgd, optimizer
from tests.engines.oracles import torch_optimizer

OPTIMIZERS = [Sgd(0.1), Momentum(0.1), Momentum(0.3, 0.5), Adam(0.01), Adam(0.1, (0.5, 0.7), 1e-3)]
SHAPES = [(), (3,), (2, 3), (4, 1, 2, 2)]
STEPS = 12
TOLERANCE = 1e-13  # a dozen steps of a few roundings each, in float64, on numbers around 1


def draw(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(optimizer: Optimizer, weight: Tensor) -> LayerState:
    return LayerState({"w": weight.clone()}, {}, {"w": optimizer.slots(weight)})


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rule", OPTIMIZERS, ids=str)
def test_one_weight(rule: Optimizer, shape: tuple[int, ...]) -> None:
    state, theirs = layer(rule, draw(shape, 0)), draw(shape, 0).requires_grad_()
    stepping = torch_optimizer(rule, [theirs])
    for t in range(1, STEPS + 1):
        theirs.grad = draw(shape, t)
        stepping.step()
        rule.step(state, {"w": draw(shape, t)})
        torch.testing.assert_close(state.weights["w"], theirs.detach(), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rule", OPTIMIZERS, ids=str)
def test_stacked_replicas_step_as_each_would_alone(rule: Optimizer, shape: tuple[int, ...]) -> None:
    """Also when they have taken unequal numbers of steps before they were stacked."""
    devices = 3
    alone = [layer(rule, draw(shape, i)) for i in range(devices)]
    for i, state in enumerate(alone):
        for t in range(i):
            rule.step(state, {"w": draw(shape, 10 * i + t)})
    stacked = LayerState(
        {"w": torch.stack([state.weights["w"] for state in alone])},
        {},
        {"w": {slot: torch.stack([s.slots["w"][slot] for s in alone]) for slot in alone[0].slots["w"]}},
    )
    for t in range(STEPS):
        gradients = [draw(shape, 100 * i + t) for i in range(devices)]
        rule.step(stacked, {"w": torch.stack(gradients)})
        for i, state in enumerate(alone):
            rule.step(state, {"w": gradients[i]})
            torch.testing.assert_close(
                stacked.weights["w"][i], state.weights["w"], rtol=TOLERANCE, atol=TOLERANCE
            )


@pytest.mark.parametrize("rule", OPTIMIZERS, ids=str)
def test_a_weight_without_a_gradient_stays(rule: Optimizer) -> None:
    weights = {"used": draw((2,), 1), "unused": draw((2,), 2)}
    slots = {name: rule.slots(weight) for name, weight in weights.items()}
    state = LayerState({name: weight.clone() for name, weight in weights.items()}, {}, slots)
    rule.step(state, {"used": draw((2,), 3)})
    assert torch.equal(state.weights["unused"], weights["unused"])
    assert not torch.equal(state.weights["used"], weights["used"])


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(InputError, match="optimizer must be one of sgd, momentum, adam, got 'rmsprop'"):
        optimizer("rmsprop", 0.1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rule", [Sgd(0.1), Momentum(0.1), Momentum(0.3, 0.5)], ids=str)
def test_reach_is_how_far_a_gradient_moves_a_weight(rule: Optimizer, shape: tuple[int, ...]) -> None:
    """One step with the gradient, then many with none; what other gradients left behind comes off."""
    state, gradient = layer(rule, draw(shape, 0)), draw(shape, 1)
    rule.step(state, {"w": draw(shape, 2)})
    alone = state.map(Tensor.clone)
    expected = rule.reach(state, {"w": gradient})["w"]
    for t in range(400):  # 0.9 ** 400 is 5e-19
        rule.step(state, {"w": gradient if t == 0 else torch.zeros(shape, dtype=torch.float64)})
        rule.step(alone, {"w": torch.zeros(shape, dtype=torch.float64)})
    torch.testing.assert_close(alone.weights["w"] - state.weights["w"], expected, rtol=1e-12, atol=1e-12)


def test_reach_of_plain_steps_is_one_step() -> None:
    gradient = draw((3,), 1)
    assert torch.equal(Sgd(0.1).reach(layer(Sgd(0.1), draw((3,), 0)), {"w": gradient})["w"], 0.1 * gradient)


@pytest.mark.parametrize("rule", [Adam(0.01), Adam(0.1, (0.5, 0.7), 1e-3)], ids=str)
@pytest.mark.parametrize("steps", [1, 3, 3000])
def test_reach_of_adam_is_by_the_second_moment(rule: Adam, steps: int) -> None:
    """γ g/(√v̂ + ε), where v̂ is the mean of squares that Adam has seen, the later the heavier."""
    generator = torch.Generator().manual_seed(0)
    stream = torch.tensor([0.5, 1.0, 4.0]) * torch.randn(steps, 3, generator=generator)
    state = layer(rule, torch.zeros(3, dtype=torch.float64))
    for gradient in stream.double():
        rule.step(state, {"w": gradient})
    weights = rule.decay[1] ** torch.arange(steps - 1, -1, -1, dtype=torch.float64)
    second = (weights[:, None] * stream.double().square()).sum(0) / weights.sum()
    g = draw((3,), 9)
    expected = rule.learning_rate * g / (second.sqrt() + rule.epsilon)
    torch.testing.assert_close(rule.reach(state, {"w": g})["w"], expected, rtol=1e-9, atol=0)
    if steps == 3000 and rule.decay[1] > 0.99:
        scale = torch.tensor([0.5, 1.0, 4.0], dtype=torch.float64)
        torch.testing.assert_close(second.sqrt(), scale, rtol=0.1, atol=0)  # about 2,000 squares are averaged


def test_reach_of_adam_before_the_first_step_is_a_first_step() -> None:
    rule, gradient = Adam(0.01), draw((2, 3), 1)
    state = layer(rule, draw((2, 3), 0))
    reach = rule.reach(state, {"w": gradient})["w"]
    rule.step(state, {"w": gradient})
    torch.testing.assert_close(draw((2, 3), 0) - state.weights["w"], reach, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", OPTIMIZERS, ids=str)
def test_reach_changes_nothing_and_is_linear(rule: Optimizer) -> None:
    state = layer(rule, draw((2, 3), 0))
    for t in range(3):
        rule.step(state, {"w": draw((2, 3), t)})
    before = [tensor.clone() for tensor in state.tensors()]
    g, h = draw((2, 3), 8), draw((2, 3), 9)
    of_g, of_h, of_both = (rule.reach(state, {"w": each})["w"] for each in (g, h, 2 * g - h))
    torch.testing.assert_close(of_both, 2 * of_g - of_h, rtol=1e-12, atol=1e-12)
    assert all(torch.equal(now, then) for now, then in zip(state.tensors(), before, strict=True))
