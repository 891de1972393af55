"""What an upgrade is worth: the seconds of training saved by 10 % more of one resource.

The same question is asked again of the upgraded fleet: what was left open is planned anew, what was given
stays. A saving is the difference of two plans, and each is known to lie within its gap of the optimum. So the
fall of the optimum lies within `error_seconds` of `saved_seconds`.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from hasfl.arrays import FloatN, IntN
from hasfl.fleet import PER_SERVER, Fleet
from hasfl.plan import Plan, PlanReport
from hasfl.problem import Problem
from hasfl.theory.latency import aggregation_latency, split_training_latency
from hasfl.theory.objective import memory_needed

MORE = 0.1
GAP = 1e-5  # a saving may be small
TIME_LIMIT = 2.0  # seconds for one question
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

Ask = Callable[[Problem, Plan], PlanReport]  # the best plan for a problem, from a plan to start with


@dataclass(frozen=True, slots=True)
class Upgrade:
    """More of one resource, and what that saves."""

    resource: str  # in words
    saved_seconds: float
    error_seconds: float

    @property
    def tells(self) -> bool:
        """Whether the saving is larger than its error."""
        return self.saved_seconds > self.error_seconds


@dataclass(frozen=True, slots=True)
class Upgrades:
    """What 10 % more of each resource saves, the most valuable first."""

    found: list[Upgrade]
    resources: int  # that the problem has; fewer were tried if the time was too short


def upgrades(plan: Plan, problem: Problem, ask: Ask, *, seconds: float) -> Upgrades:
    """Ask again with 10 % more of each resource, for at most so many seconds.

    Resources of the servers come first, then those of the devices that everybody waits for.
    """
    deadline = time.monotonic() + seconds
    base = ask(problem, plan)
    found: list[Upgrade] = []
    for resource, fleet in _upgraded_fleets(plan, problem):
        if found and time.monotonic() > deadline:
            break
        better = ask(replace(problem, fleet=fleet), base.plan)
        error = _uncertain(base) + _uncertain(better)
        found.append(Upgrade(resource, base.objective - better.objective, error))
    found.sort(key=lambda upgrade: -upgrade.saved_seconds)
    return Upgrades(found, len(SERVER_RESOURCES) + len(DEVICE_RESOURCES) * len(problem.fleet))


def pace_setters(plan: Plan, problem: Problem) -> dict[str, str]:
    """Who sets each of T₃ to T₆: the name of a device, or the edge server."""
    setters = {}
    for part, (by_device, by_server) in _parts(plan, problem).items():
        slowest = int(by_device.argmax())
        waits_for_server = by_server > by_device[slowest]
        setters[part] = EDGE_SERVER if waits_for_server else problem.fleet.names[slowest]
    return setters


def _parts(plan: Plan, problem: Problem) -> dict[str, tuple[FloatN, float]]:
    """T₃ to T₆ as the seconds of every device and of the edge server."""
    split = split_training_latency(plan, problem.fleet, problem.profile)
    aggregation = aggregation_latency(plan, problem.fleet, problem.profile)
    return {
        "T3": (split.up, 0.0),
        "T4": (split.down, 0.0),
        "T5": (aggregation.submodel_upload, aggregation.server_submodel_upload),
        "T6": (aggregation.submodel_download, aggregation.server_submodel_download),
    }


def _uncertain(report: PlanReport) -> float:
    """How far the optimum may lie below a plan; nothing is left open where no plan was searched for."""
    return 0.0 if report.lower_bound is None else report.objective - report.lower_bound


def _upgraded_fleets(plan: Plan, problem: Problem) -> Iterator[tuple[str, Fleet]]:
    fleet = problem.fleet
    for field in PER_SERVER:
        yield SERVER_RESOURCES[field], replace(fleet, **{field: getattr(fleet, field) * (1 + MORE)})
    for i in _waited_for(plan, problem):
        for field, words in DEVICE_RESOURCES.items():
            column = getattr(fleet, field).copy()
            column[i] *= 1 + MORE
            yield words.format(fleet.names[i]), replace(fleet, **{field: column})


def _waited_for(plan: Plan, problem: Problem) -> IntN:
    """All devices, sorted: first those nearest to setting one of T₃ to T₆ or to filling their memory."""
    shares = [memory_needed(plan, problem.profile) / problem.fleet.memory]
    for by_device, by_server in _parts(plan, problem).values():
        longest = max(float(by_device.max()), by_server)
        shares.append(by_device / longest if longest > 0 else by_device)
    return np.argsort(-np.max(shares, axis=0), kind="stable")
