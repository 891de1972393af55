"""The order in which a device uses its samples (ξ_i^t). The order is the same on every engine.

This file imports NumPy only, no torch.
"""

from dataclasses import dataclass, field

import numpy as np

from hasfl.arrays import IntN, counts
from hasfl.errors import InputError
from hasfl.seeds import Seeds


@dataclass(frozen=True, slots=True, eq=False)
class Minibatches:
    """An endless sequence of samples for every device: each epoch is a new permutation of its samples.

    Device i holds `sizes[i]` samples. The drawn samples depend only on the seed and on the arguments of
    `draw`. The permutation of a device's current epoch is cached.
    """

    seeds: Seeds
    sizes: IntN
    _current: dict[int, tuple[int, IntN]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", counts("sizes", self.sizes))

    def draw(self, device: int, start: int, count: int) -> IntN:
        """The samples number `start` to `start + count - 1` of a device, as positions in its own data.

        The numbers run from 0 over all epochs. A batch may begin in one epoch and end in a later one.
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
