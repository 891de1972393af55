"""The step of each optimiser: how a gradient changes one weight, in place.

A step is elementwise, so one call steps the replicas of all devices at once: weight, gradient and slots then
have one more axis, the first, over devices. A slot is a tensor that an optimiser keeps for a weight. Slots
are aggregated and copied with their weight. An optimiser of a user's own has a method `step`, and the other
methods of `Optimizer` where it needs them:

    class SignSgd:
        def step(self, weight, gradient, slots, rate):
            weight.sub_(rate * gradient.sign())
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hasfl.state.layer_state import Tensors

MOMENTUM = 0.9  # μ; the customary value
ADAM_DECAY = (0.9, 0.999)  # β₁ and β₂, as Kingma and Ba 2015 propose
ADAM_EPSILON = 1e-8  # as Kingma and Ba 2015 propose


class Optimizer(Protocol):
    """How a gradient changes a weight."""

    @property
    def decays_apart(self) -> bool:
        """Whether weight decay shrinks the weight itself (AdamW), and is not added to the gradient."""

    def slots(self, weight: Tensor) -> Tensors:
        """The slots of a weight before the first step, each as large as the weight or one number.

        A slot of one number has as many axes as the weight, each of length 1, so that it broadcasts.
        """

    def step(self, weight: Tensor, gradient: Tensor, slots: Tensors, rate: Tensor) -> None:
        """Take one step in place. `rate` is γ, a tensor without axes; `gradient` must not be changed."""


@dataclass(frozen=True, slots=True)
class Sgd:
    """Plain SGD, the paper's optimiser: w ← w − γ g."""

    decays_apart = False

    def slots(self, weight: Tensor) -> Tensors:
        """No slots."""
        return {}

    def step(self, weight: Tensor, gradient: Tensor, slots: Tensors, rate: Tensor) -> None:
        """Take one step, in place."""
        weight.addcmul_(gradient, rate, value=-1)


@dataclass(frozen=True, slots=True)
class Momentum:
    """SGD with momentum: m ← μ m + g, w ← w − γ m. With `nesterov`, w ← w − γ (g + μ m)."""

    momentum: float = MOMENTUM
    nesterov: bool = False
    decays_apart = False

    def slots(self, weight: Tensor) -> Tensors:
        """One slot: m, the decaying sum of gradients."""
        return {"momentum": torch.zeros_like(weight)}

    def step(self, weight: Tensor, gradient: Tensor, slots: Tensors, rate: Tensor) -> None:
        """Take one step, in place."""
        decaying_sum = slots["momentum"].mul_(self.momentum).add_(gradient)
        ahead = gradient.add(decaying_sum, alpha=self.momentum) if self.nesterov else decaying_sum
        weight.addcmul_(ahead, rate, value=-1)


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam (Kingma and Ba 2015): w ← w − γ m̂/(√v̂ + ε).

    m and v are moving means of g and g². m̂ = m/(1 − β₁ᵗ) and v̂ = v/(1 − β₂ᵗ) correct their start at 0; t is
    the number of steps. AdamW (Loshchilov and Hutter 2019) is Adam with `decays_apart`.
    """

    decay: tuple[float, float] = ADAM_DECAY
    epsilon: float = ADAM_EPSILON
    decays_apart: bool = False

    def slots(self, weight: Tensor) -> Tensors:
        """Three slots: the first moment m, the second moment v, and the number of steps t."""
        return {
            "first": torch.zeros_like(weight),
            "second": torch.zeros_like(weight),
            "steps": weight.new_zeros((1,) * weight.dim()),
        }

    def step(self, weight: Tensor, gradient: Tensor, slots: Tensors, rate: Tensor) -> None:
        """Take one step, in place."""
        first_decay, second_decay = self.decay
        first = slots["first"].lerp_(gradient, 1 - first_decay)
        second = slots["second"].lerp_(gradient.square(), 1 - second_decay)
        steps = slots["steps"].add_(1)
        root = (second / (1 - second_decay**steps)).sqrt_().add_(self.epsilon)
        weight.addcmul_(first / (1 - first_decay**steps) / root, rate, value=-1)


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": Sgd(),
    "momentum": Momentum(),
    "nesterov": Momentum(nesterov=True),
    "adam": Adam(),
    "adamw": Adam(decays_apart=True),
}
