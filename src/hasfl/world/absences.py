"""Devices that come and go: by schedule or by chance.

Who was away for any round of an interval, or at its beginning, lacks the aggregated model, and so takes
part again when the next interval begins.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import IntN, count, frozen
from hasfl.errors import InputError
from hasfl.seeds import Seeds


class Absences(Protocol):
    """Who is away when."""

    def present(self, t: int, devices: int, seeds: Seeds, interval: int) -> IntN:
        """Which of `devices` devices take part in round t, sorted; `interval` is I."""


@dataclass(frozen=True, slots=True)
class AlwaysThere:
    """Nobody is ever away."""

    def present(self, t: int, devices: int, seeds: Seeds, interval: int) -> IntN:
        """All of them."""
        return np.arange(devices)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Absences known beforehand: the index of a device, and its first and last round away."""

    absences: tuple[tuple[int, int, int], ...]

    def __post_init__(self) -> None:
        for device, first, last in self.absences:
            count("first round of an absence", first)
            if count("last round of an absence", last) < first:
                raise InputError(f"device {device} cannot be away from round {first} to round {last}")

    def present(self, t: int, devices: int, seeds: Seeds, interval: int) -> IntN:
        """Those without an absence between the beginning of the interval and round t."""
        begun = t - (t - 1) % interval
        there = np.ones(devices, dtype=bool)
        for device, first, last in self.absences:
            if not 0 <= device < devices:
                raise InputError(
                    f"the schedule names device {device}, but the fleet has {devices}, from 0 on"
                )
            if first <= t and last >= begun:
                there[device] = False
        if not there.any():
            raise InputError(f"the schedule leaves nobody in round {t}: let at least one device stay")
        return np.flatnonzero(there)


@dataclass(frozen=True, slots=True)
class RandomDropout:
    """Chances, in every round, that a device leaves and that one which left comes back.

    In round 1 everyone is there. If all would be gone, then of those that took part last, the one with the
    largest draw stays.
    """

    leave: float
    come_back: float

    def __post_init__(self) -> None:
        for field in ("leave", "come_back"):
            if not 0 <= getattr(self, field) <= 1:
                raise InputError(f"{field} must be a probability from 0 to 1, got {getattr(self, field)!r}")

    def present(self, t: int, devices: int, seeds: Seeds, interval: int) -> IntN:
        """Those whom chance has left."""
        rounds = 1 << (t - 1).bit_length()
        return np.flatnonzero(_history(self, seeds, devices, interval, rounds)[t - 1])


@lru_cache(maxsize=8)
def _history(
    dropout: RandomDropout, seeds: Seeds, devices: int, interval: int, rounds: int
) -> NDArray[np.bool_]:
    """Who takes part (rounds, devices); more rounds begin with the same ones."""
    there = taking_part = np.ones(devices, dtype=bool)
    history = [taking_part]
    for t in range(2, rounds + 1):
        draws = seeds.stream("dropout", t).random(devices)
        there = np.where(there, draws >= dropout.leave, draws < dropout.come_back)
        last, taking_part = taking_part, there if (t - 1) % interval == 0 else there & taking_part
        if not taking_part.any():
            stays = np.arange(devices) == np.where(last, draws, -1.0).argmax()
            there, taking_part = there | stays, stays
        history.append(taking_part)
    return frozen(np.array(history))
