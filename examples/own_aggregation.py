"""An aggregation rule of your own: a trimmed mean, which a single broken device cannot spoil.

In a scenario file in this folder: `training.aggregation = "own_aggregation:trimmed_mean"`, as
own_aggregation.toml has it. In Python: `simulate(…, aggregation=trimmed_mean)`.
"""

from torch import Tensor


def trimmed_mean(replicas: Tensor, samples: Tensor, before: Tensor) -> Tensor:
    """The mean without the smallest and the largest sixth of each number; the first axis is over devices."""
    left_out = len(replicas) // 6
    return replicas.sort(dim=0).values[left_out : len(replicas) - left_out].mean(dim=0)
