"""The exact planner against every plan, against heuristics, and against its own promises."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from hasfl.arrays import IntN
from hasfl.errors import Infeasible, InputError, TargetUnreachable
from hasfl.fleet import PER_DEVICE
from hasfl.plan import Plan, PlanReport
from hasfl.planning.exact import fixed_cuts
from hasfl.planning.exact.fixed_cuts import FixedCuts
from hasfl.planning.exact.planner import best_batches, best_cuts, best_plan
from hasfl.planning.exhaustive import best_of_all, objectives
from hasfl.planning.paper.algorithm_2 import alternate
from hasfl.planning.verify import faults
from hasfl.problem import Problem
from hasfl.theory.objective import evaluate
from tests.lanes import quick_then_slow
from tests.planning.random_problems import measured, odd_problem, priced, random_problem

TINY = range(400)  # some 250 of them have a plan
ENUMERABLE = 200_000  # plans


@cache
def tiny(seed: int, law: str = "paper") -> Problem:
    if law == "measured":
        return measured(random_problem(seed, devices=(1, 3), max_batch=6), seed)
    if law == "priced":
        return priced(seed, 1.5)
    problem = random_problem(seed)
    options = problem.max_batch * len(problem.profile)
    return problem if options ** len(problem.fleet) <= ENUMERABLE else replace(problem, max_batch=4)


@cache
def oracle(seed: int, law: str = "paper") -> tuple[Plan, float] | None:
    return best_of_all(tiny(seed, law))


def enumerated(law: str, seeds: range) -> Iterator[tuple[int, Problem, float]]:
    """The tiny problems that have a plan, with the least Θ of all plans."""
    for seed in seeds:
        if (best := oracle(seed, law)) is not None:
            yield seed, tiny(seed, law), best[1]


@pytest.mark.parametrize(
    "case",
    [
        *(("measured", range(first, first + 60), 30) for first in (0, 60, 120)),
        *quick_then_slow([("paper", range(first, first + 100), 50) for first in (0, 100, 200, 300)]),
    ],
)
def test_equals_enumeration(case: tuple[str, range, int]) -> None:
    """At least 50 problems with a plan of a hundred of the paper's law: 200 altogether, and 90 measured."""
    law, seeds, least = case
    feasible, tight = 0, (1e-10, 1e-9) if law == "paper" else (1e-8, 1e-7)
    for seed in seeds:
        problem, expected = tiny(seed, law), oracle(seed, law)
        if expected is None:
            with pytest.raises(
                Infeasible, match=r"\(C1\)|memory of device" if law == "paper" else "memory of device"
            ):
                best_plan(problem)
            continue
        report = best_plan(problem, gap=tight[0], time_limit=30)
        assert report.status == "optimal", seed
        assert report.objective == pytest.approx(expected[1], rel=tight[1]), seed
        assert report.lower_bound <= expected[1] * (1 + 1e-12), seed
        assert not faults(report, problem)
        feasible += 1
    assert feasible >= least


@pytest.mark.parametrize(
    "case",
    [
        ("measured", range(80)),
        *quick_then_slow([("paper", range(first, first + 100)) for first in (0, 100, 200)]),
    ],
)
def test_equals_enumeration_of_odd_problems(case: tuple[str, range]) -> None:
    law, seeds = case
    feasible, (gap, rel) = 0, (1e-8, 1e-7) if law == "paper" else (1e-6, 1e-5)
    for seed in seeds:
        problem = odd_problem(seed) if law == "paper" else measured(odd_problem(seed), seed)
        expected = best_of_all(problem)
        if expected is None:
            with pytest.raises(Infeasible):
                best_plan(problem)
            continue
        report = best_plan(problem, gap=gap, time_limit=30)
        for found in (
            report,
            best_batches(problem, expected[0].cuts, gap=gap),
            best_cuts(problem, expected[0].batch_sizes, gap=gap),
        ):
            assert found.objective == pytest.approx(expected[1], rel=rel, abs=1e-80), seed
        assert report.lower_bound <= expected[1] * (1 + rel), seed
        if law == "paper":
            assert report.status == "optimal", seed
        if law == "paper" and seed % 3 == 0:
            assert alternate(problem).objective >= report.lower_bound * (1 - 1e-7), seed
        feasible += 1
    assert feasible >= 40


