"""A term of your own in the loss of each device: FedProx (Li et al. 2020), in ten lines.

In a scenario file in this folder: `training.local_term = "own_local_term:proximal"`, as own_local_term.toml
has it. In Python: `simulate(…, local_term=proximal)`.
"""

from torch import Tensor

MU = 0.1


def proximal(weight: Tensor, anchor: Tensor) -> Tensor:
    """Pulls a weight toward its anchor, the weight with which the interval began."""
    return MU / 2 * (weight - anchor).square().sum()
