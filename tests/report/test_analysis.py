"""Who reaches an accuracy, converges or finishes when, against naive loops over records."""

import math
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.errors import InputError
from hasfl.goal import Goal
from hasfl.record import RoundRecord
from hasfl.report.analysis import (
    Curve,
    Evaluated,
    as_result,
    finish,
    outcome,
    speed_ups,
)
from tests.report.runs import evaluated, raced, record

ACCURACIES = st.lists(st.floats(0, 1), min_size=1, max_size=30)
RUNS = st.builds(evaluated, ACCURACIES, every=st.integers(1, 4), seconds=st.floats(1e-3, 1e4))
RISING = [0.1, 0.3, 0.5, 0.6, 0.55, 0.6001, 0.6, 0.6001, 0.59, 0.6]


def where_it_converges(accuracies: list[float]) -> int | None:
    """The paper's rule, read aloud: five evaluations on, the best is not 0.02 % better."""
    for k in range(5, len(accuracies)):
        if max(accuracies[: k + 1]) - max(accuracies[: k - 4]) < 2e-4:
            return k
    return None


def test_a_curve_is_made_of_the_evaluations_alone() -> None:
    curve = Curve.of(evaluated([0.1, 0.2], every=3, seconds=2.0))
    assert curve.rounds.tolist() == [3, 6]
    assert (curve.seconds.tolist(), curve.accuracies.tolist()) == ([6.0, 12.0], [0.1, 0.2])
    assert Curve.of([record(1), record(2)]).rounds.size == 0


def test_a_run_converges_where_five_evaluations_bring_nothing() -> None:
    records = [*evaluated(RISING, every=2, seconds=10.0), record(21, clock=777.0, samples=99)]
    found = outcome("hasfl", records)
    assert found.converged
    assert (found.converged_rounds, found.converged_seconds) == (18, 180.0)
    assert found.converged_accuracy == found.best_accuracy == 0.6001
    assert (found.rounds, found.seconds, found.samples) == (21, 777.0, 99)


