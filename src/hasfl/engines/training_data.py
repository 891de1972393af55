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
    """Samples where they are computed on, shared out between devices."""

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
        return self.minibatches.sizes

    def draw(self, order: Order) -> list[IntN]:
        """What each device uses in a round: a column a sample, its index and then how it is cropped."""
        draws = zip(order.devices.tolist(), order.drawn.tolist(), order.batch_sizes.tolist(), strict=True)
        return [self._draw(i, start, b, order.round) for i, start, b in draws]

    def _draw(self, device: int, start: int, count: int, round: int) -> IntN:
        indices = self.shares[device][self.minibatches.draw(device, start, count)]
        crops = draw_crops(self.seeds, round, device, count) if self.augment else ()
        return np.stack([indices, *crops])

    def some_of_every_device(self, most: int) -> Tensor:
        """Indices of samples, so many in all at most, as many of each device or all it has; mixed.

        They depend on the seed alone.
        """
        stream = self.seeds.stream("calibration")
        each = max(most // len(self.shares), 1)
        picked = np.concatenate([stream.permutation(share)[:each] for share in self.shares])
        return torch.from_numpy(stream.permutation(picked)[:most]).to(self.x.device)

    def gather(self, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """The samples of columns that `draw` made, one device's after the other's, and their labels."""
        x, y = self.x[drawn[0]], self.y[drawn[0]]
        return (crop_and_flip(x, drawn[1], drawn[2], drawn[3]) if self.augment else x), y

    def batch(self, order: Order) -> tuple[Tensor, Tensor]:
        """All samples of a round and their labels."""
        return self.gather(torch.from_numpy(np.concatenate(self.draw(order), axis=1)).to(self.x.device))
