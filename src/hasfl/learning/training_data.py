"""The training samples and held-out samples of each device, and the samples of each round."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import IntN, counts
from hasfl.data.augmentation import crop_and_flip, draw_crops
from hasfl.data.dataset import one_class_each
from hasfl.data.partition import label_counts
from hasfl.errors import InputError
from hasfl.goal import held_out_counts
from hasfl.plan import Order
from hasfl.seeds import Seeds

# ── the order of samples ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, eq=False)
class Minibatches:
    """An endless sequence of samples for every device. Each epoch is a new permutation of its samples.

    Device i holds `sizes[i]` samples. The drawn samples depend only on the seed and on the arguments of
    `draw`. The permutation of a device's current epoch is cached.
    """

    seeds: Seeds
    sizes: IntN
    _current: dict[int, tuple[int, IntN]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", counts("sizes", self.sizes))

    def draw(self, device: int, start: int, count: int) -> IntN:
        """The positions, in a device's own data, of samples `start` to `start + count - 1` of its sequence.

        Samples are counted from 0 over all epochs. A batch may begin in one epoch and end in a later one.
        """
        if not 0 <= device < len(self.sizes):
            raise InputError(f"device must be from 0 to {len(self.sizes) - 1}, got {device}")
        if start < 0 or count < 0:
            raise InputError(f"start and count must be at least 0, got {start} and {count}")
        size = int(self.sizes[device])
        first, last = start // size, max(start, start + count - 1) // size
        orders = [self._order(device, epoch) for epoch in range(first, last + 1)]
        return np.concatenate(orders)[start - first * size :][:count]

    def _order(self, device: int, epoch: int) -> IntN:
        cached = self._current.get(device)
        if cached is not None and cached[0] == epoch:
            return cached[1]
        order = self.seeds.stream("epoch", epoch, device).permutation(int(self.sizes[device]))
        self._current[device] = (epoch, order)
        return order


# ── the samples of all devices ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, eq=False)
class TrainingData:
    """The samples of all devices in one tensor, and the indices that belong to each device."""

    x: Tensor
    y: Tensor  # labels
    shares: tuple[IntN, ...]  # indices of the samples that each device trains on
    seeds: Seeds
    minibatches: Minibatches
    augment: bool = False  # whether images are cropped and flipped at random
    held_out: Tensor | None = None  # indices of the held-out samples of all devices; None: there are none
    held_out_shares: tuple[IntN, ...] = ()  # positions of each device's own samples in `held_out`

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
        """Divide the samples among devices; each device holds out the fraction `held_out` of its share."""
        training_shares, put_aside, held_out_shares = _divided(shares, seeds, held_out)
        sizes = np.array([len(share) for share in training_shares])
        index = torch.from_numpy(put_aside).to(x.device)
        return cls(
            x,
            y,
            training_shares,
            seeds,
            Minibatches(seeds, sizes),
            augment,
            held_out=index if len(index) else None,
            held_out_shares=held_out_shares,
        )

    @property
    def sizes(self) -> IntN:
        """The number |D_i| of samples that each device trains on."""
        return self.minibatches.sizes

    def label_counts(self) -> IntN | None:
        """The number of samples of each class that every device trains on; None if a sample has no class."""
        if not one_class_each(self.y):
            return None
        labels = self.y.cpu().numpy()
        return label_counts(self.shares, labels, int(labels.max()) + 1)

    def held_out_samples(self) -> tuple[Tensor, Tensor] | None:
        """The held-out samples of all devices and their labels; None where there are none."""
        return None if self.held_out is None else (self.x[self.held_out], self.y[self.held_out])

    def draw(self, order: Order) -> list[IntN]:
        """The samples that each device uses in a round: one array per device, one column per sample.

        The first row holds the indices of the samples. With augmentation three more rows follow: the row and
        the column at which the crop begins, and whether the image is flipped.
        """
        draws = zip(order.devices.tolist(), order.drawn.tolist(), order.batch_sizes.tolist(), strict=True)
        drawn = []
        for device, start, count in draws:
            indices = self.shares[device][self.minibatches.draw(device, start, count)]
            crops = draw_crops(self.seeds, order.round, device, count) if self.augment else ()
            drawn.append(np.stack([indices, *crops]))
        return drawn

    def some_of_every_device(self, most: int) -> Tensor:
        """The indices of at most `most` training samples in random order, equally many of every device.

        A device with fewer samples gives all of them. The indices depend on the seed alone.
        """
        stream = self.seeds.stream("calibration")
        per_device = given_by_every_device(self.sizes, most).tolist()
        chosen = [stream.permutation(own)[:n] for own, n in zip(self.shares, per_device, strict=True)]
        return torch.from_numpy(stream.permutation(np.concatenate(chosen))[:most]).to(self.x.device)

    def gather(self, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """The samples and labels that the columns from `draw` name, in the same order."""
        x, y = self.x[drawn[0]], self.y[drawn[0]]
        return (crop_and_flip(x, drawn[1], drawn[2], drawn[3]) if self.augment else x), y

    def batch(self, order: Order) -> tuple[Tensor, Tensor]:
        """All samples and labels of a round, device by device."""
        return self.gather(torch.from_numpy(np.concatenate(self.draw(order), axis=1)).to(self.x.device))


def _divided(
    shares: Sequence[IntN], seeds: Seeds, held_out: float
) -> tuple[tuple[IntN, ...], IntN, tuple[IntN, ...]]:
    """Hold out samples of every device.

    Returns for each device the indices that it trains on, in their old order; all indices that are held out,
    in rising order; and for each device the positions of its own held-out samples in that list.

    Devices may hold the same sample. No device trains on a sample that another one holds out, and a sample
    that is held out already counts for every device that holds it.
    """
    samples = 1 + max((int(np.max(share)) for share in shares if len(share)), default=-1)
    put_aside = np.zeros(samples, dtype=bool)
    counts = held_out_counts(np.array([len(share) for share in shares]), held_out)
    for device, (share, count) in enumerate(zip(shares, counts.tolist(), strict=True)):
        order = np.asarray(share)[seeds.stream("held_out", device).permutation(len(share))]
        missing = count - int(put_aside[share].sum())
        put_aside[order[~put_aside[order]][: max(missing, 0)]] = True
    training_shares = tuple(np.asarray(share)[~put_aside[share]] for share in shares)
    if any(len(share) and not len(rest) for share, rest in zip(shares, training_shares, strict=True)):
        raise InputError("other devices hold out all samples of one device: hold out less, or share less")
    position = put_aside.cumsum() - 1
    own = tuple(position[np.asarray(share)[put_aside[share]]] for share in shares)
    return training_shares, np.flatnonzero(put_aside), own


def given_by_every_device(sizes: IntN, most: int) -> IntN:
    """The number of samples that each device gives, if all give equally many and at most `most` in all."""
    given: IntN = np.minimum(sizes, max(most // len(sizes), 1))
    return given
