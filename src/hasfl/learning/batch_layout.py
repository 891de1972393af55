"""The layout of a batch: the rows that belong to each device.

A batch holds the samples of all devices, one device after the other; each sample is one row. The rows of one
device are its *place*. A place may have more rows than its device has samples. The rows left over, at the end
of the place, are *spare*: they hold filler samples and must not change any result. The other rows *count*. So
the same places serve rounds with different batch sizes.

On a CPU, and on a GPU without CUDA graphs, each device gets as many rows as it has samples. A CUDA graph
(`cuda_graphs.py`) needs shapes that stay the same, while batch sizes change from round to round. So a few
layouts with spare rows serve all rounds with CUDA graphs. The device with the largest batch takes the
largest place, and so on. Each round uses the smallest layout that holds its batch sizes. Common layers see
the samples without the spare rows between them, so a layout also has the total number of their rows.
"""

from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import IntN

# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────


STREAMS = 8  # CUDA streams that a GPU works on at once; eight were best on an H200 (docs/decisions/0009)


class Rows:
    """The places of all devices in a batch."""

    def __init__(self, places: Sequence[int], device: torch.device | str | None = None) -> None:
        self.places = list(places)  # rows of each device
        self.equal = len(set(self.places)) == 1
        self.counts = torch.tensor(self.places, device=device)  # rows of each device that count
        self.device_of = torch.repeat_interleave(self.counts)  # the index of each row's device
        first = self.counts.cumsum(0) - self.counts  # the first row of each place
        # The number of each row within its place.
        self.number = torch.arange(len(self.device_of), device=device) - first[self.device_of]
        self.padded_at = self.device_of * max(self.places) + self.number  # indices of rows in `padded`
        numbers, last = torch.arange(max(self.places), device=device), self.counts.unsqueeze(1) - 1
        # For each row of `filled`, the row of the batch that it copies.
        self.filled_from = (first.unsqueeze(1) + torch.minimum(numbers, last)).flatten()
        on_gpu = self.counts.is_cuda
        self.streams = [torch.cuda.Stream(self.counts.device) for _ in range(STREAMS)] if on_gpu else []
        self.used: Tensor | None = None  # True for each row that counts; None: all rows count

    def __len__(self) -> int:
        """The number of devices."""
        return len(self.places)

    def counting(self, counts: Tensor) -> Self:
        """The same places, in which only the first `counts[i]` rows of device i count."""
        rows = copy(self)
        rows.counts, rows.used = counts, self.number < counts[self.device_of]
        return rows

    def split(self, batch: Tensor) -> tuple[Tensor, ...]:
        """The batch divided by device: one tensor of rows for each."""
        return torch.split(batch, self.places)

    def counted(self, values: Tensor) -> Tensor:
        """The values, with 0 in every spare row."""
        if self.used is None:
            return values
        return values * self.used.to(values).reshape(-1, *(1,) * (values.dim() - 1))

    def sums(self, values: Tensor) -> Tensor:
        """The sum over the rows that count, for each device."""
        return self.padded(self.counted(values)).sum(dim=1)

    def means(self, values: Tensor) -> Tensor:
        """The mean over the rows that count, for each device."""
        sums = self.sums(values)
        return sums / self.counts.to(sums).reshape(-1, *(1,) * (sums.dim() - 1))

    def spread(self, of_devices: Tensor) -> Tensor:
        """The value of the row's device, for each row."""
        return of_devices.index_select(0, self.device_of)

    def padded(self, batch: Tensor) -> Tensor:
        """The batch as (devices, rows of the largest place, …). Shorter places are filled up with zeros."""
        if self.equal:
            return batch.reshape(len(self), self.places[0], *batch.shape[1:])
        padded = batch.new_zeros(len(self) * max(self.places), *batch.shape[1:])
        return padded.index_copy(0, self.padded_at, batch).reshape(len(self), -1, *batch.shape[1:])

    def filled(self, batch: Tensor) -> Tensor:
        """The batch as (devices, rows of the largest place, …). Shorter places repeat their last row."""
        if self.equal:
            return self.padded(batch)
        filled = batch.index_select(0, self.filled_from)
        return filled.reshape(len(self), -1, *batch.shape[1:])

    def unpadded(self, padded: Tensor) -> Tensor:
        """The batch from which `padded` or `filled` made the given tensor."""
        flat = padded.flatten(0, 1)
        return flat if self.equal else flat.index_select(0, self.padded_at)


# ── layouts ──────────────────────────────────────────────────────────────────────────────────────────────


