"""What upgrades are worth, against planning again."""

from dataclasses import replace

import numpy as np
import pytest

from hasfl.constants import MeasuredConstants
from hasfl.errors import Infeasible
from hasfl.fleet import PER_DEVICE, PER_SERVER, Fleet
from hasfl.plan import Plan, PlanReport
from hasfl.planning.advice.why import (
    DEVICE_RESOURCES,
    SERVER_RESOURCES,
    Upgrade,
    Upgrades,
    pace_setters,
    upgrades,
)
from hasfl.planning.exact.planner import best_plan
from hasfl.problem import Problem
from hasfl.theory.objective import memory_needed
from tests.lanes import quick_then_slow
from tests.planning.random_problems import measured, random_problem

FOREVER = 600.0


def ask(problem: Problem, start: Plan) -> PlanReport:
    return best_plan(problem, gap=1e-6, start=start)


def found(problem: Problem, seconds: float = FOREVER) -> Upgrades:
    return upgrades(best_plan(problem).plan, problem, ask, seconds=seconds)


def optimum(problem: Problem) -> float:
    return best_plan(problem, gap=1e-9).objective


def upgraded(problem: Problem, field: str, device: int | None = None) -> Problem:
    """10 % more of one resource."""
    value = getattr(problem.fleet, field)
    if device is not None:
        value = value.copy()
        value[device] *= 1.1
    else:
        value = value * 1.1
    return replace(problem, fleet=replace(problem.fleet, **{field: value}))


def test_every_resource_has_words() -> None:
    assert set(DEVICE_RESOURCES) == set(PER_DEVICE)
    assert set(SERVER_RESOURCES) == set(PER_SERVER)


@pytest.mark.parametrize("part", quick_then_slow([1, 0, *range(2, 10)]))  # a quick one first
def test_the_optimum_falls_by_what_is_said_within_its_error(part: int) -> None:
    tried = 0
    for seed in range(part * 20, part * 20 + 20):
        problem = random_problem(seed, devices=(1, 3), layers=(2, 5), max_batch=16)
        problem = measured(problem, seed) if seed % 2 else problem
        try:
            best = optimum(problem)
        except Infeasible:
            continue
        all_of_them = {upgrade.resource: upgrade for upgrade in found(problem).found}
        assert len(all_of_them) == 3 + 6 * len(problem.fleet)
        rng = np.random.default_rng(seed)
        server = str(rng.choice(PER_SERVER))
        said = all_of_them[SERVER_RESOURCES[server]]
        assert within_error(said, best - optimum(upgraded(problem, server)), best), (seed, server)
        i = int(rng.integers(len(problem.fleet)))
        for field, words in DEVICE_RESOURCES.items():
            said = all_of_them[words.format(problem.fleet.names[i])]
            assert within_error(said, best - optimum(upgraded(problem, field, i)), best), (seed, field)
        tried += 1
        if tried == 5:
            return
    pytest.fail(f"only {tried} problems had a plan")


def within_error(said: Upgrade, fall: float, best: float) -> bool:
    return abs(said.saved_seconds - fall) <= said.error_seconds + 1e-8 * best


def with_slow_link(field: str, factor: float) -> Problem:
    problem = random_problem(3001, devices=(8, 8), layers=(5, 5), max_batch=32)
    fleet = replace(problem.fleet, memory=np.full(8, 1e15))
    rate = getattr(fleet, field).copy()
    rate[3] /= factor
    return replace(problem, fleet=replace(fleet, **{field: rate}), interval=2)


@pytest.mark.parametrize(
    ("field", "part"),
    [("fed_up_rate", "T5"), pytest.param("fed_down_rate", "T6", marks=pytest.mark.slow)],
)
def test_a_slow_link_to_the_fed_server_is_named_and_tried_early(field: str, part: str) -> None:
    """A short time is spent on those that everybody waits for."""
    problem = with_slow_link(field, 1e4)
    plan, seen = best_plan(problem).plan, []

    def noting(question: Problem, start: Plan) -> PlanReport:
        seen.append(question.fleet)
        return ask(question, start)

    everything = upgrades(plan, problem, noting, seconds=FOREVER)
    assert len(everything.found) == everything.resources == 3 + 6 * 8
    best = everything.found[0]
    assert best.resource == DEVICE_RESOURCES[field].format(problem.fleet.names[3])
    assert best.tells
    assert pace_setters(plan, problem)[part] == problem.fleet.names[3]
    first_devices = [changed_device(problem.fleet, fleet) for fleet in seen[4:28]]
    assert 3 in first_devices
    few = upgrades(plan, problem, ask, seconds=0.0)
    assert (len(few.found), few.resources) == (1, everything.resources)


def test_the_edge_server_sets_the_pace_where_its_link_is_slow() -> None:
    problem = random_problem(3001, devices=(8, 8), layers=(5, 5), max_batch=32)
    apart = Plan(np.full(8, 4), np.array([1, 2, 3, 4, 5, 1, 1, 1]))
    slow = replace(problem, fleet=replace(problem.fleet, server_fed_up_rate=1e3))
    assert pace_setters(apart, slow)["T5"] == "the edge server"
    alike = Plan.uniform(8, batch_size=4, cut=2)
    assert pace_setters(alike, slow)["T5"] in problem.fleet.names  # nothing is left for the server to send


@pytest.mark.slow
def test_memory_is_worth_something_only_where_it_binds() -> None:
    problem = random_problem(3001, devices=(8, 8), layers=(5, 5), max_batch=32)
    roomy = replace(problem, fleet=replace(problem.fleet, memory=np.full(8, 1e15)))
    assert not any(each.tells for each in found(roomy).found if each.resource.startswith("memory"))
    alone = random_problem(3001, devices=(1, 1), layers=(1, 1), max_batch=64)
    noisy = MeasuredConstants(rounds=1.0, noise=1e4, drift_of=np.zeros(1))
    twenty = memory_needed(Plan.uniform(1, batch_size=20, cut=1), alone.profile)
    fleet = replace(alone.fleet, memory=twenty, fed_up_rate=np.full(1, 1e3))  # rounds are long anyway
    tight = replace(alone, fleet=fleet, constants=noisy, target=None)
    assert best_plan(tight).plan.batch_sizes.tolist() == [20]
    assert any(each.tells for each in found(tight).found if each.resource.startswith("memory"))


def changed_device(before: Fleet, after: Fleet) -> int | None:
    changed = [
        int(i)
        for field in PER_DEVICE
        for i in np.flatnonzero(getattr(before, field) != getattr(after, field))
    ]
    return changed[0] if changed else None
