"""The samples of one device, as a simulation would know them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hasfl.data.minibatch import Minibatches
from hasfl.goal import held_out_counts
from hasfl.learning.training_data import TrainingData
from hasfl.seeds import Seeds

ELSEWHERE = -1  # in place of the index of a sample that another device holds


def own_samples(
    x: Tensor,
    y: Tensor,
    *,
    device: int,
    samples: Sequence[int],
    seeds: Seeds,
    augment: bool = False,
    held_out: float = 0.0,
) -> TrainingData:
    """The data of one device, which draws from it what a simulation of the whole fleet would draw.

    `samples` says how many samples each device of the fleet has. The simulation must have no sample on two
    devices.
    """
    own, counts = np.arange(len(x)), held_out_counts(np.asarray(samples), held_out)
    order = seeds.stream("held_out", device).permutation(len(x))
    put_aside = np.sort(order[: counts[device]])
    sizes = np.asarray(samples) - counts
    shares = [np.full(size, ELSEWHERE) for size in sizes]
    shares[device] = np.setdiff1d(own, put_aside)
    held_out_shares = [np.zeros(0, dtype=np.int64) for _ in samples]
    held_out_shares[device] = np.arange(len(put_aside))
    return TrainingData(
        x,
        y,
        tuple(shares),
        seeds,
        Minibatches(seeds, sizes),
        augment,
        held_out=torch.from_numpy(put_aside) if len(put_aside) else None,
        held_out_shares=tuple(held_out_shares),
    )


def calibration_samples(data: TrainingData, most: int) -> Tensor:
    """The indices of the device's samples among those that measure the batch norms of a served model."""
    drawn = data.some_of_every_device(most)
    return drawn[drawn != ELSEWHERE]
