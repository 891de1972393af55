"""What upgrades are worth, against planning again."""

from dataclasses import replace

import numpy as np
import pytest

from hasfl.planning.joint import best_batches, best_plan
from hasfl.planning.sensitivity import upgrades
from hasfl.problem import Problem
from hasfl.theory.objective import memory_needed
from tests.planning.random_problems import random_problem


@pytest.fixture(scope="module")
def problem() -> Problem:
    return random_problem(3001, devices=(8, 8), layers=(5, 5), max_batch=32)


def test_a_saving_is_one_that_can_be_had(problem: Problem) -> None:
    plan = best_plan(problem).plan
    found = {upgrade.resource: upgrade.saved_seconds for upgrade in upgrades(plan, problem)}
    base = best_batches(problem, plan.cuts, gap=1e-9).objective
    faster = replace(problem, fleet=replace(problem.fleet, server_flops=problem.fleet.server_flops * 1.1))
    saved = base - best_batches(faster, plan.cuts, gap=1e-9).objective
    assert found["compute of the edge server"] == pytest.approx(saved, abs=3e-6 * base)
    up_rate = problem.fleet.up_rate.copy()
    up_rate[2] *= 1.1
    faster = replace(problem, fleet=replace(problem.fleet, up_rate=up_rate))
    saved = base - best_batches(faster, plan.cuts, gap=1e-9).objective
    assert found["uplink of device 3"] == pytest.approx(saved, abs=3e-6 * base)


def test_memory_is_worth_something_only_where_it_binds(problem: Problem) -> None:
    roomy = replace(problem, fleet=replace(problem.fleet, memory=np.full(8, 1e15)))
    plan = best_plan(roomy).plan
    assert all(u.saved_seconds == 0 for u in upgrades(plan, roomy) if u.resource.startswith("memory"))
    tight = replace(roomy, fleet=replace(roomy.fleet, memory=memory_needed(plan, roomy.profile) * 0.95))
    assert any(u.saved_seconds > 0 for u in upgrades(plan, tight) if u.resource.startswith("memory"))


def test_a_large_fleet_is_asked_about_those_that_everybody_waits_for() -> None:
    large = random_problem(3002, devices=(80, 80), layers=(4, 4), max_batch=16)
    large = replace(large, fleet=replace(large.fleet, memory=np.full(80, 1e15)))
    found = upgrades(best_plan(large, gap=1e-2).plan, large)
    assert len(found) == 3 + 4 * 30
