"""Rehearsal of a box that one does not have: this machine's work and links, made as slow as the box's.

A rehearsal only waits. It cannot make a machine faster, so a step never takes less time than it really took.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

from hasfl.arrays import quantity
from hasfl.units import BITS_PER_BYTE, Dimension, parse_quantity

Clock = Callable[[], float]  # seconds since some moment; never goes back
Sleep = Callable[[float], None]


@dataclass(slots=True)
class SlowTo:
    """Makes every step of work take as long as on a box with so many FLOP/s."""

    flops: float  # FLOP/s
    clock: Clock = time.monotonic
    sleep: Sleep = time.sleep
    overruns: int = 0  # steps for which this machine was slower than the box; a rehearsal should have few

    def __post_init__(self) -> None:
        quantity("the FLOP/s of a rehearsal", self.flops, positive=True)

    @classmethod
    def parse(cls, written: str) -> Self:
        """Read "50 GFLOPS"."""
        return cls(parse_quantity(written, Dimension.COMPUTE))

    @contextmanager
    def step(self, flop_count: float) -> Iterator[None]:
        """Work of so many FLOP. If the work fails, nothing is waited out."""
        end = self.clock() + flop_count / self.flops
        yield
        if self.clock() > end:
            self.overruns += 1
        _wait_until(end, self.clock, self.sleep)


class Direction:
    """One direction of a link: bits leave one after the other, at a fixed rate and without bursts."""

    def __init__(self, bits_per_second: float) -> None:
        self.bits_per_second = bits_per_second
        self._free_at = 0.0  # when the last bit so far has left
        self._lock = threading.Lock()

    def reserve(self, size: int, now: float) -> float:
        """Queue so many bytes behind all earlier ones; returns the moment when their last bit has left.

        A link that had nothing to send for a while has saved up nothing.
        """
        with self._lock:
            self._free_at = max(now, self._free_at) + BITS_PER_BYTE * size / self.bits_per_second
            return self._free_at


@dataclass(slots=True)
class Link:
    """The stream to one server, made as slow as a link of so many bit/s; up and down do not share the rate.

    A device has one link to the edge server and another one to the fed server. A party that stamps times
    stamps an answer before `before_sending`, and a question after `after_receiving`.
    """

    bits_per_second: float
    clock: Clock = time.monotonic
    sleep: Sleep = time.sleep
    up: Direction = field(init=False)
    down: Direction = field(init=False)

    def __post_init__(self) -> None:
        quantity("the bit/s of a rehearsal", self.bits_per_second, positive=True)
        self.up, self.down = Direction(self.bits_per_second), Direction(self.bits_per_second)

    @classmethod
    def parse(cls, written: str) -> Self:
        """Read "20 Mbps"."""
        return cls(parse_quantity(written, Dimension.RATE))

    def before_sending(self, size: int) -> None:
        """Wait as long as the link needs for so many bytes."""
        self._pass(self.up, size)

    def after_receiving(self, size: int) -> None:
        """Wait as long as the link would have needed for so many bytes."""
        self._pass(self.down, size)

    def _pass(self, direction: Direction, size: int) -> None:
        _wait_until(direction.reserve(size, self.clock()), self.clock, self.sleep)


def _wait_until(end: float, clock: Clock, sleep: Sleep) -> None:
    """Sleep until a moment; a sleep may end too early, so it is repeated."""
    while (rest := end - clock()) > 0:
        sleep(rest)
