"""A world that devices report: who is there, what they have, and when it counts."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.errors import InputError
from hasfl.seeds import Seeds
from hasfl.theory.paradigms import SEQUENTIAL, SPLIT, usual_participants
from hasfl.world import AlwaysThere, LiveWorld, ObservedWorld, World
from tests.training.fakes import small_fleet

DEVICES, INTERVAL = 6, 3
FLEET = small_fleet(DEVICES)
SEEDS = Seeds(4)


class There:
    """Who is connected; -1 is the edge server, which is no device."""

    def __init__(self) -> None:
        self.parties = {-1, *range(DEVICES)}

    def __call__(self) -> frozenset[int]:
        return frozenset(self.parties)


def world(there: There, participation: float = 1.0) -> LiveWorld:
    return LiveWorld(FLEET, there, seeds=SEEDS, interval=INTERVAL, participation=participation)


@pytest.mark.parametrize("participation", [1.0, 0.5, 0.1])
def test_while_all_are_there_it_is_the_simulated_world(participation: float) -> None:
    live: ObservedWorld = world(There(), participation)
    simulated: ObservedWorld = World(
        fleet=FLEET, seeds=SEEDS, interval=INTERVAL, absences=AlwaysThere(), participation=participation
    )
    for t in range(1, 10 * INTERVAL):
        assert live.present(t).tolist() == sorted(simulated.present(t).tolist())
        assert live.present_so_far(t).tolist() == simulated.present_so_far(t).tolist()
        for mine, theirs in zip(live.fleet_at(t), simulated.fleet_at(t), strict=True):
            assert mine == theirs
    assert live.fleet_at(1).server_fed_down_rate == FLEET.server_fed_down_rate
    for paradigm in (SPLIT, SEQUENTIAL):
        assert usual_participants(live, paradigm) == usual_participants(simulated, paradigm)


def test_reports_count_from_the_next_interval_on() -> None:
    live = world(There())
    first = live.fleet_at(1)
    faster = replace(FLEET[2], flops=77.0, memory=5.0)
    live.device_reports(2, faster)
    live.server_reports(server_flops=1.0, server_fed_up_rate=2.0, server_fed_down_rate=3.0)
    assert all(live.fleet_at(t) is first for t in range(1, INTERVAL + 1))
    second = live.fleet_at(INTERVAL + 1)
    assert second[2] == faster
    assert [second[i] for i in (0, 1, 3, 4, 5)] == [FLEET[i] for i in (0, 1, 3, 4, 5)]
    assert (second.server_flops, second.server_fed_up_rate, second.server_fed_down_rate) == (1.0, 2.0, 3.0)
    assert live.fleet_at(1) is first  # the end of an interval is asked for while the next one begins
    assert live.fleet_at(INTERVAL + 2) is second
    assert live.fleet.flops[2] == FLEET.flops[2]


def test_who_is_away_keeps_the_last_values() -> None:
    there = There()
    live = world(there)
    known = replace(FLEET[2], flops=77.0)
    live.device_reports(2, known)
    there.parties -= {2}
    for k in range(20):
        assert live.fleet_at(k * INTERVAL + 1)[2] == known
        assert 2 not in live.present(k * INTERVAL + 1)
    assert live.fleet_at(1)[2] == known  # long past: the oldest that is kept


def test_devices_leave_at_once_and_come_back_with_an_interval() -> None:
    there = There()
    live = world(there)
    assert live.present(1).tolist() == [0, 1, 2, 3, 4, 5]
    there.parties -= {1, 4}
    assert live.present(2).tolist() == [0, 2, 3, 5]
    there.parties |= {1}
    assert live.present(3).tolist() == [0, 2, 3, 5]
    assert live.present(INTERVAL + 1).tolist() == [0, 1, 2, 3, 5]
    assert live.present_so_far(INTERVAL + 1).tolist() == [0, 1, 2, 3, 4, 5]


@given(st.lists(st.sets(st.integers(-1, DEVICES + 2)), min_size=1, max_size=30), st.floats(0.1, 1.0))
def test_somebody_is_always_there_and_nobody_joins_within_an_interval(
    connected: list[set[int]], participation: float
) -> None:
    there = There()
    live = world(there, participation)
    before: set[int] = set()
    for t, parties in enumerate(connected, start=1):
        begins, devices = (t - 1) % INTERVAL == 0, parties & set(range(DEVICES))
        there.parties = parties | {0} if begins else parties  # an interval begins with somebody
        present = set(live.present(t).tolist())
        assert present
        assert present <= (devices | {0} if begins else before)
        assert begins or present == (before & devices or before)
        assert np.array_equal(live.present(t), sorted(present))
        before = present


def test_an_interval_without_devices_is_refused() -> None:
    there = There()
    there.parties = {-1}
    with pytest.raises(InputError, match="needs at least one connected device"):
        world(there).present(1)


def test_a_report_for_somebody_else_is_refused() -> None:
    live = world(There())
    for i, device in ((1, FLEET[2]), (DEVICES, FLEET[2]), (-1, FLEET[5])):
        with pytest.raises(InputError, match="must be one of the fleet"):
            live.device_reports(i, device)
