"""Devices that leave and come back, by schedule or at random.

A device that is away in a round takes no part in the rest of the interval either, because it lacks the
current model. From the next interval on it can take part again, with the aggregated model.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import IntN, count, frozen
from hasfl.errors import InputError
from hasfl.seeds import Seeds

# Histories of random absences that are cached. Chosen by hand: a run needs one history at a time.
CACHED_HISTORIES = 8


class Absences(Protocol):
    """Says which devices take part in which round."""

    def present(self, t: int, devices: int, seeds: Seeds, interval: int) -> IntN:
        """The sorted indices of the devices that take part in round t.

        `devices` is the size of the fleet, and `interval` is I.
        """


@dataclass(frozen=True, slots=True)
class AlwaysThere:
    """Every device takes part in every round."""

    def present(self, t: int, devices: int, seeds: Seeds, interval: int) -> IntN:
        """The indices of all devices."""
        return np.arange(devices)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Absences known in advance: the index of a device, and its first and last round away."""

    absences: tuple[tuple[int, int, int], ...]

    def __post_init__(self) -> None:
        for device, first, last in self.absences:
            count("first round of an absence", first)
            if count("last round of an absence", last) < first:
                raise InputError(
                    f"device {device} cannot be away from round {first} to round {last}: swap the two rounds"
                )

    def present(self, t: int, devices: int, seeds: Seeds, interval: int) -> IntN:
        """The devices without an absence between the first round of the interval and round t."""
        first_of_interval = t - (t - 1) % interval
        present = np.ones(devices, dtype=bool)
        for device, first, last in self.absences:
            if not 0 <= device < devices:
                raise InputError(
                    f"the schedule names device {device}, but the fleet has {devices} devices, counted from 0"
                )
            if first <= t and last >= first_of_interval:
                present[device] = False
        if not present.any():
            raise InputError(f"the schedule leaves no device in round {t}: let at least one device stay")
        return np.flatnonzero(present)


@dataclass(frozen=True, slots=True)
class RandomDropout:
    """In every round each device leaves, or comes back, with a fixed probability.

    In round 1 all devices take part. If no device would be left, one device of the previous round stays: the
    device with the largest random number.
    """

    leave: float  # probability that a present device leaves
    come_back: float  # probability that an absent device comes back

    def __post_init__(self) -> None:
        for field in ("leave", "come_back"):
            if not 0 <= getattr(self, field) <= 1:
                raise InputError(f"{field} must be a probability from 0 to 1, got {getattr(self, field)!r}")

    def present(self, t: int, devices: int, seeds: Seeds, interval: int) -> IntN:
        """The devices that have not dropped out."""
        rounds = 1 << (t - 1).bit_length()  # the next power of two: later rounds rarely need a new history
        return np.flatnonzero(_history(self, seeds, devices, interval, rounds)[t - 1])


@lru_cache(maxsize=CACHED_HISTORIES)
def _history(
    dropout: RandomDropout, seeds: Seeds, devices: int, interval: int, rounds: int
) -> NDArray[np.bool_]:
    """Which devices take part in which round, as an array (rounds, devices).

    A history of more rounds begins with the history of fewer rounds.
    """
    reachable = taking_part = np.ones(devices, dtype=bool)
    history = [taking_part]
    for t in range(2, rounds + 1):
        draws = seeds.stream("dropout", t).random(devices)
        reachable = np.where(reachable, draws >= dropout.leave, draws < dropout.come_back)
        interval_begins = (t - 1) % interval == 0
        previous, taking_part = taking_part, reachable if interval_begins else reachable & taking_part
        if not taking_part.any():
            # -1 is below every draw, so the maximum is taken over the devices of the previous round.
            stays = np.arange(devices) == np.where(previous, draws, -1.0).argmax()
            reachable, taking_part = reachable | stays, stays
        history.append(taking_part)
    return frozen(np.array(history))