def test_evaluations_of_one_model_count_once() -> None:
    """A served mean changes only at aggregations, here after every fifth round."""
    same = [replace(each, test_loss=float(each.round // 5)) for each in evaluated([0.5] * 30)]
    found = outcome("hasfl", same)
    assert (found.converged, found.converged_rounds) == (True, 25)
    assert not outcome("hasfl", same[:24]).converged


def test_held_out_samples_say_whether_a_run_converged() -> None:
    """As they end training; the accuracies that are reported are those of the test set."""
    rising = [0.1 * t for t in range(1, 9)]
    records = [replace(each, held_out_accuracy=0.7) for each in evaluated(rising)]
    found = outcome("hasfl", records)
    assert (found.converged, found.converged_rounds) == (True, 6)
    assert found.converged_accuracy == pytest.approx(0.6)


def test_what_comes_after_convergence_counts_as_best_only() -> None:
    found = outcome("hasfl", evaluated([0.5] * 6 + [0.9]))
    assert (found.converged_accuracy, found.converged_rounds, found.best_accuracy) == (0.5, 6, 0.9)


def test_a_result_says_converged_only_where_training_ended_by_it() -> None:
    flat, rising = outcome("hasfl", evaluated([0.5] * 6)), outcome("hasfl", evaluated([0.1, 0.2]))
    assert as_result(flat, Goal(converged=True)) == asdict(flat)
    for reached, goal in ((flat, Goal(rounds=6)), (rising, Goal(converged=True))):
        result = as_result(reached, goal)
        assert result["converged"] is False
        assert {result[f"converged_{what}"] for what in ("accuracy", "seconds", "rounds")} == {None}
        assert (result["rounds"], result["accuracy"]) == (reached.rounds, reached.accuracy)


@given(RUNS)
def test_an_outcome_is_what_a_loop_finds(records: list[RoundRecord]) -> None:
    evaluations = [each for each in records if each.accuracy is not None]
    accuracies = [each.accuracy for each in evaluations if each.accuracy is not None]
    at = where_it_converges(accuracies)
    found = outcome("any", records)
    assert found.converged == (at is not None)
    last = len(accuracies) - 1 if at is None else at
    assert found.converged_accuracy == max(accuracies[: last + 1])
    assert found.converged_seconds == evaluations[last].clock
    assert found.converged_rounds == evaluations[last].round
    assert found.best_accuracy == max(accuracies)


@given(RUNS, st.floats(0, 1))
def test_the_first_evaluation_at_or_above_an_accuracy(records: list[RoundRecord], accuracy: float) -> None:
    evaluations = [each for each in records if each.accuracy is not None]
    first = None
    for index, each in enumerate(evaluations):
        if first is None and each.accuracy is not None and each.accuracy >= accuracy:
            first = Evaluated(index, each.round, each.clock)
    assert Curve.of(records).reached(accuracy) == first


def test_the_first_evaluation_that_is_good_enough_on_held_out_samples() -> None:
    end = finish("hasfl", raced([0.1, 0.46, 0.5, 0.4, 0.9], seconds=3.0), 0.5)
    assert (end.strategy, end.reached, end.rounds, end.seconds) == ("hasfl", True, 6, 18.0)
    assert (end.held_out_accuracy, end.accuracy) == (0.5, 0.55)


def test_a_goal_that_is_not_reached_is_told_by_the_last_evaluation() -> None:
    end = finish("sfl", raced([0.1, 0.49, 0.3]), 0.5)
    assert (end.reached, end.rounds, end.seconds, end.held_out_accuracy) == (False, 6, 6.0, 0.3)


def test_a_run_without_evaluation_has_no_outcome() -> None:
    with pytest.raises(InputError, match=r"the run of rbs must have at least one evaluation .* got 2 rounds"):
        outcome("rbs", [record(1), record(2)])


def test_speed_ups_compare_at_each_ones_own_and_at_a_common_accuracy() -> None:
    runs = {
        "hasfl": evaluated([0.3, 0.6, 0.8] + [0.8] * 5, seconds=1.0),
        "slow": evaluated([0.3, 0.6] + [0.6] * 5, seconds=10.0),
    }
    hasfl, slow = speed_ups(runs, "hasfl")
    assert (hasfl.strategy, hasfl.converged, hasfl.common) == ("hasfl", 1.0, 1.0)
    assert slow.converged == 70.0 / 8.0
    assert (slow.common_accuracy, slow.common_seconds, slow.common) == (0.6, 20.0, 10.0)
    assert hasfl.common_seconds == 2.0
    with pytest.raises(InputError, match="the reference must be one of hasfl, slow, got 'rbs'"):
        speed_ups(runs, "rbs")


@given(st.dictionaries(st.sampled_from("abcd"), RUNS, min_size=2))
def test_ratios_of_any_two_strategies_agree(runs: dict[str, list[RoundRecord]]) -> None:
    first, second, *_ = runs
    of_first = {row.strategy: row for row in speed_ups(runs, first)}
    of_second = {row.strategy: row for row in speed_ups(runs, second)}
    assert math.isclose(of_first[second].converged * of_second[first].converged, 1)
    assert math.isclose(of_first[second].common * of_second[first].common, 1)
    for row in of_first.values():
        assert row.common_seconds <= outcome(row.strategy, runs[row.strategy]).converged_seconds


@given(RUNS, st.floats(1.5, 100))
def test_a_run_on_slower_devices_is_slower_by_as_much(records: list[RoundRecord], factor: float) -> None:
    slower = [replace(each, clock=each.clock * factor) for each in records]
    row = speed_ups({"hasfl": records, "slower": slower}, "hasfl")[1]
    assert math.isclose(row.converged, factor)
    assert math.isclose(row.common, factor)


def test_free_rounds_are_infinitely_faster() -> None:
    runs = {"free": evaluated([0.5], seconds=0.0), "other": evaluated([0.5])}
    assert [row.common for row in speed_ups(runs, "free")] == [1.0, math.inf]


def test_where_models_are_judged_rarely_the_test_set_decides_nothing() -> None:
    """The test accuracy has a plateau, but held-out samples, seen in every seventh evaluation, have none."""
    rows = evaluated([0.9] * 70)
    sparse = [
        replace(row, held_out_accuracy=row.round / 100, held_out_loss=1.0) if row.round % 7 == 0 else row
        for row in rows
    ]
    assert outcome("hasfl", rows).converged
    assert not outcome("hasfl", sparse).converged
    flat = [row if row.held_out_accuracy is None else replace(row, held_out_accuracy=0.5) for row in sparse]
    assert outcome("hasfl", flat).converged_rounds == 7 * 6
