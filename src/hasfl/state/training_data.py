"""The devices' data: which samples each holds, and which it uses in a round."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import IntN
from hasfl.data.augmentation import crop_and_flip, draw_crops
from hasfl.data.minibatch import Minibatches
from hasfl.goal import held_out_counts
from hasfl.plan import Order
from hasfl.seeds import Seeds


@dataclass(frozen=True, slots=True, eq=False)
class TrainingData:
    """All samples, on the machine that computes, and which device holds which of them."""

    x: Tensor
    y: Tensor
    shares: tuple[IntN, ...]  # for each device, the indices of the samples that it trains on
    seeds: Seeds
    minibatches: Minibatches
    augment: bool = False
    held_out: Tensor | None = None  # indices of the samples that devices hold out for decisions; None: none

    @classmethod
    def of(
        cls,
        x: Tensor,
        y: Tensor,
        shares: Sequence[IntN],
        seeds: Seeds,
        *,
        augment: bool = False,
        held_out: float = 0.0,
    ) -> "TrainingData":
        """Share samples out; every device holds the share `held_out` of its samples out from training."""
        kept, put_aside = _divided(shares, seeds, held_out)
        sizes = np.array([len(share) for share in kept])
        index = torch.from_numpy(np.concatenate(put_aside)).to(x.device)
        return cls(x, y, kept, seeds, Minibatches(seeds, sizes), augment, index if len(index) else None)

    @property
    def sizes(self) -> IntN:
        """|D_i|, how many samples each device holds."""
        return self.minibatches.sizes

    def held_out_samples(self) -> tuple[Tensor, Tensor] | None:
        """The held-out samples of all devices and their labels; None where there are none."""
        return None if self.held_out is None else (self.x[self.held_out], self.y[self.held_out])

    def draw(self, order: Order) -> list[IntN]:
        """The samples of each device in a round: a column each, its index and then how it is cropped."""
        draws = zip(order.devices.tolist(), order.drawn.tolist(), order.batch_sizes.tolist(), strict=True)
        return [self._draw(i, start, b, order.round) for i, start, b in draws]

    def _draw(self, device: int, start: int, count: int, round: int) -> IntN:
        indices = self.shares[device][self.minibatches.draw(device, start, count)]
        crops = draw_crops(self.seeds, round, device, count) if self.augment else ()
        return np.stack([indices, *crops])

    def some_of_every_device(self, most: int) -> Tensor:
        """Indices of at most `most` training samples in random order, equally many of every device.

        A device with fewer gives all it has. The indices depend on the seed alone.
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


def _divided(shares: Sequence[IntN], seeds: Seeds, held_out: float) -> tuple[tuple[IntN, ...], list[IntN]]:
    """The samples that each device trains on, in their order, and those that it holds out."""
    counts = held_out_counts(np.array([len(share) for share in shares]), held_out)
    kept, put_aside = [], []
    for device, (share, count) in enumerate(zip(shares, counts.tolist(), strict=True)):
        chosen = seeds.stream("held_out", device).permutation(len(share))[:count]
        kept.append(np.delete(share, chosen))
        put_aside.append(np.asarray(share)[np.sort(chosen)])
    return tuple(kept), put_aside
