"""Numbers that the reasons in experiments/claims.toml and docs/claims.md name, and that no training gives."""

from dataclasses import replace

from hasfl import FleetRanges, Seeds, draw_fleet
from hasfl.plan import Plan
from hasfl.planning.exact.planner import best_batches
from hasfl.problem import Problem
from hasfl.runs.questions import read_problem
from hasfl.theory.objective import evaluate

CUT, MOST = 8, 64


def gain_of_habs(problem: Problem) -> float:
    """The time with the best common batch size, divided by the time with the best one for each device."""
    devices = len(problem.fleet)
    alike = [Plan.uniform(devices, batch_size=b, cut=CUT) for b in range(1, MOST + 1)]
    best = best_batches(problem, alike[0].cuts, gap=1e-3).objective
    return min(evaluate(plan, problem).objective for plan in alike) / best


def test_batch_sizes_of_their_own_pay_on_unequal_devices_alone() -> None:
    """Why HABS is level with the best fixed batch size on Table I's fleet (Fig. 10)."""
    unequal = read_problem("examples/measured.toml")
    nearly_equal = replace(unequal, fleet=draw_fleet(FleetRanges(devices=20), Seeds(0)))
    assert 1.02 < gain_of_habs(nearly_equal) < 1.04
    assert 1.4 < gain_of_habs(unequal) < 1.5
