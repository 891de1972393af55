"""Algorithm 2 and its parts: Dinkelbach, Newton-Jacobi, Proposition 1, the Remark, the MILP."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.errors import Infeasible
from hasfl.plan import Plan
from hasfl.planning.exact.planner import best_cuts
from hasfl.planning.exhaustive import best_of_all
from hasfl.planning.paper.algorithm_2 import alternate, first_plan
from hasfl.planning.paper.batches import BatchProblem, exhaustive_batches, proposition_1, stationary_batches
from hasfl.planning.paper.cuts import CutProgram, minimise_ratio, quiet_solver
from hasfl.planning.tables import CostTables
from hasfl.planning.verify import faults
from hasfl.theory.bound import Corollary1
from hasfl.theory.rounds import BatchNoise
from tests.planning.random_problems import random_problem

pairs = st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=1, max_size=20)
PLAIN = {"smallest_batch": 1.0, "noise": BatchNoise(np.ones(1)), "deepest_cut": 1}


@given(pairs)
def test_dinkelbach_finds_the_least_ratio_of_a_list(options: list[tuple[float, float]]) -> None:
    def best_difference(q: float) -> tuple[tuple[float, float], float, float]:
        num, den = min(options, key=lambda pair: pair[0] - q * pair[1])
        return (num, den), num, den

    found = minimise_ratio(best_difference, start=1e6)
    assert found.ratio == pytest.approx(min(num / den for num, den in options), rel=1e-9)
    assert abs(found.residual) <= 1e-9 * found.argmin[0]


def test_dinkelbach_says_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="must keep it above 0"):
        minimise_ratio(lambda q: (None, 1.0, 0.0), start=1.0)
    with pytest.raises(RuntimeError, match="not settled after 3 steps"):
        minimise_ratio(lambda q: (None, q - 1, 1.0), start=1.0, max_iterations=3)


@st.composite
def batch_problems(draw: st.DrawFn, devices: int = 5) -> BatchProblem:
    N = draw(st.integers(1, devices))
    costs = draw(st.lists(st.floats(1e-3, 10), min_size=N, max_size=N))
    limits = draw(st.lists(st.floats(1, 40), min_size=N, max_size=N))
    return BatchProblem(
        margin_without_sampling=draw(st.floats(1.2, 50)) * N,
        sampling_per_noise=1.0,
        server_seconds_per_sample=np.array(costs),
        fixed_seconds=draw(st.floats(0.1, 100)),
        largest_batch=np.array(limits),
        **PLAIN,
    )


@given(batch_problems())
def test_newton_jacobi_ends_where_the_derivative_vanishes(problem: BatchProblem) -> None:
    start = np.ones(len(problem.largest_batch))
    found = stationary_batches(problem, start)
    assert found.residual <= 1e-9
    b = found.batch_sizes
    for i in range(len(b)):
        for factor in (0.999, 1.001):
            moved = b.copy()
            moved[i] *= factor
            assert problem.value(moved) >= problem.value(b) * (1 - 1e-9)


@given(batch_problems())
def test_proposition_1_rounds_within_the_limits(problem: BatchProblem) -> None:
    stationary = stationary_batches(problem, np.ones(len(problem.largest_batch))).batch_sizes
    b = proposition_1(problem, stationary)
    most = np.floor(problem.largest_batch)
    assert (b == np.floor(b)).all()
    assert ((b >= 1) & (b <= most)).all()
    within = np.clip(stationary, 1, most)
    assert ((b == np.floor(within)) | (b == np.ceil(within))).all()


@given(batch_problems(devices=4))
def test_the_remarks_search_is_never_worse_than_rounding(problem: BatchProblem) -> None:
    stationary = stationary_batches(problem, np.ones(len(problem.largest_batch))).batch_sizes
    searched = problem.value(exhaustive_batches(problem, stationary))
    assert searched <= problem.value(proposition_1(problem, stationary)) * (1 + 1e-12)


def test_a_device_that_costs_the_server_nothing_takes_all_it_can() -> None:
    problem = BatchProblem(
        margin_without_sampling=4.0,
        sampling_per_noise=1.0,
        server_seconds_per_sample=np.array([0.0, 1.0]),
        fixed_seconds=1.0,
        largest_batch=np.array([30.5, 30.5]),
        **PLAIN,
    )
    found = stationary_batches(problem, np.ones(2))
    assert found.residual <= 1e-9
    assert proposition_1(problem, found.batch_sizes)[0] == 30


def test_the_program_finds_the_best_cuts() -> None:
    solved = 0
    for seed in range(60):
        problem = random_problem(seed, devices=(1, 12), layers=(2, 6), max_batch=16)
        tables, law = CostTables.of(problem), Corollary1.of(problem)
        try:
            start = first_plan(problem, tables, law)
        except Infeasible:
            continue
        b = start.batch_sizes.astype(float)
        value = float(law.rounds(b, start.deepest_cut) * tables.round_seconds(b, start.cuts))
        found = CutProgram(tables, law, b).solve(value / law.bound.scale)
        exact = best_cuts(problem, start.batch_sizes, gap=1e-9)
        assert found.ratio * law.bound.scale == pytest.approx(exact.objective, rel=1e-4), seed
        solved += 1
    assert solved >= 30


def test_nothing_the_solver_prints_reaches_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    import ctypes

    with quiet_solver():
        ctypes.CDLL(None).puts(b"a doubt of the solver's")
    ctypes.CDLL(None).puts(b"our own words")
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr().out == "our own words\n"


def test_algorithm_2_never_rises_and_never_ends_above_its_start() -> None:
    for seed in range(100, 140):
        problem = random_problem(seed, devices=(1, 20), layers=(2, 6), max_batch=32)
        tables, law = CostTables.of(problem), Corollary1.of(problem)
        try:
            start = first_plan(problem, tables, law)
        except Infeasible:
            continue
        report = alternate(problem, start=start)
        assert list(report.path) == sorted(report.path, reverse=True)
        assert report.objective == pytest.approx(report.path[-1], rel=1e-9)
        assert report.status == "settled"
        assert report.iterations == len(report.path) - 1
        assert not faults(report, problem)


def test_the_exhaustive_variant() -> None:
    for seed in range(100, 120):
        problem = random_problem(seed, devices=(1, 4), layers=(2, 4), max_batch=16)
        try:
            rounded, searched = alternate(problem), alternate(problem, exhaustive=True)
        except Infeasible:
            continue
        assert not faults(searched, problem)
        assert searched.status == rounded.status == "settled"


def test_a_start_that_keeps_no_constraint_is_not_taken() -> None:
    problem = random_problem(3001, devices=(6, 6), layers=(4, 4), max_batch=32)
    replaced = alternate(problem, start=Plan.uniform(6, batch_size=33, cut=1))
    assert replaced.path[0] == alternate(problem).path[0]
    hopeless = replace(
        problem, constants=replace(problem.constants, moment_of=np.array([0.0, 0.0, 0.0, 1e9])), interval=2
    )
    report = alternate(hopeless, start=Plan.uniform(6, batch_size=4, cut=4))
    assert not faults(report, hopeless)
    assert report.plan.deepest_cut < 4


def test_time_runs_out() -> None:
    problem = random_problem(3001, devices=(20, 20), layers=(6, 6), max_batch=32)
    report = alternate(problem, time_limit=0.0)
    assert report.status == "limit"
    assert not faults(report, problem)


def test_there_is_a_first_plan_whenever_there_is_any() -> None:
    found = 0
    for seed in range(400):
        problem = random_problem(seed, devices=(1, 3), layers=(1, 4))
        tables, law = CostTables.of(problem), Corollary1.of(problem)
        exists = best_of_all(problem) is not None
        if exists:
            plan = first_plan(problem, tables, law)
            assert np.isfinite(law.rounds(plan.batch_sizes, plan.deepest_cut))
            found += 1
        else:
            with pytest.raises(Infeasible):
                first_plan(problem, tables, law)
    assert found >= 200
