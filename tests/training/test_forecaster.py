"""Forecasts of the end of a training, against trainings that go on to their end."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.constants import MeasuredConstants
from hasfl.goal import Goal
from hasfl.plan import Plan
from hasfl.record import GoalForecast, RoundRecord
from hasfl.theory.rounds import MeasuredRounds
from hasfl.training.clock import JUDGING_SHARE, Judging
from hasfl.training.forecaster import Forecaster, budget_end
from hasfl.training.loop import Training
from tests.report.runs import record
from tests.training.fakes import small_profile, training

SMALL, LARGE = Plan([1, 1, 1], [1, 1, 1]), Plan([32, 32, 32], [1, 1, 1])
EVERY, HELD_OUT = 10, 100_000
JUDGING = Judging(held_out=np.array([2, 0, 4]), calibrating=np.array([3, 0, 1]))


def law(noise: float = 8.0) -> MeasuredRounds:
    constants = MeasuredConstants(rounds=1.0, noise=noise, drift_of=np.zeros(3))
    return MeasuredRounds.with_constants(constants, small_profile(), devices=3, interval=EVERY)


def slowness(known: MeasuredRounds | None, plan: Plan) -> float:
    return 1.0 if known is None else known.slowness(plan.batch_sizes, plan.deepest_cut)


def forecaster(goal: Goal, known: MeasuredRounds | None = None, **changes: Any) -> Forecaster:
    fields = {"evaluate_every": EVERY, "interval": EVERY, "held_out": HELD_OUT} | changes
    return Forecaster(goal=goal, slowness=lambda round, plan: slowness(known, plan), **fields)


def logistic(u: float) -> float:
    """A learning curve whose z is the line 1.2 ln u − 5."""
    return 1 / (1 + math.exp(5 - 1.2 * math.log(u)))


def run(plans: list[Plan], known: MeasuredRounds | None) -> list[RoundRecord]:
    """The records of a training with these plans, whose accuracy is `logistic` of its progress."""
    records, u = [], 0.0
    for t, plan in enumerate(plans, start=1):
        u += 1 / slowness(known, plan)
        q = logistic(u) if t % EVERY == 0 else None
        scores = {} if q is None else {"held_out_accuracy": q, "held_out_loss": -math.log(q), "accuracy": q}
        records.append(record(t, plan=plan, clock=0.1 * t, samples=0, **scores))
    return records


def watched(goal: Goal, records: list[RoundRecord], known: MeasuredRounds | None) -> GoalForecast:
    forecasts = forecaster(goal, known)
    for each in records:
        forecasts.watch(each)
    found = forecasts.forecast(records[-1], 0.5)
    assert found is not None
    return found


@pytest.mark.parametrize("goal", [Goal(accuracy=0.8), Goal(loss=-math.log(0.8))])
def test_a_curve_that_goes_on_as_it_began_is_forecast(goal: Goal) -> None:
    records = run([SMALL] * 600, None)
    end = next(each.round for each in records if (each.held_out_accuracy or 0) >= 0.8)
    found = watched(goal, records[: end // 3], None)
    assert found.rounds == pytest.approx(end, rel=0.1)
    assert found.fewest_rounds is not None
    assert found.most_rounds is not None
    assert found.fewest_rounds <= end <= found.most_rounds
    assert found.seconds_left == pytest.approx(0.5 * (found.rounds - end // 3))
    assert found.measure == ("accuracy" if goal.accuracy else "loss")


def test_rounds_count_by_what_their_plans_are_worth() -> None:
    """After a change of the plan, the forecast is that of the whole curve over progress."""
    known = law()
    records = run([SMALL] * 300 + [LARGE] * 900, known)
    end = next(each.round for each in records if (each.held_out_accuracy or 0) >= 0.8)
    u_end = sum(1 / slowness(known, each.plan) for each in records[:end])
    found = watched(Goal(accuracy=0.8), records[:310], known)
    assert found.rounds == pytest.approx(end, rel=0.1)
    assert found.endless_rounds == pytest.approx(u_end, rel=0.1)
    blind = watched(Goal(accuracy=0.8), records[:310], None)
    assert blind.rounds is None or blind.rounds > 1.5 * end


@given(st.integers(1, 60), st.sampled_from([0, 7, 35]))
def test_a_resumed_training_forecasts_the_same(rounds: int, read: int) -> None:
    """Also if constants were read on the way: what rounds before are worth follows from the newest ones."""
    records = run([SMALL] * 25 + [LARGE] * 35, law())
    if read:
        records[read - 1] = replace(records[read - 1], constants={"noise": 8.0})
    goal = Goal(accuracy=0.8)
    whole, resumed = forecaster(goal, law()), forecaster(goal, law())
    for each in records[:rounds]:
        whole.watch(each)
    resumed.restore(records[:rounds])
    for each in records[rounds:]:
        whole.watch(each)
        resumed.watch(each)
    assert whole.forecast(records[-1], 0.5) == resumed.forecast(records[-1], 0.5)
    assert whole.stretches == resumed.stretches


def test_new_constants_change_the_rounds_before() -> None:
    records = run([SMALL] * 30 + [LARGE] * 30, law())
    current = [law(noise=0.1)]
    forecasts = Forecaster(
        goal=Goal(accuracy=0.8),
        evaluate_every=EVERY,
        interval=EVERY,
        held_out=HELD_OUT,
        slowness=lambda round, plan: slowness(current[-1], plan),
    )
    for each in records[:40]:
        forecasts.watch(each)
    current.append(law())
    forecasts.watch(replace(records[40], constants={"noise": 8.0}))
    fresh = forecaster(Goal(accuracy=0.8), law())
    fresh.restore(records[:41])
    forecasts.first_rounds = fresh.first_rounds
    assert forecasts.forecast(records[40], 0.5) == fresh.forecast(records[40], 0.5)


def test_the_first_forecast_stays() -> None:
    """It is that of the constants, where they know R∞ of the goal; else that of the first evaluation."""
    records, goal = run([SMALL] * 60, law()), Goal(accuracy=0.8)
    for endless, expected in ((100.0, 900), (1.0, 9), (None, None)):
        forecasts, told = forecaster(goal, law(), endless=endless), []
        for each in records:
            forecasts.watch(each)
            if each.accuracy is not None:
                told.append(forecasts.forecast(each, 0.5))
        firsts = {each.first_rounds for each in told if each is not None}
        assert firsts == {expected or told[1].rounds}
        resumed = forecaster(goal, law(), endless=endless)
        resumed.restore([*records[:-1], replace(records[-1], forecast=told[1])])
        assert resumed.first_rounds == told[1].first_rounds


def test_a_model_that_stays_is_read_once() -> None:
    """A served mean changes with aggregations only; the same scores again tell nothing new."""
    records = run([SMALL] * 30, None)
    first, second = records[9], records[19]
    same = {"held_out_accuracy": first.held_out_accuracy, "held_out_loss": first.held_out_loss}
    none = {"held_out_accuracy": None, "held_out_loss": None}
    again, left_out = ([*records[:19], replace(second, **each), *records[20:]] for each in (same, none))
    goal = Goal(accuracy=0.8)
    assert watched(goal, again, None) == watched(goal, left_out, None) != watched(goal, records, None)


def test_an_evaluation_before_its_time_is_left_out() -> None:
    """A budget may end in it. A training that goes on must not know it."""
    records = run([SMALL] * 30, None)
    early = {"held_out_accuracy": 0.7, "held_out_loss": 0.3}
    hurried = [*records[:14], replace(records[14], **early), *records[15:]]
    goal = Goal(accuracy=0.8)
    assert watched(goal, hurried, None) == watched(goal, records, None)


def test_scores_that_are_no_numbers_are_left_out() -> None:
    records = run([SMALL] * 30, None)
    broken = [*records[:19], replace(records[19], held_out_loss=math.nan), *records[20:]]
    found = watched(Goal(accuracy=0.8), broken, None)
    assert found.rounds is not None


def test_nothing_is_said_before_the_second_evaluation_and_without_a_goal() -> None:
    records = run([SMALL] * 19, None)
    for goal in (Goal(accuracy=0.8), Goal(converged=True)):
        forecasts = forecaster(goal)
        for each in records:
            forecasts.watch(each)
        assert forecasts.forecast(records[-1], 0.5) is None


def test_a_goal_that_no_curve_reaches_is_out_of_sight() -> None:
    scores = {"held_out_accuracy": 0.1, "held_out_loss": 2.3, "accuracy": 0.1}
    records = [record(t, plan=SMALL, **(scores | {"held_out_loss": 2.3 + t / 1e6})) for t in range(1, 200)]
    found = watched(Goal(accuracy=1.0), records, None)
    assert found.rounds is None
    assert found.seconds_left is None
    assert found.most_rounds is None


@pytest.mark.parametrize("judging", [None, JUDGING])
@pytest.mark.parametrize(
    "goal", [Goal(rounds=37), Goal(samples=400), Goal(seconds=9000.0), Goal(rounds=50, samples=300)]
)
def test_budgets_end_when_they_say(goal: Goal, judging: Judging | None) -> None:
    """The loop itself is the oracle: after each round, the forecast is the round that was last."""
    loop = training(goal=goal, interval=1, evaluate_every=1, judging=judging)
    records = list(loop.rounds())
    ends = {budget_end(goal, each, loop.mean_round_seconds(each)) for each in records}
    (end,) = ends
    assert end is not None
    assert end.rounds == len(records)
    assert end.budget in {name for name in ("rounds", "samples", "seconds") if getattr(goal, name)}


@pytest.mark.parametrize("keeps_mean", [False, True])
def test_the_mean_time_of_a_round_is_that_of_whole_intervals(keeps_mean: bool) -> None:
    """With all that comes in six rounds: three aggregations and two evaluations, one of them aggregated."""
    loop = training(
        goal=Goal(rounds=12), interval=2, evaluate_every=3, judging=JUDGING, keeps_mean=keeps_mean
    )
    records = list(loop.rounds())
    later = records[6:]
    judged = {each.round: each for each in records if "evaluation_passes" in each.phases}
    found = [loop.mean_round_seconds(judged[t]) for t in (9, 12)]
    assert np.mean(found) == pytest.approx(sum(each.seconds for each in later) / 6, rel=1e-12)
    loop.judges_always = False
    without = training(goal=Goal(rounds=12), interval=2, keeps_mean=keeps_mean)
    usual = list(without.rounds())[6:]
    expected = (1 + JUDGING_SHARE) * sum(each.seconds for each in usual) / 6
    assert loop.mean_round_seconds(later[0]) == pytest.approx(expected, rel=1e-12)


def test_without_a_budget_there_is_no_end() -> None:
    assert budget_end(Goal(accuracy=0.8), record(5), 0.5) is None


def test_records_do_not_depend_on_budgets() -> None:
    """So a training that goes on with a larger budget has the records of one that had it from the start."""
    short, long = (
        list(watching(Goal(accuracy=0.9, rounds=rounds), [0.3, 0.35, 0.4, 0.5]).rounds()) for rounds in (4, 8)
    )
    assert [each.forecast for each in short] == [each.forecast for each in long[:4]]
    assert short[3].forecast is not None


def test_a_goal_that_is_reached_is_not_forecast() -> None:
    records = list(watching(Goal(accuracy=0.9), [0.3, 0.6, 0.7, 0.95]).rounds())
    forecast = [each.round for each in records if each.forecast is not None]
    assert (forecast, len(records)) == ([4, 6], 8)


def watching(goal: Goal, accuracies: list[float]) -> Training:
    """A loop among stand-ins with an evaluation every two rounds."""
    loop = training(goal=goal, evaluate_every=2, accuracies=accuracies)
    loop.forecaster = forecaster(goal, evaluate_every=2, interval=2)
    return loop


def test_records_keep_forecasts() -> None:
    found = watched(Goal(accuracy=0.8), run([SMALL] * 30, None), None)
    kept = record(30, forecast=found)
    assert RoundRecord.from_json(kept.as_json()).forecast == found
    older = {name: value for name, value in kept.as_json().items() if name != "forecast"}
    assert RoundRecord.from_json(older).forecast is None


def plateau(rng: np.random.Generator, later_slope: float) -> list[RoundRecord]:
    """A training that learns fast up to 88 % and slowly from round 60 on, judged on the same 160 samples.

    A sample is right where the model is better than the sample is difficult, give or take a little chance.
    """
    difficulty, records = rng.logistic(size=160), []
    for t in range(1, 1201):
        x = math.log(t / 60)
        z = 2.0 + (1.6 if x < 0 else later_slope) * x
        right = float(np.mean(z + 0.25 * rng.normal(size=160) > difficulty)) if t % EVERY == 0 else None
        scores = {} if right is None else {"held_out_accuracy": right, "held_out_loss": 1 + t / 1e6}
        records.append(record(t, plan=SMALL, accuracy=right, **scores))
    return records


@pytest.mark.parametrize("later_slope", [0.05, 0.2, 0.4])
def test_the_range_holds_on_a_plateau(later_slope: float) -> None:
    """The error of the held-out samples is common to all evaluations: none of them is good by mere luck.

    If every evaluation had an error of its own, the goal would always seem to be near, and only 8 to 25 % of
    the ranges would hold.
    """
    held, goal = list[bool](), Goal(accuracy=0.92)
    for seed in range(12):
        records = plateau(np.random.default_rng(seed), later_slope)
        scored = [each for each in records if each.held_out_accuracy is not None]
        end = next((each.round for each in scored if (each.held_out_accuracy or 0) >= 0.92), math.inf)
        forecasts = forecaster(goal, held_out=160)
        for each in records[: int(min(end, 600)) - 1]:
            forecasts.watch(each)
            if each.held_out_accuracy is not None and each.round >= 80:
                found = forecasts.forecast(each, 1.0)
                assert found is not None
                latest = found.most_rounds or math.inf
                held.append((found.fewest_rounds or math.inf) <= end and latest >= min(end, len(records)))
    assert len(held) > 50
    assert np.mean(held) > 0.6
