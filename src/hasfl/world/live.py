"""A world that is measured and not simulated: what devices report, and which of them are connected."""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from hasfl.arrays import IntN, count, share
from hasfl.errors import InputError
from hasfl.fleet import Device, Fleet
from hasfl.seeds import Seeds
from hasfl.world.world import ranks_in, share_of

KEPT = 4  # intervals whose fleets are kept; training asks for the present one and for its neighbours


class LiveWorld:
    """The fleet as it was last measured. A device that is away keeps the values that it last had.

    Rounds are asked for in their order; for a round that is long past, the oldest interval that is kept
    answers. What is reported during an interval counts from the next one on, so all rounds of an interval
    have the same fleet. A device that connects during an interval takes part from the next one on.
    """

    def __init__(
        self,
        fleet: Fleet,
        connected: Callable[[], Collection[int]],
        *,
        seeds: Seeds,
        interval: int,
        participation: float = 1.0,
    ) -> None:
        """Begin with the values that devices greeted with; `connected` says who is there now."""
        self.fleet, self.seeds = fleet, seeds
        self.interval = count("interval", interval)
        self.participation = share("participation", participation)
        self._connected = connected
        self._devices: list[Device] = list(fleet)
        self._server = {
            "server_flops": fleet.server_flops,
            "server_fed_up_rate": fleet.server_fed_up_rate,
            "server_fed_down_rate": fleet.server_fed_down_rate,
        }
        self._fleets: dict[int, Fleet] = {}  # by interval
        self._members: dict[int, IntN] = {}  # by interval: who is left of those that it began with
        self._so_far = np.zeros(len(fleet), dtype=bool)

    def device_reports(self, i: int, device: Device) -> None:
        """Take the newest values of device i."""
        if not 0 <= i < len(self.fleet) or device.name != self.fleet.names[i]:
            raise InputError(f"device {i} must be one of the fleet, but {device.name!r} has reported for it")
        self._devices[i] = device

    def server_reports(
        self, *, server_flops: float, server_fed_up_rate: float, server_fed_down_rate: float
    ) -> None:
        """Take the newest values of the edge server."""
        self._server = {
            "server_flops": server_flops,
            "server_fed_up_rate": server_fed_up_rate,
            "server_fed_down_rate": server_fed_down_rate,
        }

    def fleet_at(self, round: int) -> Fleet:
        """The whole fleet as it was known when its interval was first asked for."""
        k = max(self._interval_of(round), min(self._fleets, default=0))
        if k not in self._fleets:
            self._fleets[k] = Fleet.of(self._devices, **self._server)
            _forget_old(self._fleets)
        return self._fleets[k]

    def present(self, round: int) -> IntN:
        """Who is connected, of those that were there when the interval was first asked for.

        If nobody of them is left, those who left last. The engine then finds that they do not answer.
        """
        k = max(self._interval_of(round), min(self._members, default=0))
        connected = np.array(sorted(i for i in self._connected() if 0 <= i < len(self.fleet)), dtype=np.int64)
        if k not in self._members:
            self._members[k] = self._sampled(k, connected)
            _forget_old(self._members)
        left = np.intersect1d(self._members[k], connected)
        if left.size:
            self._members[k] = left
        self._so_far[self._members[k]] = True
        return self._members[k]

    def present_so_far(self, round: int) -> IntN:
        """All devices that have taken part up to a round."""
        self.present(round)
        return np.flatnonzero(self._so_far)

    @property
    def usual_participants(self) -> int:
        """How many devices take part in an interval while every device is there."""
        return share_of(self.participation, len(self.fleet))

    def _interval_of(self, round: int) -> int:
        return (count("round", round) - 1) // self.interval

    def _sampled(self, k: int, connected: IntN) -> IntN:
        """The share of the connected devices that takes part in interval k; nobody there is an error."""
        if not connected.size:
            raise InputError(
                "an interval needs at least one connected device, but none is: start a device, then resume"
            )
        if self.participation == 1:
            return connected
        ranks = ranks_in(k, len(self.fleet), self.seeds)
        chosen = connected[ranks[connected].argsort()][: share_of(self.participation, len(connected))]
        return np.sort(chosen)


def _forget_old(by_interval: dict[int, Any]) -> None:
    for k in sorted(by_interval)[:-KEPT]:
        del by_interval[k]
