"""Algorithm 2 with measured constants: Corollary 1 touches the measured law at a reference plan."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.constants import MeasuredConstants
from hasfl.errors import Infeasible, InputError
from hasfl.plan import Plan
from hasfl.planning.exact.planner import best_plan
from hasfl.planning.exhaustive import best_of_all
from hasfl.planning.paper import algorithm_2 as solver
from hasfl.planning.paper.algorithm_2 import algorithm_2, alternate, corollary_1_at, first_plan
from hasfl.planning.tables import CostTables
from hasfl.planning.verify import faults
from hasfl.problem import Problem
from hasfl.theory.bound import Corollary1
from hasfl.theory.objective import evaluate
from hasfl.theory.rounds import MeasuredRounds
from tests.generators import plans
from tests.planning.random_problems import measured, random_problem

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