@pytest.mark.parametrize(("law", "count", "rel"), [("paper", 60, 1e-12), ("measured", 40, 1e-11)])
def test_a_gap_of_zero_ends_too(law: str, count: int, rel: float) -> None:
    for seed, problem, least in enumerated(law, range(count)):
        report = best_plan(problem, gap=0.0, time_limit=20)
        assert report.status == "optimal", seed
        assert report.objective == pytest.approx(least, rel=rel)


@pytest.mark.parametrize(("law", "count"), [("paper", 100), ("measured", 60)])
def test_the_lower_bound_is_one_whatever_the_gap_and_the_time(law: str, count: int) -> None:
    for seed, problem, least in enumerated(law, range(count)):
        for gap, limit in ((0.3, 30.0), (1e-2, 30.0), (1e-6, 30.0), (1e-2, 0.0)):
            report = best_plan(problem, gap=gap, time_limit=limit)
            assert report.lower_bound <= least * (1 + 1e-12), (seed, gap)
            assert report.status == "limit" or report.gap <= gap * (1 + 1e-9)


def test_stopped_early_it_still_has_a_valid_bound() -> None:
    stopped = 0
    for seed in range(2000, 2030):
        problem = random_problem(seed, devices=(10, 40), layers=(4, 8), max_batch=32)
        try:
            early = best_plan(problem, time_limit=0.0)
        except Infeasible:
            continue
        best = best_plan(problem)
        assert early.lower_bound <= best.objective
        assert early.objective >= best.lower_bound
        assert not faults(early, problem)
        stopped += early.status == "limit"
    assert stopped >= 10


def restricted(problem: Problem, keep: str, plan: Plan) -> float:
    """The best of all plans that agree with `plan` in its cuts or its batch sizes."""
    fixed = getattr(plan, keep)
    many = problem.max_batch if keep == "cuts" else len(problem.profile)
    free = np.stack(np.meshgrid(*[np.arange(1, many + 1)] * len(plan), indexing="ij"), -1).reshape(
        -1, len(plan)
    )
    same = np.broadcast_to(fixed, free.shape)
    values = objectives(problem, free, same) if keep == "cuts" else objectives(problem, same, free)
    return float(values.min())


