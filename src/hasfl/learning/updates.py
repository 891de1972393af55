"""From gradients to new weights: clipping, weight decay, and the optimiser's step with the rate of the round.

**Clipping.** Devices have no gradient of the whole model in common, because private layers have a gradient
for each device. Let g_i be the gradient of device i's private layers and ḡ the mean gradient of the common
layers. Device i's gradient has the norm n_i, and the mean over devices has the norm n:

    n_i² = |g_i|² + |ḡ|²,      n² = mean_i |g_i|² + |ḡ|²

g_i is multiplied by min(1, clip/n_i), and ḡ by min(1, clip/n). With one device, or without private layers, or
without common layers, this is torch.nn.utils.clip_grad_norm_.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hasfl.learning.optimizers import Optimizer
from hasfl.learning.state import LayerState, Tensors
from hasfl.schedule import RateSchedule

TORCH_EPSILON = 1e-6  # torch adds this to a norm before it divides by the norm


@dataclass(frozen=True, slots=True)
class Updates:
    """How gradients change weights. Everything happens in place, so that a CUDA graph can record it."""

    optimizer: Optimizer
    rates: RateSchedule
    weight_decay: float = 0.0
    clip: float | None = None  # the largest norm of a gradient

    def slots(self, weight: Tensor) -> Tensors:
        """The optimiser's slots for a weight before the first step."""
        return self.optimizer.slots(weight)

    @torch.no_grad()
    def step(self, state: LayerState, gradients: Mapping[str, Tensor], rate: Tensor) -> None:
        """Take one step with the weights of a layer. `gradients` has the names of the weights.

        Weight decay is added to the gradient, or shrinks the weight where the optimiser decays apart.
        """
        for name, gradient in gradients.items():
            weight = state.weights[name]
            own_rate = rate.to(weight.dtype)
            if self.weight_decay and self.optimizer.decays_apart:
                weight.mul_(1 - own_rate * self.weight_decay)
            elif self.weight_decay:
                gradient = gradient.add(weight, alpha=self.weight_decay)
            self.optimizer.step(weight, gradient, state.slots[name], own_rate)

    def clipped(
        self, private: Sequence[Tensors], common: Sequence[Tensors], nothing: Tensor
    ) -> tuple[list[Tensors], list[Tensors]]:
        """The gradients of private layers, stacked over devices, and of common layers, after clipping.

        `nothing` holds a 0 for each device.
        """
        own, mean = self.clip_factors(_squares(private, nothing), squared_norm(common, nothing))
        return (
            [
                {name: g * own.to(g.dtype).reshape(-1, *[1] * (g.dim() - 1)) for name, g in layer.items()}
                for layer in private
            ],
            [scaled(layer, mean) for layer in common],
        )

    def clip_factors(self, private: Tensor, common: Tensor) -> tuple[Tensor, Tensor]:
        """The factors of each device's private gradient and of the common gradient, by the head of this file.

        `private` holds |g_i|² for each device, `common` is |ḡ|².
        """
        return self.clip_factor(private + common), self.clip_factor(private.mean() + common)

    def clip_factor(self, square: Tensor) -> Tensor:
        """min(1, clip/n) for n²; 1 where gradients are not clipped."""
        if self.clip is None:
            return torch.ones_like(square)
        return (self.clip / (square.sqrt() + TORCH_EPSILON)).clamp(max=1.0)


def scaled(gradients: Mapping[str, Tensor], factor: Tensor) -> Tensors:
    """Every tensor times a number, in its own dtype."""
    return {name: tensor * factor.to(tensor.dtype) for name, tensor in gradients.items()}


def squared_norm(gradients: Iterable[Mapping[str, Tensor]], like: Tensor) -> Tensor:
    """The sum of the squares of all numbers, without axes, in the dtype and on the device of `like`."""
    total = like.new_zeros(())
    for layer in gradients:
        for tensor in layer.values():
            total = total + tensor.square().sum().to(total)
    return total


def _squares(stacked: Iterable[Mapping[str, Tensor]], nothing: Tensor) -> Tensor:
    """The sum of the squares of each replica's numbers."""
    total = nothing
    for layer in stacked:
        for tensor in layer.values():
            total = total + tensor.square().reshape(len(tensor), -1).sum(1).to(total)
    return total
