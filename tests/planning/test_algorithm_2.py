"""Algorithm 2 and its parts: Dinkelbach, Newton-Jacobi, Proposition 1, the Remark, the MILP."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.constants import MeasuredConstants
from hasfl.errors import Infeasible, InputError
from hasfl.plan import Plan
from hasfl.planning.exact.planner import best_cuts, best_plan
from hasfl.planning.exhaustive import best_of_all
from hasfl.planning.paper import algorithm_2 as solver
from hasfl.planning.paper.algorithm_2 import algorithm_2, alternate, corollary_1_at, first_plan
from hasfl.planning.paper.batches import BatchProblem, exhaustive_batches, proposition_1, stationary_batches
from hasfl.planning.paper.cuts import CutProgram, minimise_ratio, quiet_solver
from hasfl.planning.tables import CostTables
from hasfl.planning.verify import faults
from hasfl.problem import Problem
from hasfl.theory.bound import Corollary1
from hasfl.theory.objective import evaluate
from hasfl.theory.rounds import BatchNoise, MeasuredRounds
from tests.generators import plans
from tests.planning.random_problems import measured, random_problem

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
    fractional = np.flatnonzero(within != np.floor(within))
    for whole in (np.floor(within), np.ceil(within)):  # the last device is rounded when all others are
        other = b.copy()
        other[fractional[-1:]] = whole[fractional[-1:]]
        assert problem.value(b) <= problem.value(other)


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


# ── with measured constants: Corollary 1 touches the measured law at a reference plan ────────────────────


SEEDS = st.integers(0, 10**6)


@st.composite
def references(draw: st.DrawFn) -> tuple[Problem, Plan]:
    """A measured problem, some of whose layers have batch norm, and a plan that need not fit its memory."""
    seed = draw(SEEDS)
    problem = measured(random_problem(seed, devices=(1, 6), layers=(2, 6)), seed)
    layers = len(problem.profile)
    norms = draw(st.lists(st.booleans(), min_size=layers, max_size=layers))
    profile = replace(problem.profile, batch_norm_of=np.array(norms))
    return replace(problem, profile=profile), draw(plans(len(problem.fleet), layers))


def laws(problem: Problem, plan: Plan) -> tuple[Corollary1, MeasuredRounds]:
    return Corollary1.of(corollary_1_at(problem, plan)), MeasuredRounds.of(problem)


@given(references())
def test_both_laws_have_the_same_rounds_at_the_reference_plan(case: tuple[Problem, Plan]) -> None:
    problem, plan = case
    touching = corollary_1_at(problem, plan)
    ours, expected = evaluate(plan, touching), evaluate(plan, problem)
    assert ours.rounds == pytest.approx(expected.rounds, rel=1e-9)
    assert ours.objective == pytest.approx(expected.objective, rel=1e-9)
    assert Corollary1.of(touching).doubts() == []


@given(references())
def test_both_laws_have_the_same_derivative_by_the_noise(case: tuple[Problem, Plan]) -> None:
    """By S, so by every 1/b_i too: central differences, whose error is of second order in the step."""
    problem, plan = case
    ours, law = laws(problem, plan)
    noise = float(law.noise.total(plan.batch_sizes, plan.deepest_cut))
    step = 1e-4 * noise
    slopes = [
        float(each.rounds_at(noise + step, plan.deepest_cut) - each.rounds_at(noise - step, plan.deepest_cut))
        for each in (ours, law)
    ]
    rounds = float(law.rounds_at(noise, plan.deepest_cut))
    assert slopes[0] == pytest.approx(slopes[1], rel=1e-6, abs=1e-10 * rounds)


@given(references(), st.sampled_from(["drift_of", "skew_of"]))
def test_both_laws_have_the_same_derivative_by_drift_and_by_skew(
    case: tuple[Problem, Plan], name: str
) -> None:
    """The layer below the deepest cut gets a small step of drift or skew: rounds must rise alike."""
    problem, plan = case
    deepest = plan.deepest_cut
    if deepest == len(problem.profile):
        plan = Plan(plan.batch_sizes, np.minimum(plan.cuts, deepest - 1))
        deepest -= 1
    steps = {"drift_of": problem.constants.drift_of.copy(), "skew_of": problem.constants.skew_of.copy()}
    for each in steps.values():
        each[deepest] = 0.0
    steps[name][deepest] = step = 1e-4
    problem = replace(problem, constants=replace(problem.constants, **steps))
    ours, law = laws(problem, plan)
    noise = float(law.noise.total(plan.batch_sizes, deepest))
    rounds = float(law.rounds_at(noise, deepest))
    rises = [
        float(each.rounds_at(noise, deepest + 1) - each.rounds_at(noise, deepest)) for each in (ours, law)
    ]
    if problem.interval == 1:
        assert rises == pytest.approx([0.0, 0.0], abs=1e-9 * rounds)
    else:  # an error of second order: the rise over R is at most `step`
        assert rises[0] == pytest.approx(rises[1], rel=2 * step, abs=1e-10 * rounds)
        assert rises[1] > 0 or (name == "drift_of" and problem.constants.noise == 0)


@given(references(), st.floats(0.01, 100))
def test_corollary_1_never_gives_fewer_rounds_with_the_noise_or_the_cut_of_the_reference(
    case: tuple[Problem, Plan], factor: float
) -> None:
    problem, plan = case
    ours, law = laws(problem, plan)
    noise = float(law.noise.total(plan.batch_sizes, plan.deepest_cut))
    assert ours.rounds_at(noise * factor, plan.deepest_cut) >= law.rounds_at(
        noise * factor, plan.deepest_cut
    ) * (1 - 1e-9)
    every = np.arange(1, len(problem.profile) + 1)
    assert (ours.rounds_at(noise, every) >= law.rounds_at(noise, every) * (1 - 1e-9)).all()


def test_the_example_of_the_file() -> None:
    problem = random_problem(1, devices=(1, 1), layers=(2, 2))
    constants = MeasuredConstants(rounds=100, noise=4, drift_of=np.zeros(2))
    problem = replace(problem, constants=constants, target=None)
    ours, law = laws(problem, Plan([4], [1]))
    assert (ours.bound.scale, ours.bound.per_noise, ours.target) == pytest.approx((400, 4, 3))
    assert ours.rounds(np.array([4]), 1) == pytest.approx(law.rounds(np.array([4]), 1)) == pytest.approx(200)
    assert ours.rounds(np.array([8]), 1) == pytest.approx(160)
    assert law.rounds(np.array([8]), 1) == pytest.approx(150)


def test_plans_lie_between_the_best_of_all_plans_and_the_start() -> None:
    found = 0
    for seed in range(150):
        problem = measured(random_problem(seed, devices=(1, 3), layers=(1, 4), max_batch=6), seed)
        least = best_of_all(problem)
        if least is None:
            with pytest.raises(Infeasible, match=r"memory of device"):
                algorithm_2(problem)
            continue
        start = first_plan(problem, CostTables.of(problem), MeasuredRounds.of(problem))
        report = algorithm_2(problem)
        assert report.status == "settled", seed
        assert not faults(report, problem), seed
        assert report.path[0] == pytest.approx(evaluate(start, problem).objective)
        assert list(report.path) == sorted(report.path, reverse=True)
        assert report.path[-1] == report.objective
        assert least[1] * (1 - 1e-9) <= report.objective <= report.path[0], seed
        assert report.lower_bound is None
        found += 1
    assert found >= 90


def test_plans_of_larger_fleets() -> None:
    better = 0
    for seed in range(40):
        problem = measured(random_problem(seed, devices=(5, 20), layers=(2, 6), max_batch=32), seed)
        try:
            exact = best_plan(problem, gap=1e-2)
        except Infeasible:
            continue
        report = algorithm_2(problem)
        assert not faults(report, problem), seed
        assert report.status == "settled", seed
        assert report.objective >= exact.lower_bound * (1 - 1e-9), seed
        better += report.objective < report.path[0]
        # From the best plan, the law of the problem lets Algorithm 2 only stay or improve.
        assert algorithm_2(problem, start=exact.plan).objective <= exact.objective, seed
    assert better >= 15


def test_one_reference_after_the_other_finds_more_than_the_first_alone() -> None:
    """At a far reference Corollary 1 overstates what more noise costs; the next reference corrects it."""
    improved = 0
    for seed in range(40):
        problem = measured(random_problem(seed, devices=(2, 20), layers=(2, 6), max_batch=32), seed)
        try:
            report = algorithm_2(problem)
        except Infeasible:
            continue
        improved += len(report.path) > 2 and report.path[-1] < report.path[1] * (1 - 1e-6)
    assert improved >= 3


def test_a_plan_that_is_worse_by_the_law_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = measured(random_problem(3001, devices=(6, 6), layers=(4, 4), max_batch=32), 1)
    first, worse = algorithm_2(problem, time_limit=0.0), Plan.uniform(6, batch_size=1, cut=4)
    assert evaluate(worse, problem).objective > first.objective
    monkeypatch.setattr(
        solver, "alternate", lambda *_, **__: replace(evaluate(worse, problem), status="settled")
    )
    report = algorithm_2(problem)
    assert (report.plan, report.status, report.path) == (first.plan, "settled", first.path * 2)


def test_the_papers_constants_give_the_papers_algorithm() -> None:
    for seed in range(10):
        problem = random_problem(seed, devices=(1, 6))
        try:
            expected = alternate(problem)
        except Infeasible:
            continue
        report = algorithm_2(problem)
        assert (report.plan, report.path) == (expected.plan, expected.path)
    with pytest.raises(InputError, match="expected constants measured in training"):
        corollary_1_at(random_problem(1), Plan([1], [1]))


def test_a_start_that_does_not_fit_is_not_taken_and_time_runs_out() -> None:
    problem = measured(random_problem(3001, devices=(6, 6), layers=(4, 4), max_batch=32), 1)
    too_large = algorithm_2(problem, start=Plan.uniform(6, batch_size=33, cut=1))
    assert too_large.path == algorithm_2(problem).path
    with pytest.raises(InputError, match="the plan is for 5 devices"):
        algorithm_2(problem, start=Plan.uniform(5, batch_size=4, cut=1))
    stopped = algorithm_2(problem, time_limit=0.0)
    assert (stopped.status, stopped.path) == ("limit", too_large.path[:1])
    assert not faults(stopped, problem)
    assert math.isfinite(stopped.objective)
