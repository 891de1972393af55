"""Which samples a device uses in which order (ξ_i^t): the same on every engine. NumPy only."""

from dataclasses import dataclass, field

import numpy as np

from hasfl.arrays import IntN, counts
from hasfl.errors import InputError
from hasfl.seeds import Seeds


@dataclass(frozen=True, slots=True, eq=False)
class Minibatches:
    """Endless samples for every device: each epoch is its whole share in a fresh order.

    Device i holds `sizes[i]` samples. What it draws depends on the seed and the numbers asked for
    alone; only the order of its current epoch is kept, to save making it again.
    """

    seeds: Seeds
    sizes: IntN
    _current: dict[int, tuple[int, IntN]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", counts("sizes", self.sizes))

    def draw(self, device: int, start: int, count: int) -> IntN:
        """Positions, in the device's own share, of its samples number `start` to `start + count - 1`.

        Samples are numbered from 0 over all epochs; a batch that crosses the end of one goes on in
        the next.
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