@pytest.mark.parametrize(
    ("law", "keep", "by_grid"),
    [
        ("paper", "cuts", True),
        ("paper", "batch_sizes", True),
        ("measured", "cuts", True),
        ("measured", "batch_sizes", True),
        ("measured", "cuts", False),  # by the search, as if no grid closed
        ("priced", "cuts", True),
    ],
)
def test_batches_alone_and_cuts_alone_equal_enumeration(
    law: str, keep: str, by_grid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_grid:
        monkeypatch.setattr(fixed_cuts, "MOST_POINTS", -1)
    solved, solve = 0, best_batches if keep == "cuts" else best_cuts
    seeds, least = {"paper": (200, 60), "measured": (120, 60), "priced": (60, 25)}[law]
    for seed in range(seeds):
        problem, rng = tiny(seed, law), np.random.default_rng(seed)
        N, L = len(problem.fleet), len(problem.profile)
        given = Plan(rng.integers(1, problem.max_batch + 1, N), rng.integers(1, L + 1, N))
        expected = restricted(problem, keep, given)
        if not np.isfinite(expected):
            with pytest.raises(Infeasible):
                solve(problem, getattr(given, keep))
            continue
        report: PlanReport = solve(problem, getattr(given, keep), gap=1e-10)
        assert report.objective == pytest.approx(expected, rel=1e-9), seed
        assert report.lower_bound <= expected * (1 + 1e-12), seed
        assert np.array_equal(getattr(report.plan, keep), getattr(given, keep))
        assert not faults(report, problem)
        solved += 1
    assert solved >= least


@pytest.mark.parametrize("part", quick_then_slow([1, 0, 2, 3]))  # the quickest one first
def test_no_heuristic_beats_the_bound_of_a_larger_fleet(part: int) -> None:
    compared = 0
    for seed in range(3000 + part * 30, 3030 + part * 30):
        problem = random_problem(seed, devices=(1, 50), layers=(2, 8), max_batch=32)
        try:
            exact = best_plan(problem, time_limit=60)
        except Infeasible:
            continue
        assert exact.status == "optimal"
        assert not faults(exact, problem)
        rng = np.random.default_rng(seed)
        N, L = len(problem.fleet), len(problem.profile)
        batches = rng.integers(1, 33, (300, N))
        alike = np.broadcast_to(rng.integers(1, L + 1, (300, 1)), batches.shape)
        cuts = np.where(rng.random((300, 1)) < 0.5, alike, rng.integers(1, L + 1, (300, N)))
        values = objectives(problem, batches, cuts)
        assert values.min() >= exact.lower_bound
        started = alternate(problem, start=exact.plan)
        assert exact.lower_bound <= started.objective <= exact.objective
        assert alternate(problem).objective >= exact.lower_bound
        compared += bool(np.isfinite(values).any())
    assert compared >= 8


def random_cuts(problem: Problem, seed: int) -> IntN:
    return np.random.default_rng(seed).integers(1, len(problem.profile) + 1, len(problem.fleet))


@pytest.mark.parametrize(
    "case",
    [
        *(("measured", edges) for edges in (4, 32, 256)),
        *quick_then_slow([("paper", edges) for edges in (256, 8, 4, 32)]),
    ],
)
def test_batches_on_a_grid_of_any_size_agree_with_the_search(
    case: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coarse grid leaves much to the search."""
    law, edges = case
    monkeypatch.setattr(fixed_cuts, "EDGES", edges)
    on_grid, gap = 0, 1e-4 if law == "paper" else 1e-3
    for seed in range(4000, 4040 if law == "paper" else 4020):
        if law == "paper":
            problem = random_problem(seed, devices=(2, 60), layers=(2, 6), max_batch=64)
            try:
                cuts = best_plan(problem, gap=1e-2, time_limit=30).plan.cuts
            except Infeasible:
                continue
        else:
            problem = measured(random_problem(seed, devices=(2, 40), layers=(2, 6), max_batch=64), seed)
            problem = replace(problem, fleet=replace(problem.fleet, memory=problem.fleet.memory * 100))
            cuts = random_cuts(problem, seed)
        fixed = FixedCuts.of(problem, cuts)
        found = fixed_cuts.best_batches_on_grid(fixed, fixed_cuts.first_batches(fixed), gap)
        if found.lower_bound is not None:
            with pytest.MonkeyPatch.context() as patch:  # batches alone, as if the grid had not closed
                patch.setattr(fixed_cuts, "MOST_POINTS", -1)
                searched = best_batches(problem, cuts, gap=10 * gap, time_limit=30 if law == "paper" else 5)
            value = fixed.value(found.batch_sizes)
            assert found.lower_bound <= searched.objective * (1 + 1e-12), seed
            assert value >= (searched.lower_bound or 0.0) * (1 - 1e-12), seed
            assert value <= found.lower_bound * (1 + 1.01 * gap), seed
            on_grid += 1
    least = {"paper": 3 if edges < 32 else 12, "measured": 15 if edges == 256 else 5}
    assert on_grid >= least[law]


def test_too_much_curvature_costs_the_gap_and_not_the_proof() -> None:
    """Where 1/B is not convex, the search may end with a larger gap. Its lower bound holds all the same."""
    for seed in range(60):
        problem, steep = tiny(seed, "measured"), 10 ** np.random.default_rng(seed).uniform(0, 2)
        problem = replace(problem, constants=replace(problem.constants, curvature=float(steep)))
        if (expected := best_of_all(problem)) is not None:
            report = best_plan(problem, gap=1e-3, box_limit=200)
            assert report.lower_bound <= expected[1] * (1 + 1e-12), seed
            assert report.objective >= expected[1] * (1 - 1e-12), seed
            assert report.status == "limit" or report.objective <= expected[1] * (1 + 2e-3), seed


def test_more_samples_than_a_grid_holds_are_left_to_the_search() -> None:
    problem = random_problem(3001, devices=(20, 20), layers=(4, 4), max_batch=32)
    endless = replace(
        problem,
        max_batch=10**9,
        fleet=replace(problem.fleet, memory=np.full(20, 1e30)),
        target=problem.target * 5,
    )
    report = best_batches(endless, np.full(20, 4), time_limit=20)
    assert not faults(report, endless)
    assert report.status == "optimal"


def test_the_same_question_gets_the_same_answer() -> None:
    problem = random_problem(3001, devices=(20, 20), layers=(6, 6), max_batch=32)
    one, other = best_plan(problem), best_plan(problem)
    assert one.plan == other.plan
    assert (one.objective, one.lower_bound, one.iterations) == (
        other.objective,
        other.lower_bound,
        other.iterations,
    )


def test_a_warm_start_helps_and_does_not_change_the_promise() -> None:
    cold = warm = 0
    for seed in range(3000, 3010):
        problem = random_problem(seed, devices=(20, 40), layers=(4, 8), max_batch=32)
        rng = np.random.default_rng(seed)
        drifted = replace(
            problem,
            fleet=replace(
                problem.fleet, up_rate=problem.fleet.up_rate * rng.uniform(0.99, 1.01, len(problem.fleet))
            ),
        )
        try:
            last = best_plan(problem).plan
            without, starting = best_plan(drifted), best_plan(drifted, start=last)
        except Infeasible:
            continue
        assert starting.lower_bound <= without.objective
        assert without.lower_bound <= starting.objective
        cold, warm = cold + without.iterations, warm + starting.iterations
    assert warm < cold


def test_a_start_that_does_not_fit_is_not_taken() -> None:
    problem = random_problem(3001, devices=(6, 6), layers=(4, 4), max_batch=32)
    problem = replace(problem, max_batch=4, target=problem.target * 20)
    best = best_plan(problem)
    too_many = Plan.uniform(6, batch_size=5, cut=1)
    assert best_plan(problem, start=too_many).plan.batch_sizes.max() <= 4
    assert best_batches(problem, best.plan.cuts, start=too_many).plan.batch_sizes.max() <= 4


def test_a_start_out_of_reach_of_the_target_does_no_harm() -> None:
    problem = random_problem(3001, devices=(6, 6), layers=(4, 4), max_batch=32)
    cuts = best_plan(problem).plan.cuts
    noisy = Plan(np.ones_like(cuts), cuts)
    with pytest.raises(TargetUnreachable):
        evaluate(noisy, problem)
    assert best_batches(problem, cuts, start=noisy).plan == best_batches(problem, cuts).plan
    assert best_plan(problem, start=noisy).plan == best_plan(problem).plan


def test_starts_gaps_and_plans_of_the_wrong_kind_are_refused() -> None:
    problem = random_problem(3001, devices=(6, 6), layers=(4, 4), max_batch=32)
    for wrong in (Plan.uniform(5, batch_size=1, cut=1), Plan.uniform(6, batch_size=1, cut=5)):
        with pytest.raises(InputError, match=r"devices|a cut must lie between 1 and 4"):
            best_plan(problem, start=wrong)
        with pytest.raises(InputError, match=r"devices|a cut must lie between 1 and 4"):
            alternate(problem, start=wrong)
        with pytest.raises(InputError, match=r"devices|a cut must lie between 1 and 4"):
            best_batches(problem, wrong.cuts)
    with pytest.raises(InputError, match="devices"):
        best_cuts(problem, np.ones(5, dtype=int))
    with pytest.raises(InputError, match=r"gap must lie between 0 and 1, got -0\.1"):
        best_plan(problem, gap=-0.1)


def test_identical_devices_are_planned_alike_where_nothing_couples_them() -> None:
    problem = random_problem(3001, devices=(20, 20), layers=(6, 6), max_batch=32)
    fleet = problem.fleet
    alike = replace(
        fleet,
        **{field: np.full(20, getattr(fleet, field)[0]) for field in PER_DEVICE},
        server_fed_up_rate=1e15,
        server_fed_down_rate=1e15,
    )
    report = best_plan(replace(problem, fleet=alike), gap=1e-9)
    assert report.status == "optimal"
    assert len(set(zip(report.plan.batch_sizes, report.plan.cuts, strict=True))) == 1


def test_when_one_sample_is_the_answer_it_is_the_answer() -> None:
    problem = random_problem(3001, devices=(6, 6), layers=(4, 4), max_batch=32)
    weightless = replace(problem, constants=replace(problem.constants, variance_of=np.zeros(4)), target=1e9)
    assert best_plan(weightless).plan.batch_sizes.tolist() == [1] * 6
    assert best_batches(weightless, np.full(6, 2)).plan.batch_sizes.tolist() == [1] * 6
    assert (
        alternate(weightless, start=Plan.uniform(6, batch_size=4, cut=2)).plan.batch_sizes.tolist() == [1] * 6
    )


def test_infeasible_problems_say_who_forbids_it() -> None:
    problem = random_problem(3001, devices=(3, 3), layers=(4, 4), max_batch=32)
    memory = problem.fleet.memory.copy()
    memory[1] = 1.0
    with pytest.raises(Infeasible, match=r"memory of device '2'"):
        best_plan(replace(problem, fleet=replace(problem.fleet, memory=memory)))
    with pytest.raises(
        Infeasible, match=r"no plan reaches target 1e-09 \(C1\).* the floor of the bound is still"
    ):
        best_plan(replace(problem, target=1e-9))
    with pytest.raises(Infeasible, match=r"\(C1\)"):
        best_batches(replace(problem, target=1e-9), np.ones(3, dtype=int))
    with pytest.raises(Infeasible, match=r"memory of device"):
        alternate(replace(problem, fleet=replace(problem.fleet, memory=memory)))


def test_the_oracle_refuses_what_is_too_large() -> None:
    with pytest.raises(InputError, match="too many to try"):
        best_of_all(random_problem(3001, devices=(20, 20), layers=(6, 6), max_batch=32))


def test_the_verifier_finds_what_is_wrong() -> None:
    problem = next(p for p in map(tiny, TINY) if best_of_all(p) is not None and len(p.fleet) > 1)
    report = best_plan(problem)
    assert faults(report, problem) == []
    assert "the report says" in faults(replace(report, objective=report.objective * 1.001), problem)[0]
    assert "lower bound" in faults(replace(report, lower_bound=report.objective * 1.1), problem)[0]
    N, L = len(problem.fleet), len(problem.profile)
    wrong = Plan(np.full(N, problem.max_batch + 1), np.full(N, L + 1))
    sentences = faults(replace(report, plan=wrong), problem)
    assert len(sentences) == 2 * N
    assert "(C5)" in sentences[0]
    assert "(C2, C3)" in sentences[1]
    starved = replace(problem, fleet=replace(problem.fleet, memory=np.full(N, 1.0)))
    assert all("(C4)" in sentence for sentence in faults(report, starved))
    assert "devices" in faults(replace(report, plan=Plan.uniform(N + 1, batch_size=1, cut=1)), problem)[0]
