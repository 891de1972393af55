"""The seconds of training that 10 % more of one resource saves, for `hasfl plan --why`.

For each resource the planner solves the same problem with an upgraded fleet. Batch sizes or cuts that the
user fixed stay fixed. `saved_seconds` is the difference between the Θ of two plans. Each plan lies within its
gap of the optimum, so the optimum itself falls by `saved_seconds` ± `error_seconds`.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np

from hasfl.arrays import FloatN, IntN
from hasfl.fleet import PER_SERVER, Fleet
from hasfl.plan import Plan, PlanReport
from hasfl.problem import Problem
from hasfl.theory.latency import aggregation_latency, split_training_latency
from hasfl.theory.objective import memory_needed

MORE = 0.1  # share by which an upgrade raises a resource; chosen by hand
# Gap of the compared plans: a hundredth of the planner's gap, because savings are small differences. Chosen
# by hand.
GAP = 1e-5
TIME_LIMIT = 2.0  # seconds for one search; short, because a fleet has many resources; chosen by hand
DEVICE_RESOURCES = {
    "flops": "compute of device {}",
    "up_rate": "uplink of device {}",
    "down_rate": "downlink of device {}",
    "fed_up_rate": "link from device {} to the fed server",
    "fed_down_rate": "link from the fed server to device {}",
    "memory": "memory of device {}",
}
SERVER_RESOURCES = {
    "server_flops": "compute of the edge server",
    "server_fed_up_rate": "link from the edge server to the fed server",
    "server_fed_down_rate": "link from the fed server to the edge server",
}
EDGE_SERVER = "the edge server"

Ask = Callable[[Problem, Plan], PlanReport]  # (problem, first plan) → the best plan


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The upgrade of one resource, and the seconds of training that it saves."""

    resource: str  # the resource in words, such as "uplink of device 3"
    saved_seconds: float
    error_seconds: float  # the true saving may differ from `saved_seconds` by this

    @property
    def tells(self) -> bool:
        """True if the saving is larger than its error."""
        return self.saved_seconds > self.error_seconds

    def as_json(self, objective: float, *, rounds_known: bool) -> dict[str, object]:
        """The upgrade as plain values; as shares of the `objective` Θ if the rounds are unknown."""
        if rounds_known:
            return asdict(self)
        return {
            "resource": self.resource,
            "saved_share": self.saved_seconds / objective,
            "error_share": self.error_seconds / objective,
        }


@dataclass(frozen=True, slots=True)
class Upgrades:
    """The upgrades of single resources, the largest saving first."""

    found: list[Upgrade]
    resources: int  # number of resources of the problem; `found` has fewer entries if the time was too short


def upgrades(plan: Plan, problem: Problem, ask: Ask, *, seconds: float) -> Upgrades:
    """Plan with 10 % more of each resource. No plan is started after `seconds`, but at least one is made.

    The resources of the edge server come first, then the devices, the slowest devices first.
    """
    deadline = time.monotonic() + seconds
    base = ask(problem, plan)
    tried: list[Upgrade] = []
    for resource, fleet in _upgraded_fleets(plan, problem):
        if tried and time.monotonic() > deadline:
            break
        better = ask(replace(problem, fleet=fleet), base.plan)
        error = _distance_to_optimum(base) + _distance_to_optimum(better)
        tried.append(Upgrade(resource, base.objective - better.objective, error))
    tried.sort(key=lambda upgrade: -upgrade.saved_seconds)
    return Upgrades(tried, resources(problem))


def resources(problem: Problem) -> int:
    """The number of resources of a fleet that can be upgraded."""
    return len(SERVER_RESOURCES) + len(DEVICE_RESOURCES) * len(problem.fleet)


def pace_setters(plan: Plan, problem: Problem) -> dict[str, str]:
    """The slowest party in each of T₃ to T₆: the name of a device, or the edge server."""
    setters = {}
    for part, (by_device, by_server) in _parts(plan, problem).items():
        slowest = int(by_device.argmax())
        waits_for_server = by_server > by_device[slowest]
        setters[part] = EDGE_SERVER if waits_for_server else problem.fleet.names[slowest]
    return setters


def _parts(plan: Plan, problem: Problem) -> dict[str, tuple[FloatN, float]]:
    """The seconds of every device and of the edge server in each of T₃ to T₆."""
    split = split_training_latency(plan, problem.fleet, problem.profile)
    aggregation = aggregation_latency(plan, problem.fleet, problem.profile)
    return {
        "T3": (split.up, 0.0),
        "T4": (split.down, 0.0),
        "T5": (aggregation.submodel_upload, aggregation.server_submodel_upload),
        "T6": (aggregation.submodel_download, aggregation.server_submodel_download),
    }


def _distance_to_optimum(report: PlanReport) -> float:
    """The most seconds by which the optimum may lie below a plan; 0 for a fixed plan without a search."""
    return 0.0 if report.lower_bound is None else report.objective - report.lower_bound


def _upgraded_fleets(plan: Plan, problem: Problem) -> Iterator[tuple[str, Fleet]]:
    """Pairs of a resource in words and the fleet with 10 % more of this resource."""
    fleet = problem.fleet
    for field in PER_SERVER:
        yield SERVER_RESOURCES[field], replace(fleet, **{field: getattr(fleet, field) * (1 + MORE)})
    for i in _slowest_first(plan, problem):
        for field, words in DEVICE_RESOURCES.items():
            column = getattr(fleet, field).copy()
            column[i] *= 1 + MORE
            yield words.format(fleet.names[i]), replace(fleet, **{field: column})


def _slowest_first(plan: Plan, problem: Problem) -> IntN:
    """The indices of all devices, sorted by how much each limits the plan, most limiting first.

    Sorted by the largest of: share of used memory, and seconds over the slowest party's seconds in T₃ to T₆.
    """
    shares = [memory_needed(plan, problem.profile) / problem.fleet.memory]
    for by_device, by_server in _parts(plan, problem).values():
        longest = max(float(by_device.max()), by_server)
        shares.append(by_device / longest if longest > 0 else by_device)
    return np.argsort(-np.max(shares, axis=0), kind="stable")
