"""The inputs of one round, as tensors whose shapes depend on the layout alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import IntN
from hasfl.together.layouts import Layout


@dataclass(frozen=True, slots=True)
class RoundInputs:
    """Which samples lie where in the batch of a round, how much each weighs, and the learning rate."""

    drawn: Tensor  # one column for each row of the batch, as `TrainingData.draw` makes them
    counts: Tensor  # for each place, its rows that count: the batch size of its device
    replicas: Tensor  # for each place, the replica that it belongs to
    places: Tensor  # for each replica, its place: the inverse of `replicas`
    together: Tensor  # for each row of the common layers' batch, the row of the private layers' batch
    weights: Tensor  # for each row of the common layers' batch, its weight in the loss: 1/b_i; 0 if spare
    rate: Tensor  # γ_t, the learning rate of the round, without axes

    @classmethod
    def of(
        cls, draws: Sequence[IntN], layout: Layout, rate: float, device: torch.device, dtype: torch.dtype
    ) -> Self:
        """Put the columns that each replica drew into its place. Spare rows hold sample 0 of the data."""
        counts = np.array([draws[i].shape[1] for i in layout.replicas])
        first = np.cumsum(layout.places) - layout.places  # the first row of each place
        used = np.concatenate([start + np.arange(b) for start, b in zip(first, counts, strict=True)])
        columns = np.zeros((len(draws[0]), sum(layout.places)), dtype=np.int64)
        columns[:, used] = np.concatenate([draws[i] for i in layout.replicas], axis=1)
        spare = layout.total - len(used)

        def on_device(array: IntN) -> Tensor:
            return torch.from_numpy(array).to(device, non_blocking=True)

        return cls(
            drawn=on_device(columns),
            counts=on_device(counts),
            replicas=on_device(layout.replicas),
            places=on_device(np.argsort(layout.replicas)),
            together=on_device(np.pad(used, (0, spare))),
            weights=on_device(np.pad(np.repeat(1 / counts, counts), (0, spare))).to(dtype),
            rate=torch.full((), rate, dtype=dtype, device=device),
        )
