"""Rounds measured in training: solved as exactly as the paper's, and with the laws that they must have."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.arrays import IntN
from hasfl.errors import Infeasible, InputError
from hasfl.fleet import PER_DEVICE
from hasfl.plan import Plan
from hasfl.planning.exact import fixed_cuts
from hasfl.planning.exact.fixed_cuts import FixedCuts
from hasfl.planning.exact.planner import best_batches, best_cuts, best_plan
from hasfl.planning.exhaustive import all_plans, best_of_all, objectives
from hasfl.planning.paper.algorithm_2 import alternate
from hasfl.planning.verify import faults
from hasfl.problem import Problem
from hasfl.theory.bound import Corollary1
from hasfl.theory.objective import evaluate, law_of
from hasfl.theory.rounds import MeasuredRounds
from tests.generators import settings as problem_settings
from tests.planning.random_problems import measured, odd_problem, random_problem


def tiny(seed: int) -> Problem:
    return measured(random_problem(seed, devices=(1, 3), max_batch=6), seed)


def naive_rounds(problem: Problem, plan: Plan) -> float:
    """R, device by device and layer by layer."""
    constants, private, skew = problem.constants, 1.0, 0.0
    for j in range(max(plan.cuts)):
        private += constants.drift_of[j] if problem.interval > 1 else 0.0
        skew += np.asarray(constants.skew_of)[j] if problem.interval > 1 else 0.0
    inverse = sum(1 / b for b in plan.batch_sizes) / len(plan)
    x = constants.noise * inverse * private
    return constants.rounds * (1 + skew + x + constants.curvature * x**2)


@pytest.mark.parametrize("part", range(3))
def test_the_best_plan_equals_enumeration(part: int) -> None:
    solved = 0
    for seed in range(part * 60, part * 60 + 60):
        problem = tiny(seed)
        expected = best_of_all(problem)
        if expected is None:
            with pytest.raises(Infeasible, match=r"memory of device"):
                best_plan(problem)
            continue
        report = best_plan(problem, gap=1e-8, time_limit=30)
        assert report.status == "optimal", seed
        assert report.objective == pytest.approx(expected[1], rel=1e-7), seed
        assert report.lower_bound <= expected[1] * (1 + 1e-12), seed
        assert not faults(report, problem)
        given = best_cuts(problem, expected[0].batch_sizes, gap=1e-8)
        assert given.objective == pytest.approx(expected[1], rel=1e-7), seed
        solved += 1
    assert solved >= 30


def test_odd_problems_too() -> None:
    solved = 0
    for seed in range(80):
        problem = measured(odd_problem(seed), seed)
        expected = best_of_all(problem)
        if expected is None:
            continue
        report = best_plan(problem, gap=1e-6, time_limit=30)
        assert report.objective == pytest.approx(expected[1], rel=1e-5, abs=1e-80), seed
        given = best_batches(problem, expected[0].cuts, gap=1e-6)
        assert given.objective == pytest.approx(expected[1], rel=1e-5, abs=1e-80), seed
        solved += 1
    assert solved >= 40


@pytest.mark.parametrize("by_grid", [True, False])
def test_batches_alone_equal_enumeration(by_grid: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not by_grid:
        monkeypatch.setattr(fixed_cuts, "MOST_POINTS", -1)
    solved = 0
    for seed in range(120):
        problem = tiny(seed)
        cuts = np.random.default_rng(seed).integers(1, len(problem.profile) + 1, len(problem.fleet))
        least = min(
            (
                float(objectives(problem, b[same], c[same]).min())
                for b, c in all_plans(problem)
                if (same := (c == cuts).all(axis=1)).any()
            ),
            default=np.inf,
        )
        if np.isfinite(least):
            report = best_batches(problem, cuts, gap=1e-9)
            assert report.objective == pytest.approx(least, rel=1e-8), seed
            assert report.lower_bound <= least * (1 + 1e-12), seed
            solved += 1
    assert solved >= 60


def test_a_gap_of_zero_ends_too() -> None:
    for seed in range(40):
        if (expected := best_of_all(tiny(seed))) is not None:
            report = best_plan(tiny(seed), gap=0.0, time_limit=20)
            assert report.status == "optimal", seed
            assert report.objective == pytest.approx(expected[1], rel=1e-11), seed


def test_the_lower_bound_is_one_whatever_the_gap_and_the_time() -> None:
    for seed in range(60):
        if (expected := best_of_all(tiny(seed))) is not None:
            for gap, limit in ((0.3, 30.0), (1e-2, 30.0), (1e-2, 0.0)):
                report = best_plan(tiny(seed), gap=gap, time_limit=limit)
                assert report.lower_bound <= expected[1] * (1 + 1e-12), (seed, gap)
                assert report.status == "limit" or report.gap <= gap * (1 + 1e-9)


def test_too_much_curvature_costs_the_gap_and_not_the_proof() -> None:
    """Where 1/B is not convex, the search may end with a larger gap. Its lower bound holds all the same."""
    for seed in range(60):
        problem, steep = tiny(seed), 10 ** np.random.default_rng(seed).uniform(0, 2)
        problem = replace(problem, constants=replace(problem.constants, curvature=float(steep)))
        if (expected := best_of_all(problem)) is not None:
            report = best_plan(problem, gap=1e-3, box_limit=200)
            assert report.lower_bound <= expected[1] * (1 + 1e-12), seed
            assert report.objective >= expected[1] * (1 - 1e-12), seed
            assert report.status == "limit" or report.objective <= expected[1] * (1 + 2e-3), seed


@pytest.mark.parametrize("edges", [4, 32, 256])
def test_the_grid_agrees_with_the_search_on_larger_fleets(
    edges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixed_cuts, "EDGES", edges)
    on_grid = 0
    for seed in range(4000, 4020):
        problem = measured(random_problem(seed, devices=(2, 40), layers=(2, 6), max_batch=64), seed)
        problem = replace(problem, fleet=replace(problem.fleet, memory=problem.fleet.memory * 100))
        cuts = np.random.default_rng(seed).integers(1, len(problem.profile) + 1, len(problem.fleet))
        fixed = FixedCuts.of(problem, cuts)
        found = fixed_cuts.best_batches_on_grid(fixed, fixed_cuts.first_batches(fixed), 1e-3)
        if found.lower_bound is not None:
            searched = search_batches(problem, cuts)
            assert found.lower_bound <= searched[1] * (1 + 1e-12), seed
            assert fixed.value(found.batch_sizes) >= searched[0] * (1 - 1e-12), seed
            assert fixed.value(found.batch_sizes) <= found.lower_bound * (1 + 1.01e-3), seed
            on_grid += 1
    assert on_grid >= (15 if edges == 256 else 5)


def search_batches(problem: Problem, cuts: IntN) -> tuple[float, float]:
    """Lower bound and Θ of the batches alone by the search, as if the grid had not closed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixed_cuts, "MOST_POINTS", -1)
        report = best_batches(problem, cuts, gap=1e-2, time_limit=5)
    return report.lower_bound or 0.0, report.objective