# The numbers below were chosen by hand. benchmarks/round_h200_2026-11-15.md shows the effect ("ragged").
PATIENCE = 30  # rounds with unchanged batch sizes after which these sizes get an exact layout
REVIEW = 32  # rounds between two reviews; a review may add a layout
RECENT_REVIEWS = 2  # a new layout is made from the rounds of this many reviews
WORTH_ADDING = 1.1  # a review adds a layout if the rounds since the last one had more rows per sample
# The places of the k-th layout that a review adds are quantiles of the recent batch sizes: the k-th number
# here. So the first layout holds every recent round, and the others hold many rounds with fewer spare rows.
ADDED = (1.0, 0.8, 0.9, 0.65)
# Sizes are rounded up to this many significant bits, that is in steps of a sixteenth to an eighth of the
# size. So sizes that differ little get the same layout.
LEADING_BITS = 4


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of all devices, and the rows of the batch that common layers see."""

    places: tuple[int, ...]  # rows of each place
    total: int  # rows in common layers: at least the sum of all batch sizes
    exact: bool  # True: no row is spare, and places are in the order of the replicas
    replicas: IntN = field(compare=False)  # the replica of each place


@dataclass(slots=True)
class Layouts:
    """Chooses a layout for each round from the batch sizes of the rounds so far."""

    reuse: bool  # whether few layouts serve many rounds (for CUDA graphs); otherwise every layout is exact
    last: tuple[int, ...] = ()  # batch sizes of the last round
    same: int = 0  # rounds since the batch sizes last changed
    own: set[tuple[int, ...]] = field(default_factory=set)  # batch sizes that have an exact layout
    shelves: dict[int, "_Shelf"] = field(default_factory=dict)  # one shelf for each number of devices

    def choose(self, sizes: Sequence[int]) -> Layout:
        """A layout for a round with the given batch sizes, in the order of the replicas."""
        exact = tuple(sizes)
        self.same = self.same + 1 if exact == self.last else 0
        self.last = exact
        if not self.reuse or self.same >= PATIENCE or len(set(exact)) == 1 or exact in self.own:
            self.own |= {exact} if self.reuse else set()
            return Layout(exact, sum(exact), True, np.arange(len(exact)))
        by_size = np.argsort(-np.array(exact), kind="stable")
        shelf = self.shelves.setdefault(len(exact), _Shelf())
        places, total = shelf.choose(np.array(exact)[by_size])
        return Layout(places, total, False, by_size)


@dataclass(slots=True)
class _Shelf:
    """The layouts with spare rows for one number of devices, and recent batch sizes for making new ones.

    A shelf begins empty. A round that no layout holds adds a layout in which every place has the size of the
    largest batch, rounded up. Reviews add layouts with fewer spare rows.
    """

    layouts: list[tuple[IntN, int]] = field(default_factory=list)  # (places, largest first; total)
    recent: deque[IntN] = field(default_factory=lambda: deque(maxlen=RECENT_REVIEWS * REVIEW))  # sizes
    rows_per_sample: float = 0.0  # rows over samples, summed over the rounds since the last review
    rounds: int = 0  # rounds since the last review
    added: int = 0  # number of layouts that reviews have added

    def choose(self, sizes: IntN) -> tuple[tuple[int, ...], int]:
        """The places and the total of the smallest layout for these batch sizes, sorted largest first."""
        self.recent.append(sizes)
        self._review()
        fitting = [
            (places, total)
            for places, total in self.layouts
            if (places >= sizes).all() and total >= sizes.sum()
        ]
        if not fitting:
            widest = np.full(len(sizes), _rounded_up(int(sizes[0])))
            fitting = [(widest, int(widest.sum()))]
            self.layouts += fitting
        places, total = min(fitting, key=lambda layout: layout[0].sum() + layout[1])
        self.rows_per_sample += float(places.sum() / sizes.sum())
        self.rounds += 1
        return tuple(places.tolist()), total

    def _review(self) -> None:
        """Every `REVIEW` rounds: if too many rows were spare, add a layout made from recent batch sizes."""
        if self.rounds < REVIEW:
            return
        if self.rows_per_sample > WORTH_ADDING * self.rounds and self.added < len(ADDED):
            quantile = ADDED[self.added]
            places = np.ceil(np.quantile(self.recent, quantile, axis=0)).astype(np.int64)
            total = np.quantile([sizes.sum() for sizes in self.recent], quantile)
            self.layouts.append((places, _rounded_up(int(np.ceil(total)))))
            self.added += 1
        self.rows_per_sample, self.rounds = 0.0, 0


def _rounded_up(size: int) -> int:
    """The next number that has at most `LEADING_BITS` significant bits."""
    step = 1 << max(size.bit_length() - LEADING_BITS, 0)
    return -(-size // step) * step


@dataclass(frozen=True, slots=True)
class RoundInputs:
    """The inputs of a round: where each sample lies in the batch, its weight, and the learning rate."""

    drawn: Tensor  # one column of `TrainingData.draw` for each row of the batch
    counts: Tensor  # number of rows of each place that count: the batch size of its device
    replicas: Tensor  # the replica of each place
    places: Tensor  # the place of each replica: the inverse of `replicas`
    together: Tensor  # the row of the private layers' batch for each row of the common layers' batch
    weights: Tensor  # weight in the loss of each row of the common layers' batch: 1/b_i; 0 for a spare row
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
