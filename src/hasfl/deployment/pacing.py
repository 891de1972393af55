"""Rehearsal of a slower machine: makes the work and the links of this machine as slow as those of another.

A rehearsal only waits. It cannot make this machine faster, so a step takes at least its real time.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

from hasfl.arrays import quantity
from hasfl.units import BITS_PER_BYTE, Dimension, parse_quantity

Clock = Callable[[], float]  # returns seconds; never goes back
Sleep = Callable[[float], None]


@dataclass(slots=True)
class SlowTo:
    """Makes every step of work take as long as on a machine with `flops` FLOP/s."""

    flops: float  # FLOP/s of the imitated machine
    clock: Clock = time.monotonic
    sleep: Sleep = time.sleep
    overruns: int = 0  # number of steps for which this machine was too slow; should stay small

    def __post_init__(self) -> None:
        quantity("the FLOP/s of a rehearsal", self.flops, positive=True)

    @classmethod
    def parse(cls, written: str) -> Self:
        """Read a speed such as "50 GFLOPS"."""
        return cls(parse_quantity(written, Dimension.COMPUTE))

    @contextmanager
    def step(self, flop_count: float) -> Iterator[None]:
        """A context for work of `flop_count` FLOP, which waits at its end, except after an error."""
        end = self.clock() + flop_count / self.flops
        yield
        if self.clock() > end:
            self.overruns += 1
        _wait_until(end, self.clock, self.sleep)


class Direction:
    """One direction of a link: bits leave one after the other, at a fixed rate and without bursts."""

    def __init__(self, bits_per_second: float) -> None:
        self.bits_per_second = bits_per_second
        self._free_at = 0.0  # time when the last queued bit has left
        self._lock = threading.Lock()

    def reserve(self, size: int, now: float) -> float:
        """Queue `size` bytes behind all earlier bytes; return the time when their last bit has left.

        Idle time is not saved up: after a pause, bits leave at the same rate.
        """
        with self._lock:
            self._free_at = max(now, self._free_at) + BITS_PER_BYTE * size / self.bits_per_second
            return self._free_at


@dataclass(slots=True)
class Link:
    """The stream to one server, made as slow as a link with a given rate; each direction has the full rate.

    A device has one link to the edge server and another link to the fed server. The time stamps of an answer
    are taken after `after_receiving` and before `before_sending`.
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
        """Read a rate such as "20 Mbps"."""
        return cls(parse_quantity(written, Dimension.RATE))

    def before_sending(self, size: int) -> None:
        """Wait as long as the link needs to send `size` bytes."""
        self._pass(self.up, size)

    def after_receiving(self, size: int) -> None:
        """Wait as long as the link would have needed to receive `size` bytes."""
        self._pass(self.down, size)

    def _pass(self, direction: Direction, size: int) -> None:
        _wait_until(direction.reserve(size, self.clock()), self.clock, self.sleep)


def _wait_until(end: float, clock: Clock, sleep: Sleep) -> None:
    """Sleep until the time `end`; a sleep may end too early, so it is repeated."""
    while (rest := end - clock()) > 0:
        sleep(rest)
