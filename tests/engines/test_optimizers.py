"""Each optimiser against torch's own, for one weight and for replicas that are stacked."""

import pytest
import torch
from torch import Tensor

from hasfl.engines.layer_state import LayerState
from hasfl.engines.optimizers import Adam, Momentum, Optimizer, Sgd, optimizer
from hasfl.errors import InputError
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
