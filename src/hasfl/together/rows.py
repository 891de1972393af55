"""Which samples of a batch belong to which device.

Every device has a place in the batch, which may be larger than its samples are many: what is left over
holds samples that count for nothing. So one arrangement of places serves rounds whose batch sizes differ.
"""

from collections.abc import Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor

STREAMS = 8  # on which a GPU works side by side; eight were best on an H200 (docs/decisions/0009)


class Rows:
    """Places for the samples of all devices, one device's after the other's."""

    def __init__(self, places: Sequence[int], device: torch.device | str | None = None) -> None:
        self.places = list(places)
        self.equal = len(set(self.places)) == 1
        self.counts = torch.tensor(self.places, device=device)  # of samples, for each device
        self.device_of = torch.repeat_interleave(self.counts)  # for each sample
        first = (self.counts.cumsum(0) - self.counts)[self.device_of]
        self.number = torch.arange(len(self.device_of), device=device) - first  # among its device's
        on_gpu = self.counts.is_cuda
        self.streams = [torch.cuda.Stream(self.counts.device) for _ in range(STREAMS)] if on_gpu else []
        self.used: Tensor | None = None  # for each sample whether it counts; all do, if there is nothing

    def __len__(self) -> int:
        return len(self.places)

    def counting(self, counts: Tensor) -> Self:
        """The same places, of which only the first few of each device count."""
        rows = copy(self)
        rows.counts, rows.used = counts, self.number < counts[self.device_of]
        return rows

    def split(self, batch: Tensor) -> tuple[Tensor, ...]:
        """Each device's place."""
        return torch.split(batch, self.places)

    def counted(self, values: Tensor) -> Tensor:
        """The same values, with zeros for samples that do not count."""
        if self.used is None:
            return values
        return values * self.used.to(values).reshape(-1, *(1,) * (values.dim() - 1))

    def sums(self, values: Tensor) -> Tensor:
        """For each device the sum over its samples."""
        return self.padded(self.counted(values)).sum(dim=1)

    def means(self, values: Tensor) -> Tensor:
        """For each device the mean over its samples."""
        sums = self.sums(values)
        return sums / self.counts.to(sums).reshape(-1, *(1,) * (sums.dim() - 1))

    def spread(self, of_devices: Tensor) -> Tensor:
        """For each sample the value of its device."""
        return of_devices.index_select(0, self.device_of)

    def padded(self, batch: Tensor) -> Tensor:
        """A device a row, all as long as the longest; what is added is zero."""
        if self.equal:
            return batch.reshape(len(self), self.places[0], *batch.shape[1:])
        rows = batch.new_zeros(len(self), max(self.places), *batch.shape[1:])
        return rows.index_put((self.device_of, self.number), batch)

    def unpadded(self, rows: Tensor) -> Tensor:
        """What `padded` was made from."""
        return rows.flatten(0, 1) if self.equal else rows[self.device_of, self.number]