@given(problem_settings(), st.integers(0, 10**6))
def test_rounds_are_what_the_formula_says(setting: tuple[Problem, Plan], seed: int) -> None:
    problem, plan = measured(setting[0], seed), setting[1]
    report = evaluate(plan, problem)
    assert report.rounds == pytest.approx(naive_rounds(problem, plan), rel=1e-12)
    assert report.objective == pytest.approx(report.rounds * report.round_seconds, rel=1e-12)
    assert report.margins.target is None
    assert "C1" not in report.margins.by_constraint()


@given(problem_settings(), st.integers(0, 10**6), st.data())
def test_rounds_fall_with_batches_and_rise_with_the_deepest_cut(
    setting: tuple[Problem, Plan], seed: int, data: st.DataObject
) -> None:
    problem, plan = measured(setting[0], seed), setting[1]
    i = data.draw(st.integers(0, len(plan) - 1))
    more = plan.batch_sizes.copy()
    more[i] += 1
    rounds = evaluate(plan, problem).rounds
    noisy = problem.constants.noise > 0
    larger = evaluate(Plan(more, plan.cuts), problem).rounds
    assert larger < rounds if noisy else larger == rounds
    deepest = Plan(plan.batch_sizes, np.full(len(plan), len(problem.profile)))
    assert evaluate(deepest, problem).rounds >= rounds
    every_round = replace(problem, interval=1)
    assert evaluate(deepest, every_round).rounds == evaluate(plan, every_round).rounds


@given(problem_settings(), st.integers(0, 10**6), st.integers(2, 4))
def test_more_devices_of_the_same_kind_change_no_rounds(
    setting: tuple[Problem, Plan], seed: int, times: int
) -> None:
    problem, plan = measured(setting[0], seed), setting[1]
    columns = {field: np.tile(getattr(problem.fleet, field), times) for field in PER_DEVICE}
    many = replace(problem, fleet=replace(problem.fleet, names=(), **columns))
    copied = Plan(np.tile(plan.batch_sizes, times), np.tile(plan.cuts, times))
    expected = evaluate(plan, problem).rounds
    assert evaluate(copied, many).rounds == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
def test_laws_of_the_optimum() -> None:
    checked = 0
    for seed in range(60):
        problem = tiny(seed)
        try:
            best = best_plan(problem, gap=1e-9)
        except Infeasible:
            continue
        more_rounds = replace(
            problem, constants=replace(problem.constants, rounds=problem.constants.rounds * 7)
        )
        scaled = best_plan(more_rounds, gap=1e-9)
        assert scaled.plan == best.plan, seed
        assert scaled.objective == pytest.approx(7 * best.objective, rel=1e-9)
        noisier = replace(problem, constants=replace(problem.constants, noise=problem.constants.noise * 3))
        assert best_plan(noisier, gap=1e-9).objective >= best.objective * (1 - 1e-8)
        silent = replace(problem, constants=replace(problem.constants, noise=0.0))
        quickest = best_plan(silent, gap=1e-9)
        assert quickest.round_seconds <= best.round_seconds * (1 + 1e-8)
        assert set(quickest.plan.batch_sizes) == {1}
        checked += 1
    assert checked >= 30


def test_each_law_wants_its_own_constants() -> None:
    with pytest.raises(InputError, match="expected the paper's constants"):
        alternate(tiny(1))
    with pytest.raises(InputError, match="expected constants measured in training"):
        MeasuredRounds.of(random_problem(1))
    assert isinstance(law_of(random_problem(1)), Corollary1)
    assert isinstance(law_of(tiny(1)), MeasuredRounds)
