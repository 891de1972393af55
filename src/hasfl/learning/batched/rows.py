"""Which rows of a batch belong to which device.

A batch holds the samples of all devices, one device after the other; each sample is one row. The rows of one
device are its *place*. A place may have more rows than its device has samples. The rows left over, at the end
of the place, are *spare*: they hold filler samples and must not change any result. The other rows *count*. So
the same places serve rounds with different batch sizes.
"""

from collections.abc import Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor

STREAMS = 8  # streams on which a GPU works at the same time; eight were best on an H200 (docs/decisions/0009)


class Rows:
    """The places of all devices in a batch."""

    def __init__(self, places: Sequence[int], device: torch.device | str | None = None) -> None:
        self.places = list(places)  # rows of each device
        self.equal = len(set(self.places)) == 1
        self.counts = torch.tensor(self.places, device=device)  # rows of each device that count
        self.device_of = torch.repeat_interleave(self.counts)  # for each row, the number of its device
        first = self.counts.cumsum(0) - self.counts  # the first row of each place
        self.number = torch.arange(len(self.device_of), device=device) - first[self.device_of]  # in its place
        self.padded_at = self.device_of * max(self.places) + self.number  # of each row, in `padded`
        numbers, last = torch.arange(max(self.places), device=device), self.counts.unsqueeze(1) - 1
        self.filled_from = (first.unsqueeze(1) + torch.minimum(numbers, last)).flatten()  # rows of `filled`
        on_gpu = self.counts.is_cuda
        self.streams = [torch.cuda.Stream(self.counts.device) for _ in range(STREAMS)] if on_gpu else []
        self.used: Tensor | None = None  # for each row, whether it counts; None: all rows count

    def __len__(self) -> int:
        """The number of devices."""
        return len(self.places)

    def counting(self, counts: Tensor) -> Self:
        """The same places, in which only the first `counts[i]` rows of device i count."""
        rows = copy(self)
        rows.counts, rows.used = counts, self.number < counts[self.device_of]
        return rows

    def split(self, batch: Tensor) -> tuple[Tensor, ...]:
        """The rows of each device."""
        return torch.split(batch, self.places)

    def counted(self, values: Tensor) -> Tensor:
        """The values with 0 in every spare row."""
        if self.used is None:
            return values
        return values * self.used.to(values).reshape(-1, *(1,) * (values.dim() - 1))

    def sums(self, values: Tensor) -> Tensor:
        """For each device, the sum over its rows that count."""
        return self.padded(self.counted(values)).sum(dim=1)

    def means(self, values: Tensor) -> Tensor:
        """For each device, the mean over its rows that count."""
        sums = self.sums(values)
        return sums / self.counts.to(sums).reshape(-1, *(1,) * (sums.dim() - 1))

    def spread(self, of_devices: Tensor) -> Tensor:
        """For each row, the value of its device."""
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
        """The rows of a batch that was `padded` or `filled`."""
        flat = padded.flatten(0, 1)
        return flat if self.equal else flat.index_select(0, self.padded_at)
