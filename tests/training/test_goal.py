"""When a training ends: each rule alone, all together, and the paper's rule on accuracies made by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.errors import InputError
from hasfl.goal import PLATEAU_EVALUATIONS, PLATEAU_GAIN, ROUNDED, Goal, held_out_counts, plateau
from hasfl.record import RoundRecord
from tests.training.fakes import training

SAMPLES = 9  # that a round of the stand-ins uses


def rounds(goal: Goal, **given: object) -> list[RoundRecord]:
    return list(training(goal=goal, **given).rounds())


@pytest.mark.parametrize("limit", [SAMPLES, 3 * SAMPLES - 1, 3 * SAMPLES, 3 * SAMPLES + 1])
def test_samples_are_a_budget_that_is_not_overdrawn(limit: int) -> None:
    done = rounds(Goal(samples=limit))
    assert len(done) == limit // SAMPLES


def test_a_budget_for_no_round_at_all_is_refused() -> None:
    with pytest.raises(InputError, match="allows no round"):
        rounds(Goal(samples=SAMPLES - 1))


def test_samples_when_rounds_differ() -> None:
    """The next round must fit, not the last one."""
    done = rounds(Goal(samples=20), batches=lambda t: [t, t, t])
    assert [record.samples for record in done] == [3, 9, 18]


@pytest.mark.parametrize("done", [1, 3, 4])
def test_seconds(done: int) -> None:
    clock = [record.clock for record in rounds(Goal(rounds=6))]
    assert len(rounds(Goal(seconds=clock[done - 1]))) == done
    assert len(rounds(Goal(seconds=math.nextafter(clock[done - 1], math.inf)))) == done + 1


def test_accuracy_counts_when_it_is_evaluated() -> None:
    done = rounds(Goal(accuracy=0.7), accuracies=[0.2, 0.69, 0.7, 0.9], evaluate_every=2)
    assert len(done) == 6
    assert done[-1].held_out_accuracy == 0.7


def test_a_loss_counts_when_it_is_evaluated() -> None:
    """The loss of the fake engine is 1.0 on held-out samples and 1.1 on the test set."""
    assert len(rounds(Goal(loss=1.0, rounds=6), evaluate_every=2)) == 2
    assert len(rounds(Goal(loss=1.05, rounds=6), evaluate_every=2)) == 2
    assert len(rounds(Goal(loss=0.99, rounds=6), evaluate_every=2)) == 6


def test_convergence() -> None:
    accuracies = [0.1, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6]
    assert len(rounds(Goal(converged=True), accuracies=accuracies, evaluate_every=1)) == 8
    assert len(rounds(Goal(converged=True), accuracies=accuracies, evaluate_every=3)) == 24


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ({"rounds": 1}, 1),
        ({"rounds": 3}, 3),
        ({"samples": 3 * SAMPLES}, 3),
        ({"accuracy": 0.3}, 3),
        ({"rounds": 5, "samples": 4 * SAMPLES, "accuracy": 0.9}, 4),
        ({"rounds": 4, "samples": 5 * SAMPLES, "seconds": 1e9}, 4),
        ({"rounds": 9, "samples": 1000, "accuracy": 0.5, "converged": True}, 5),
    ],
)
def test_whichever_comes_first(first: dict[str, float], expected: int) -> None:
    rising = [0.1 * t for t in range(1, 20)]
    assert len(rounds(Goal(**first), accuracies=rising, evaluate_every=1)) == expected


@pytest.mark.parametrize("report_every", [1, 2, 7])
def test_the_goal_does_not_wait_for_a_report(report_every: int) -> None:
    goal = Goal(accuracy=0.5)
    done = rounds(goal, accuracies=[0.1, 0.2, 0.5], evaluate_every=2, report_every=report_every)
    assert [record.round for record in done] == [1, 2, 3, 4, 5, 6]


def test_the_end_is_evaluated_once() -> None:
    done = rounds(Goal(samples=5 * SAMPLES), evaluate_every=2, accuracies=[0.1, 0.2, 0.3])
    assert [record.held_out_accuracy for record in done] == [None, 0.1, None, 0.2, 0.3]
    assert [record.accuracy for record in done] == [None, 0.9 * 0.1, None, 0.9 * 0.2, 0.9 * 0.3]


BY_HAND: list[tuple[list[float], int | None]] = [
    ([], None),
    ([0.5] * 5, None),
    ([0.5] * 6, 5),
    ([0.1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5], 6),
    ([0.5, 0.4, 0.4, 0.4, 0.4, 0.4], 5),  # it fell: the best so far gained nothing
    ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], None),
    ([0.5, 0.5, 0.5, 0.5, 0.5, 0.50019], 5),
    ([0.5, 0.5, 0.5, 0.5, 0.5, 0.50021], None),
    ([0.0, 0.0, 0.0, 0.0, 0.0, PLATEAU_GAIN], None),  # not less than 0.02 %
    ([0.5, 0.5, 0.5, 0.5, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6], 10),
    ([0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.95, 0.95], 5),  # once is enough
]


@pytest.mark.parametrize(("accuracies", "expected"), BY_HAND)
def test_plateau_by_hand(accuracies: list[float], expected: int | None) -> None:
    assert plateau(accuracies) == expected


@given(st.lists(st.integers(0, 5000).map(lambda n: n / 5000), max_size=30))
def test_plateau_against_its_definition(accuracies: list[float]) -> None:
    found = None
    for t in range(PLATEAU_EVALUATIONS, len(accuracies)):
        gain = max(accuracies[: t + 1]) - max(accuracies[: t + 1 - PLATEAU_EVALUATIONS])
        if gain < PLATEAU_GAIN:
            found = t
            break
    assert plateau(accuracies) == found


@given(st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.01, 9)), min_size=1, max_size=20))
def test_what_is_reached_stays_reached(evaluations: list[tuple[float, float]]) -> None:
    accuracies, losses = map(list, zip(*evaluations, strict=True))
    converged = Goal(converged=True)
    reached = [converged.reached(accuracies[:t], losses[:t]) for t in range(len(accuracies) + 1)]
    assert reached == sorted(reached)
    assert Goal().reached(accuracies, losses) is False
    best, lowest = max(accuracies), min(losses)
    assert Goal(accuracy=best).reached([*accuracies, best], [*losses, 0.0])
    assert Goal(loss=lowest).reached([*accuracies, 0.0], [*losses, lowest])


@pytest.mark.parametrize(
    ("goal", "judges"),
    [
        (Goal(), False),
        (Goal(rounds=1, samples=1, seconds=1.0), False),
        (Goal(rounds=1, accuracy=0.5), True),
        (Goal(loss=0.5), True),
        (Goal(converged=True), True),
    ],
)
def test_which_goals_need_held_out_samples(goal: Goal, judges: bool) -> None:
    assert goal.judges_model is judges


@given(st.lists(st.integers(1, 300), min_size=1, max_size=9), st.floats(0, 0.5))
def test_every_device_holds_out_its_share_and_keeps_a_sample(samples: list[int], share: float) -> None:
    held_out = held_out_counts(np.array(samples), share)
    for own, count in zip(samples, held_out.tolist(), strict=True):
        assert count == min(math.ceil(share * own * ROUNDED), own - 1)
        assert own - count >= 1
    assert not held_out_counts(np.array(samples), 0.0).any()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"rounds": 0}, "rounds must be a whole number from 1"),
        ({"samples": 1.5}, "samples must be a whole number from 1"),
        ({"seconds": -1.0}, "seconds must be a finite number above 0"),
        ({"loss": "low"}, "loss must be a finite number above 0"),
        ({"accuracy": 97}, "accuracy must be above 0 and at most 1, which is 100 %, got 97"),
    ],
)
def test_a_goal_that_makes_no_sense_is_refused(wrong: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Goal(**wrong)
