"""The best interval, against the best of all plans for every interval, one by one."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.constants import Conditions, MeasuredConstants
from hasfl.errors import Infeasible, TargetUnreachable
from hasfl.plan import Plan, PlanReport
from hasfl.planning.exact.planner import best_plan
from hasfl.planning.exhaustive import best_of_all
from hasfl.planning.intervals import LADDER, At, Intervals, _at_least, best_interval, try_intervals
from hasfl.problem import Problem
from hasfl.theory.objective import evaluate
from tests.planning.random_problems import measured, random_problem

GAP = 1e-6
ALL = (*range(1, 31), 40, 50, 75, 100, 1000, 10**6, 10**9)  # intervals of the oracle


def at(problem: Problem) -> At:
    known = Conditions(problem.learning_rate, len(problem.fleet), problem.interval)

    def other(interval: int) -> Problem:
        constants = problem.constants.under(replace(known, interval=interval), known)
        return replace(problem, interval=interval, constants=constants)

    return other


def ask(problem: Problem, start: Plan | None, seconds: float) -> PlanReport:
    return best_plan(problem, gap=GAP, time_limit=seconds, start=start)


def question(seed: int, kind: str) -> Problem:
    problem = random_problem(seed, devices=(1, 2), layers=(2, 4), max_batch=4)
    return measured(problem, seed) if kind == "measured" else problem


def oracle(problem: Problem) -> dict[int, float]:
    """Θ of the best plan by enumeration, for many intervals; infinite without a plan."""
    found = {interval: best_of_all(at(problem)(interval)) for interval in ALL}
    return {interval: math.inf if best is None else best[1] for interval, best in found.items()}


@pytest.mark.parametrize("kind", ["measured", "paper"])
@pytest.mark.parametrize("seed", range(25))
def test_against_enumeration(seed: int, kind: str) -> None:
    """Tried intervals have the best plan, and no other interval goes below the bound."""
    problem = question(seed, kind)
    true = oracle(problem)
    if math.isinf(true[1]):
        with pytest.raises(Infeasible):
            best_interval(at(problem), problem.interval, ask, gap=GAP, seconds=60, rounds_known=False)
        return
    found = best_interval(at(problem), problem.interval, ask, gap=GAP, seconds=60, rounds_known=False)
    tried = {each.interval: each for each in found.tried}
    assert problem.interval in tried
    for interval, each in tried.items():
        if interval in true:
            assert each.seconds == pytest.approx(true[interval], rel=2 * GAP)
    assert found.others_at_least is not None
    others = [true[interval] for interval in ALL if interval not in tried]
    assert all(seconds >= found.others_at_least * (1 - GAP) for seconds in others)
    assert found.best.objective == min(each.seconds for each in found.tried)
    assert min(others) >= found.best.objective * (1 - found.others_save) * (1 - GAP)
    if found.tried[-1].interval < LADDER[-1]:  # the ladder ended early: no larger interval is better
        beyond = [true[interval] for interval in ALL if interval > found.tried[-1].interval]
        assert min(beyond) >= found.best.objective * (1 - 2 * GAP)


@given(
    st.integers(0, 10**6),
    st.sampled_from(["measured", "paper"]),
    st.integers(1, 500),
    st.integers(0, 500),
    st.floats(0, 1),
)
def test_one_bound_holds_for_a_range_of_intervals(
    seed: int, kind: str, low: int, width: int, part: float
) -> None:
    """For a fixed plan, at any interval from low to high; the bound is Θ itself where low is high."""
    problem = question(seed, kind)
    rng = np.random.default_rng(seed)
    devices, layers = len(problem.fleet), len(problem.profile)
    plan = Plan(rng.integers(1, 5, devices), rng.integers(1, layers + 1, devices))

    def fixed(asked: Problem, start: Plan | None, seconds: float) -> PlanReport:
        return evaluate(plan, asked)

    bound = _at_least(at(problem), low, low + width, fixed, None, 1.0)
    assert bound is not None
    try:
        seconds = evaluate(plan, at(problem)(low + round(part * width))).objective
    except TargetUnreachable:
        seconds = math.inf
    assert seconds >= bound * (1 - 1e-12)
    if width == 0:
        assert seconds == pytest.approx(bound, rel=1e-12)


def test_links_beyond_all_numbers_prove_nothing() -> None:
    problem = question(3, "measured")
    fast = replace(problem.fleet, server_fed_up_rate=1e60)
    assert _at_least(at(replace(problem, fleet=fast)), 2, 10**9, ask, None, 1.0) == 0.0


def given_intervals(problem: Problem, *intervals: int) -> Intervals:
    return try_intervals(at(problem), intervals, ask, seconds=60)


def test_intervals_that_are_given_are_tried_and_nothing_is_said_of_others() -> None:
    problem = question(1, "measured")
    found = given_intervals(problem, 50, 5, 15)
    assert [each.interval for each in found.tried] == [5, 15, 50]
    assert (found.others_at_least, found.others_save) == (None, None)
    for each in found.tried:
        best = best_of_all(at(problem)(each.interval))
        assert best is not None
        assert each.seconds == pytest.approx(best[1], rel=2 * GAP)


def unreachable_from(problem: Problem) -> int:
    """The first interval at which no plan reaches the target."""
    return next(interval for interval in range(2, 10**4) if best_of_all(at(problem)(interval)) is None)


def test_an_interval_without_a_plan_is_told_and_ends_the_ladder() -> None:
    """Theorem 1's drift grows with I², so that a target comes out of reach."""
    problem = question(4, "paper")
    far = unreachable_from(problem)
    found = given_intervals(problem, 1, far)
    assert [each.report is None for each in found.tried] == [False, True]
    assert "target" in found.tried[1].trouble
    assert found.best_interval == 1
    ladder = best_interval(at(problem), far, ask, gap=GAP, seconds=60, rounds_known=False).tried
    assert [each.interval for each in ladder if each.report is None] == [far]
    assert ladder[-1].interval == far
    with pytest.raises(Infeasible):
        given_intervals(problem, far, far + 5)


