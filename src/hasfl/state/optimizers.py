"""The step of each optimiser, in place. Steps are elementwise, so a stacked state steps all replicas at once.

A slot is a tensor that an optimiser keeps for a weight. Slots are aggregated and copied with their weight.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hasfl.errors import InputError
from hasfl.state.layer_state import LayerState, Tensors

MOMENTUM = 0.9  # μ; the customary value
ADAM_DECAY = (0.9, 0.999)  # β₁ and β₂, as Kingma and Ba 2015 propose
ADAM_EPSILON = 1e-8  # as Kingma and Ba 2015 propose
# Stands in for a divisor of 0 whose quotient is not used. Every positive number would do.
UNUSED_DIVISOR = 1e-30


class Optimizer(Protocol):
    """How a gradient changes a weight."""

    @property
    def learning_rate(self) -> float:
        """γ."""

    def slots(self, weight: Tensor) -> Tensors:
        """The slots of a weight before the first step."""

    def step(self, state: LayerState, gradients: Mapping[str, Tensor]) -> None:
        """Take one step with the weights of a layer, in place. `gradients` has the names of the weights."""

    def reach(self, state: LayerState, gradients: Mapping[str, Tensor]) -> Tensors:
        """How far these gradients move the weights, in this step and through slots in all later steps.

        Changes nothing.
        """


@dataclass(frozen=True, slots=True)
class Sgd:
    """Plain SGD, the paper's optimiser: w ← w − γ g."""

    learning_rate: float

    def slots(self, weight: Tensor) -> Tensors:
        """No slots."""
        return {}

    @torch.no_grad()
    def step(self, state: LayerState, gradients: Mapping[str, Tensor]) -> None:
        """Take one step, in place."""
        for name, gradient in gradients.items():
            state.weights[name].sub_(gradient, alpha=self.learning_rate)

    def reach(self, state: LayerState, gradients: Mapping[str, Tensor]) -> Tensors:
        """γ g."""
        return {name: self.learning_rate * gradient for name, gradient in gradients.items()}


@dataclass(frozen=True, slots=True)
class Momentum:
    """SGD with momentum: m ← μ m + g, w ← w − γ m."""

    learning_rate: float
    momentum: float = MOMENTUM

    def slots(self, weight: Tensor) -> Tensors:
        """One slot: m, the decaying sum of gradients."""
        return {"momentum": torch.zeros_like(weight)}

    @torch.no_grad()
    def step(self, state: LayerState, gradients: Mapping[str, Tensor]) -> None:
        """Take one step, in place."""
        for name, gradient in gradients.items():
            decaying_sum = state.slots[name]["momentum"].mul_(self.momentum).add_(gradient)
            state.weights[name].sub_(decaying_sum, alpha=self.learning_rate)

    def reach(self, state: LayerState, gradients: Mapping[str, Tensor]) -> Tensors:
        """γ/(1 − μ) g: the gradient moves a weight by γ g now, γ μ g in the next step, γ μ² g after it, …."""
        factor = self.learning_rate / (1 - self.momentum)
        return {name: factor * gradient for name, gradient in gradients.items()}


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam (Kingma and Ba 2015): w ← w − γ m̂/(√v̂ + ε).

    m and v are moving means of g and g². m̂ = m/(1 − β₁ᵗ) and v̂ = v/(1 − β₂ᵗ) correct their start at 0; t is
    the number of steps.
    """

    learning_rate: float
    decay: tuple[float, float] = ADAM_DECAY
    epsilon: float = ADAM_EPSILON

    def slots(self, weight: Tensor) -> Tensors:
        """Three slots: the first moment m, the second moment v, and the number of steps t."""
        return {
            "first": torch.zeros_like(weight),
            "second": torch.zeros_like(weight),
            "steps": weight.new_zeros(()),
        }

    @torch.no_grad()
    def step(self, state: LayerState, gradients: Mapping[str, Tensor]) -> None:
        """Take one step, in place."""
        first_decay, second_decay = self.decay
        for name, gradient in gradients.items():
            slots = state.slots[name]
            first = slots["first"].lerp_(gradient, 1 - first_decay)
            second = slots["second"].lerp_(gradient.square(), 1 - second_decay)
            steps = _with_axes_of(gradient, slots["steps"].add_(1))
            root = (second / (1 - second_decay**steps)).sqrt_().add_(self.epsilon)
            state.weights[name].sub_(first / (1 - first_decay**steps) / root, alpha=self.learning_rate)

    def reach(self, state: LayerState, gradients: Mapping[str, Tensor]) -> Tensors:
        """γ g/(√v̂ + ε) with the present v̂; before the first step, with v̂ = g²."""
        return {name: self._reach(state.slots[name], gradient) for name, gradient in gradients.items()}

    def _reach(self, slots: Tensors, gradient: Tensor) -> Tensor:
        correction = 1 - self.decay[1] ** slots["steps"]  # 0 before the first step
        corrected = slots["second"] / correction.clamp_min(UNUSED_DIVISOR)
        second = torch.where(correction > 0, corrected, gradient.square())
        return self.learning_rate * gradient / (second.sqrt() + self.epsilon)


def _with_axes_of(weight: Tensor, counters: Tensor) -> Tensor:
    """Counters with axes of length 1 appended, so that they broadcast against a weight.

    There is one counter for a weight, or one for each replica of a stacked weight.
    """
    return counters.reshape(counters.shape + (1,) * (weight.dim() - counters.dim()))


OPTIMIZERS: dict[str, Callable[[float], Optimizer]] = {"sgd": Sgd, "momentum": Momentum, "adam": Adam}


def optimizer(name: str, learning_rate: float) -> Optimizer:
    """The optimiser with this name."""
    if name not in OPTIMIZERS:
        raise InputError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {name!r}")
    return OPTIMIZERS[name](learning_rate)
