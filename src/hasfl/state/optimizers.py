"""The gradient step, in place: the only place where one is written. Elementwise, so replicas may be stacked.

What an optimiser keeps for a weight are its slots, which are aggregated and moved with the weight.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hasfl.errors import InputError
from hasfl.state.layer_state import LayerState, Tensors


class Optimizer(Protocol):
    """How weights move along their gradients."""

    @property
    def learning_rate(self) -> float:
        """γ."""

    def slots(self, weight: Tensor) -> Tensors:
        """What is kept for a weight, before the first step."""

    def step(self, state: LayerState, gradients: Mapping[str, Tensor]) -> None:
        """Move the weights of a layer; tensors are changed in place."""

    def reach(self, state: LayerState, gradients: Mapping[str, Tensor]) -> Tensors:
        """How far such gradients move the weights of a layer in the long run; nothing is changed."""


@dataclass(frozen=True, slots=True)
class Sgd:
    """w ← w − γ g, the paper's."""

    learning_rate: float

    def slots(self, weight: Tensor) -> Tensors:
        """Nothing is kept."""
        return {}

    @torch.no_grad()
    def step(self, state: LayerState, gradients: Mapping[str, Tensor]) -> None:
        """One step."""
        for name, gradient in gradients.items():
            state.weights[name].sub_(gradient, alpha=self.learning_rate)

    def reach(self, state: LayerState, gradients: Mapping[str, Tensor]) -> Tensors:
        """γ g."""
        return {name: self.learning_rate * gradient for name, gradient in gradients.items()}


@dataclass(frozen=True, slots=True)
class Momentum:
    """m ← μ m + g, w ← w − γ m."""

    learning_rate: float
    momentum: float = 0.9

    def slots(self, weight: Tensor) -> Tensors:
        """The moving mean of gradients."""
        return {"momentum": torch.zeros_like(weight)}

    @torch.no_grad()
    def step(self, state: LayerState, gradients: Mapping[str, Tensor]) -> None:
        """One step."""
        for name, gradient in gradients.items():
            moving = state.slots[name]["momentum"].mul_(self.momentum).add_(gradient)
            state.weights[name].sub_(moving, alpha=self.learning_rate)

    def reach(self, state: LayerState, gradients: Mapping[str, Tensor]) -> Tensors:
        """γ g, and what is left of it in each of the steps to come: γ/(1 − μ) g."""
        reach = self.learning_rate / (1 - self.momentum)
        return {name: reach * gradient for name, gradient in gradients.items()}


@dataclass(frozen=True, slots=True)
class Adam:
    """Kingma and Ba 2015."""

    learning_rate: float
    decay: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8

    def slots(self, weight: Tensor) -> Tensors:
        """Two moving moments, and how many steps were taken."""
        return {
            "first": torch.zeros_like(weight),
            "second": torch.zeros_like(weight),
            "steps": weight.new_zeros(()),
        }

    @torch.no_grad()
    def step(self, state: LayerState, gradients: Mapping[str, Tensor]) -> None:
        """One step."""
        first_decay, second_decay = self.decay
        for name, gradient in gradients.items():
            slots = state.slots[name]
            first = slots["first"].lerp_(gradient, 1 - first_decay)
            second = slots["second"].lerp_(gradient.square(), 1 - second_decay)
            steps = _beside(slots["steps"].add_(1), gradient)
            root = (second / (1 - second_decay**steps)).sqrt_().add_(self.epsilon)
            state.weights[name].sub_(first / (1 - first_decay**steps) / root, alpha=self.learning_rate)

    def reach(self, state: LayerState, gradients: Mapping[str, Tensor]) -> Tensors:
        """γ g by the root of the second moment as it stands; before the first step, of this gradient."""
        return {name: self._reach(state.slots[name], gradient) for name, gradient in gradients.items()}

    def _reach(self, slots: Tensors, gradient: Tensor) -> Tensor:
        seen = 1 - self.decay[1] ** slots["steps"]
        second = torch.where(seen > 0, slots["second"] / seen.clamp_min(1e-30), gradient.square())
        return self.learning_rate * gradient / (second.sqrt() + self.epsilon)


def _beside(counters: Tensor, weight: Tensor) -> Tensor:
    """One counter for a weight, or one for each replica of it, shaped to multiply them."""
    return counters.reshape(counters.shape + (1,) * (weight.dim() - counters.dim()))


OPTIMIZERS: dict[str, Callable[[float], Optimizer]] = {"sgd": Sgd, "momentum": Momentum, "adam": Adam}


def optimizer(name: str, learning_rate: float) -> Optimizer:
    """The optimiser of that name."""
    if name not in OPTIMIZERS:
        raise InputError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {name!r}")
    return OPTIMIZERS[name](learning_rate)
