"""The devices' data: which samples each holds, and which it uses in a round."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import IntN
from hasfl.data.augmentation import crop_and_flip, draw_crops
from hasfl.data.minibatch import Minibatches
from hasfl.engines.api import Order
from hasfl.seeds import Seeds


@dataclass(frozen=True, slots=True, eq=False)
class TrainingData:
    """Samples on the computing device, shared out between devices."""

    x: Tensor
    y: Tensor
    shares: tuple[IntN, ...]  # which samples each device holds
    seeds: Seeds
    minibatches: Minibatches
    augment: bool = False

    @classmethod
    def of(
        cls, x: Tensor, y: Tensor, shares: Sequence[IntN], seeds: Seeds, *, augment: bool = False
    ) -> "TrainingData":
        """Share samples out; `augment` crops and flips images at random."""
        sizes = np.array([len(share) for share in shares])
        return cls(x, y, tuple(shares), seeds, Minibatches(seeds, sizes), augment)

    @property
    def sizes(self) -> IntN:
        """|D_i|, how many samples each device holds."""
        return np.array([len(share) for share in self.shares], dtype=np.int64)

    def batch(self, order: Order) -> tuple[Tensor, Tensor]:
        """What the devices use in a round, one device's samples after the other's."""
        draws = zip(order.devices.tolist(), order.drawn.tolist(), order.batch_sizes.tolist(), strict=True)
        picked = [self.shares[i][self.minibatches.draw(i, start, b)] for i, start, b in draws]
        x, y = self.samples(np.concatenate(picked))
        return (self._augmented(x, order), y) if self.augment else (x, y)

    def samples(self, indices: IntN) -> tuple[Tensor, Tensor]:
        """Some samples, as they are."""
        rows = torch.from_numpy(indices).to(self.x.device)
        return self.x[rows], self.y[rows]

    def _augmented(self, x: Tensor, order: Order) -> Tensor:
        each = zip(order.devices.tolist(), order.batch_sizes.tolist(), strict=True)
        draws = [draw_crops(self.seeds, order.round, i, b) for i, b in each]
        rows, columns, flips = (
            torch.from_numpy(np.concatenate(drawn)).to(x.device) for drawn in zip(*draws, strict=True)
        )
        return crop_and_flip(x, rows, columns, flips)
