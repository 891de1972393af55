"""What an upgrade is worth: the seconds of training saved by 10 % more of one resource.

The cuts stay as they are and the batch sizes adapt, exactly, because that is what training does from one
round to the next; a saving found so is one that can be had.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.planning.joint import best_batches
from hasfl.problem import Problem
from hasfl.theory.latency import split_training_latency

MORE = 0.1
GAP = 1e-6  # a saving may be small
CONSIDERED = 30  # devices of a large fleet: those that everybody waits for, first

DEVICE_RESOURCES = {"flops": "compute", "up_rate": "uplink", "down_rate": "downlink", "memory": "memory"}
SERVER_RESOURCES = {
    "server_flops": "compute of the edge server",
    "server_fed_up_rate": "link from the edge server to the fed server",
    "server_fed_down_rate": "link from the fed server to the edge server",
}


@dataclass(frozen=True, slots=True)
class Upgrade:
    """More of one resource, and what that saves."""

    resource: str  # in words
    saved_seconds: float


def upgrades(plan: Plan, problem: Problem) -> list[Upgrade]:
    """What 10 % more of each resource saves, the most valuable first; 0 where it is too little to tell."""
    base = best_batches(problem, plan.cuts, gap=GAP, start=plan)
    found = []
    for resource, fleet in _upgraded_fleets(plan, problem):
        better = best_batches(replace(problem, fleet=fleet), plan.cuts, gap=GAP, start=base.plan)
        saved = base.objective - better.objective
        found.append(Upgrade(resource, saved if saved > 2 * GAP * base.objective else 0.0))
    return sorted(found, key=lambda upgrade: -upgrade.saved_seconds)


def _upgraded_fleets(plan: Plan, problem: Problem) -> Iterator[tuple[str, Fleet]]:
    fleet = problem.fleet
    for field, words in SERVER_RESOURCES.items():
        yield words, replace(fleet, **{field: getattr(fleet, field) * (1 + MORE)})
    split = split_training_latency(plan, fleet, problem.profile)
    waited_for = np.argsort(
        -np.maximum(split.up / split.up.max(), split.down / split.down.max()), kind="stable"
    )
    for i in waited_for[:CONSIDERED]:
        for field, words in DEVICE_RESOURCES.items():
            column = getattr(fleet, field).copy()
            column[i] *= 1 + MORE
            yield f"{words} of device {fleet.names[i]}", replace(fleet, **{field: column})