def test_without_drift_longer_intervals_are_better_and_the_rest_is_told() -> None:
    """Only T_A/I is left: beyond the ladder's end, as much can be saved as free aggregations save."""
    problem = measured(random_problem(7, devices=(2, 2), layers=(3, 3), max_batch=4), 7)
    still = replace(problem.constants, drift_of=np.zeros(3), skew_of=None)
    problem = replace(problem, constants=still)
    found = best_interval(at(problem), problem.interval, ask, gap=GAP, seconds=60, rounds_known=False)
    assert found.best_interval == LADDER[-1]
    free = best_of_all(at(problem)(10**9))
    assert free is not None
    assert found.others_at_least == pytest.approx(free[1], rel=1e-5)
    assert found.others_save == pytest.approx(1 - free[1] / found.best.objective, abs=1e-5)


def test_a_solver_without_a_proof_proves_nothing() -> None:
    def heuristic(problem: Problem, start: Plan | None, seconds: float) -> PlanReport:
        return replace(ask(problem, start, seconds), status="settled", lower_bound=None)

    found = best_interval(at(question(1, "measured")), 15, heuristic, gap=GAP, seconds=60, rounds_known=False)
    assert [each.interval for each in found.tried] == sorted({*LADDER, 15})
    assert found.others_save is None


@pytest.mark.parametrize("proves", [True, False])
@pytest.mark.parametrize("seed", [8, 23])  # the ladder ends at once, or bounds are needed at its end
def test_no_bound_is_searched_twice(seed: int, proves: bool) -> None:
    problem, asked = measured(random_problem(seed, devices=(2, 2), layers=(3, 3), max_batch=4), seed), []

    def counted(asking: Problem, start: Plan | None, seconds: float) -> PlanReport:
        asked.append((asking.interval, asking.fleet.server_fed_up_rate))
        report = ask(asking, start, seconds)
        return report if proves else replace(report, lower_bound=None)

    best_interval(at(problem), problem.interval, counted, gap=GAP, seconds=60, rounds_known=False)
    assert len(asked) == len(set(asked))


def test_all_searches_together_keep_to_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes all seconds that it gets; nothing is proved, so that there are as many as there can be."""
    problem = measured(random_problem(8, devices=(2, 2), layers=(3, 3), max_batch=4), 8)
    taken = list[float]()
    monkeypatch.setattr("hasfl.planning.intervals.time", SimpleNamespace(monotonic=lambda: sum(taken)))

    def slow(asked: Problem, start: Plan | None, seconds: float) -> PlanReport:
        taken.append(seconds)
        return replace(ask(asked, start, 60), lower_bound=None)

    found = best_interval(at(problem), 2, slow, gap=GAP, seconds=26.0, rounds_known=False)
    assert found.best_interval == 1
    assert len(found.tried) == len(LADDER)
    assert len(taken) > 26
    assert min(taken) == 0
    assert sum(taken) == pytest.approx(26)


@pytest.mark.parametrize("rounds", [60.0, 100.0, 1000.0])
def test_a_training_has_several_intervals(rounds: float) -> None:
    """Intervals are left out with which training would have fewer than six, but never the scenario's own."""
    problem = question(1, "measured")
    still = MeasuredConstants(rounds=rounds, noise=0.0, drift_of=np.zeros(len(problem.profile)))
    problem = replace(problem, constants=still, interval=15)  # so every plan takes R∞ rounds
    found = best_interval(at(problem), 15, ask, gap=GAP, seconds=60, rounds_known=True)
    assert found.longest == max(15, int(rounds / 6))
    longest_rung = max(rung for rung in (*LADDER, 15) if rung <= found.longest)
    assert found.tried[-1].interval == found.best_interval == longest_rung
    longest = best_of_all(at(problem)(found.longest))
    assert longest is not None
    assert found.best.objective * (1 - found.others_save) == pytest.approx(longest[1], rel=1e-5)


def test_the_papers_rounds_leave_no_interval_out() -> None:
    problem = question(4, "paper")
    found = best_interval(at(problem), problem.interval, ask, gap=GAP, seconds=60, rounds_known=True)
    assert found.longest == 10**9


def test_the_example_at_the_head() -> None:
    problem = question(1, "measured")
    aggregation, rounds = 10.0, {5: 100.0, 6: 104.0}

    def example(asked: Problem, start: Plan | None, seconds: float) -> PlanReport:
        times_as_fast = asked.fleet.server_fed_up_rate / problem.fleet.server_fed_up_rate
        round_seconds = 1.0 + aggregation / times_as_fast / asked.interval
        report = evaluate(Plan.uniform(len(asked.fleet), batch_size=1, cut=1), asked)
        return replace(report, objective=rounds[asked.interval] * round_seconds)

    assert _at_least(at(problem), 5, 5, example, None, 1.0) == pytest.approx(300)
    assert _at_least(at(problem), 6, 7, example, None, 1.0) == pytest.approx(252.6, abs=0.05)
