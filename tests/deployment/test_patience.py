"""How long a fed server waits: deadlines from the plan, and how often a lost interval is repeated."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hasfl.deployment.fed_server import IntervalLost
from hasfl.deployment.resources import CONNECTING_SECONDS, SHORTEST, SLACK, Deadlines
from hasfl.deployment.training import MOST_LOSSES, FleetAtWork, FleetLost, LogWatcher
from hasfl.plan import Order, Plan
from hasfl.record import EDGE
from tests.deployment.fleets import ordered


class Clock:
    """Predicts a second for each sample of a round, and ten for an aggregation."""

    def depth(self, plan: Plan) -> int:
        return int(plan.cuts.max())

    def round(self, now: Any) -> Any:
        return SimpleNamespace(seconds=float(now.plan.batch_sizes.sum()))

    def aggregation(self, now: Any, after: Any) -> Any:
        assert now == after
        return SimpleNamespace(seconds=10.0)


def order(*sizes: int) -> Order:
    plan = Plan(np.array(sizes), np.ones(len(sizes), dtype=np.int64))
    devices = np.arange(len(sizes))
    return Order(round=1, devices=devices, plan=plan, drawn=np.zeros_like(devices))


def test_deadlines_follow_the_plan() -> None:
    fleet = SimpleNamespace(only=lambda devices: "fleet")
    deadlines = Deadlines(Clock(), SimpleNamespace(fleet_at=lambda round: fleet))
    for sizes in ((1,), (16, 16), (3, 4, 5)):
        assert deadlines.of_round(order(*sizes)) == SLACK * sum(sizes) + SHORTEST
        assert deadlines.of_exchange(order(*sizes)) == SLACK * 10.0 + SHORTEST + CONNECTING_SECONDS


def test_a_lost_interval_is_repeated_but_not_for_ever() -> None:
    watcher, lost = LogWatcher(), IntervalLost("the edge server was lost")
    for _ in range(MOST_LOSSES):
        watcher.lost(lost)
    with pytest.raises(FleetLost, match="the edge server was lost"):
        watcher.lost(lost)


@pytest.mark.parametrize("aggregated", [True, False])
def test_a_completed_interval_and_nothing_less_forgives_earlier_losses(aggregated: bool) -> None:
    watcher = LogWatcher()
    for _ in range(MOST_LOSSES):
        watcher.lost(IntervalLost("no device is left"))
    watcher.recorded(SimpleNamespace(aggregated=aggregated, measured=None))
    if aggregated:
        watcher.lost(IntervalLost("no device is left"))
    else:
        with pytest.raises(FleetLost):
            watcher.lost(IntervalLost("no device is left"))


@pytest.mark.parametrize("present", [set(), {EDGE}, {0, 1}])
def test_a_fleet_that_does_not_come_back_is_named(present: set[int]) -> None:
    server = SimpleNamespace(present=lambda: frozenset(present))
    fleet = FleetAtWork(server, ordered(Path("run"), devices=2))
    with pytest.raises(FleetLost, match=r"come back within 0\.1 s"):
        fleet.wait(0.1)


def test_a_fleet_that_is_back_is_not_waited_for() -> None:
    asked: list[Any] = []
    server = SimpleNamespace(
        present=lambda: frozenset({EDGE, 1}),
        wait_until_present=lambda parties, seconds: asked.append(set(parties)),
    )
    FleetAtWork(server, ordered(Path("run"), devices=2)).wait(0.1)
    assert asked == [{EDGE, 0, 1}]  # a little, for the device that is still away
