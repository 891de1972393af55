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
from hasfl.planning.intervals import (
    FEWEST_INTERVALS,
    LADDER,
    LONGEST_MEASURED,
    TOO_FEW,
    TOO_LONG,
    At,
    Intervals,
    _at_least,
    best_interval,
    try_intervals,
)
from hasfl.problem import Problem
from hasfl.theory.objective import evaluate
from tests.lanes import quick_then_slow
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
@pytest.mark.parametrize("seed", quick_then_slow(range(25), 10))
def test_against_enumeration(seed: int, kind: str) -> None:
    """Tried intervals have the best plan, and no other interval that is known goes below the bound."""
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
    assert found.longest == (LONGEST_MEASURED if kind == "measured" else None)
    known = [interval for interval in ALL if interval <= (found.longest or math.inf)]
    others = [true[interval] for interval in known if interval not in tried]
    assert all(seconds >= found.others_at_least * (1 - GAP) for seconds in others)
    assert found.best.objective == min(each.seconds for each in found.tried)
    assert min(others) >= found.best.objective * (1 - found.others_save) * (1 - GAP)
    beyond = [true[interval] for interval in known if interval > found.tried[-1].interval]
    if beyond and found.tried[-1].interval < LADDER[-1]:  # the ladder ended early: no larger one is better
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
    return try_intervals(at(problem), intervals, ask, seconds=60, rounds_known=True)


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


def still(problem: Problem, rounds: float = 1.0) -> Problem:
    """Without noise, drift and skew: every plan takes R∞ rounds, so longer intervals are always better."""
    constants = MeasuredConstants(rounds=rounds, noise=0.0, drift_of=np.zeros(len(problem.profile)))
    return replace(problem, constants=constants, target=None)


@pytest.mark.parametrize("own", [2, 15, 50, 80])
def test_nothing_is_recommended_beyond_what_was_measured(own: int) -> None:
    """The longest measured interval is the best one here. The scenario's own is tried all the same."""
    problem = replace(still(random_problem(7, devices=(2, 2), layers=(3, 3), max_batch=4)), interval=own)
    found = best_interval(at(problem), own, ask, gap=GAP, seconds=60, rounds_known=False)
    assert (found.best_interval, found.longest) == (LONGEST_MEASURED, LONGEST_MEASURED)
    assert own in [each.interval for each in found.tried]
    assert [each.doubt for each in found.tried if each.interval == 80] == [TOO_LONG] * (own == 80)
    assert found.others_save == pytest.approx(0, abs=1e-5)
    assert found.as_json(rounds_known=False)["longest_interval"] == LONGEST_MEASURED


def test_without_limits_what_the_longest_intervals_save_is_told() -> None:
    """With the paper's constants and no drift, only T_A/I is left: as much as free aggregations save."""
    problem = random_problem(7, devices=(2, 2), layers=(3, 3), max_batch=4)
    problem = replace(problem, constants=replace(problem.constants, moment_of=np.zeros(3)))
    found = best_interval(at(problem), problem.interval, ask, gap=GAP, seconds=60, rounds_known=False)
    assert (found.best_interval, found.longest) == (LADDER[-1], None)
    assert found.as_json(rounds_known=False)["longest_interval"] is None
    free = best_of_all(at(problem)(10**9))
    assert free is not None
    assert found.others_at_least == pytest.approx(free[1], rel=1e-5)
    assert found.others_save == pytest.approx(1 - free[1] / found.best.objective, abs=1e-5)


def test_a_solver_without_a_proof_proves_nothing() -> None:
    def heuristic(problem: Problem, start: Plan | None, seconds: float) -> PlanReport:
        return replace(ask(problem, start, seconds), status="settled", lower_bound=None)

    found = best_interval(at(question(1, "measured")), 15, heuristic, gap=GAP, seconds=60, rounds_known=False)
    assert [each.interval for each in found.tried] == [
        *(rung for rung in LADDER if rung < 15),
        15,
        18,
        27,
        40,
        50,
    ]
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
    assert [each.interval for each in found.tried] == [1, 2, 3, 5, 8, 12, 18, 27, 40, 50]
    assert found.seconds == sum(taken) <= 26
    assert min(taken) > 0.01
    plans = sorted(taken)[-len(found.tried) :]
    assert min(plans) > 26 / (2 * len(found.tried))  # no plan gets less than half of an equal part


@pytest.mark.parametrize("quick", [0, 1, 2])
def test_a_quick_search_leaves_its_time_to_the_others(monkeypatch: pytest.MonkeyPatch, quick: int) -> None:
    """Of three intervals, the first ones take no time; the rest share all of it alike."""
    problem, given, taken = question(1, "measured"), list[float](), list[float]()
    monkeypatch.setattr("hasfl.planning.intervals.time", SimpleNamespace(monotonic=lambda: sum(taken)))

    def asked(problem: Problem, start: Plan | None, seconds: float) -> PlanReport:
        given.append(seconds)
        taken.append(seconds if len(given) > quick else 0.0)
        return ask(problem, start, 60)

    try_intervals(at(problem), [5, 15, 50], asked, seconds=12.0, rounds_known=True)
    assert given[quick:] == pytest.approx([12.0 / (3 - quick)] * (3 - quick))


@pytest.mark.parametrize("rounds", [3.0, 60.0, 100.0, 1000.0])
def test_a_training_has_several_intervals(rounds: float) -> None:
    """Intervals with which training would have fewer than six are not recommended."""
    problem = replace(still(question(1, "measured"), rounds), interval=15)
    found = best_interval(at(problem), 15, ask, gap=GAP, seconds=60, rounds_known=True)
    assert found.longest == found.best_interval == max(min(int(rounds / FEWEST_INTERVALS), 50), 1)
    for each in found.tried:
        assert each.doubt == (TOO_FEW if rounds < FEWEST_INTERVALS * each.interval else "")
    assert {15, found.longest} <= {each.interval for each in found.tried}
    longest = best_of_all(at(problem)(found.longest))
    assert longest is not None
    assert found.best.objective == pytest.approx(longest[1], rel=1e-5)
    told = found.as_json(rounds_known=True)["intervals"]
    assert isinstance(told, list)
    assert [each["doubt"] for each in told] == [each.doubt or None for each in found.tried]


def test_unknown_rounds_raise_no_doubt() -> None:
    """R∞ of a guess is 1, which says nothing of the number of intervals."""
    problem = still(question(1, "measured"))
    tried = try_intervals(at(problem), [5, 50, 51], ask, seconds=60, rounds_known=False).tried
    assert [each.doubt for each in tried] == ["", "", TOO_LONG]


def test_the_papers_rounds_leave_no_interval_out() -> None:
    problem = question(4, "paper")
    found = best_interval(at(problem), problem.interval, ask, gap=GAP, seconds=60, rounds_known=True)
    assert found.longest is None


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
