"""An optimiser of your own: Lion (Chen et al. 2023), in fifteen lines.

In a scenario file in this folder: `training.optimizer = "own_optimizer:Lion"`, as own_optimizer.toml has it.
In Python: `simulate(…, optimizer=Lion())`. The same step is taken for one weight and for the replicas of all
devices at once, so it must treat every number alone. `rate` is the learning rate of the round.
"""

import torch
from torch import Tensor


class Lion:
    """w ← w − γ sign(0.9 m + 0.1 g), then m ← 0.99 m + 0.01 g."""

    decays_apart = True  # weight decay shrinks the weight itself, as in AdamW

    def slots(self, weight: Tensor) -> dict[str, Tensor]:
        """What is kept for a weight: a moving mean of its gradients. Memory and traffic count it."""
        return {"mean": torch.zeros_like(weight)}

    def step(self, weight: Tensor, gradient: Tensor, slots: dict[str, Tensor], rate: Tensor) -> None:
        """Change the weight and its slots in place."""
        direction = torch.lerp(slots["mean"], gradient, 0.1).sign()
        weight.sub_(rate * direction)
        slots["mean"].lerp_(gradient, 0.01)
