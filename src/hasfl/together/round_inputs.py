"""What differs from round to round, as tensors whose shapes a layout sets."""

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
    """Everybody's samples in their places."""

    drawn: Tensor  # a column for each place: the sample's index, and how it is cropped
    counts: Tensor  # of samples that count, for each place
    replicas: Tensor  # whose place it is
    places: Tensor  # of each replica: the inverse of `replicas`
    together: Tensor  # where the samples that count lie, for layers that all devices share
    weights: Tensor  # of those samples in the loss: 1/b_i, and 0 for what is left over

    @classmethod
    def of(cls, draws: Sequence[IntN], layout: Layout, device: torch.device, dtype: torch.dtype) -> Self:
        """Put what each replica drew into its place; what is left over is filled with the first sample."""
        counts = np.array([draws[i].shape[1] for i in layout.replicas])
        first = np.cumsum(layout.places) - layout.places
        used = np.concatenate([start + np.arange(b) for start, b in zip(first, counts, strict=True)])
        columns = np.zeros((len(draws[0]), sum(layout.places)), dtype=np.int64)
        columns[:, used] = np.concatenate([draws[i] for i in layout.replicas], axis=1)
        spare = layout.room - len(used)

        def there(array: IntN) -> Tensor:
            return torch.from_numpy(array).to(device, non_blocking=True)

        return cls(
            drawn=there(columns),
            counts=there(counts),
            replicas=there(layout.replicas),
            places=there(np.argsort(layout.replicas)),
            together=there(np.pad(used, (0, spare))),
            weights=there(np.pad(np.repeat(1 / counts, counts), (0, spare))).to(dtype),
        )
