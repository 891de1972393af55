"""Larger batches for the last interval: against the sum done by hand, and by law."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from hasfl.plan import Plan
from hasfl.planning.tables import largest_batch_in_memory
from hasfl.problem import Problem
from hasfl.profile import GradientStats
from hasfl.record import Goal, RoundRecord
from hasfl.runner.assembly import Settings
from hasfl.seeds import Seeds
from hasfl.strategies.batch_rules import largest_batches
from hasfl.strategies.catalogue import strategy
from hasfl.strategies.decider import StrategyDecider
from hasfl.strategies.ending import Ending
from hasfl.strategies.situation import Situation
from hasfl.strategies.steadiness import worth_changing
from hasfl.theory.objective import evaluate, margins
from tests.planning.random_problems import measured, random_problem
from tests.strategies.situations import situation

SEEDS = st.integers(0, 10_000)
NEVER = Goal()
AGE = 0.1


def a_problem(seed: int) -> Problem:
    """With tight memory sometimes, and devices that hold few samples."""
    given = measured(random_problem(seed, devices=(1, 4), max_batch=40), seed)
    first = np.zeros(len(given.fleet), dtype=np.int64)
    if (largest_batch_in_memory(given, first) < 1).any():
        given = replace(given, fleet=replace(given.fleet, memory=given.fleet.memory * 1e3))
    held = np.random.default_rng(seed).integers(1, 50, len(given.fleet))
    return replace(given, samples=held)


def a_plan(now: Situation, seed: int) -> Plan:
    """Any that fits, with small batches."""
    rng = np.random.default_rng(seed)
    ones = np.ones(len(now.devices), dtype=np.int64)
    return Plan(np.minimum(rng.integers(1, 4, len(ones)), largest_batches(now, ones)), ones)


def record(
    clock: float,
    accuracy: float | None,
    mean: float | None,
    samples: int = 0,
    *,
    round: int = 1,
    aggregated: bool = True,
) -> RoundRecord:
    return RoundRecord(
        round=round,
        devices=np.arange(1),
        plan=Plan([1], [1]),
        loss=1.0,
        accuracy=accuracy,
        test_loss=None,
        seconds=1.0,
        clock=clock,
        samples=samples,
        aggregated=aggregated,
        phases={},
        bits={},
        mean_accuracy=mean,
    )


def history(seed: int, seconds: float, count: int) -> list[RoundRecord]:
    """A training that learns, whose mean is better than its last model by and large."""
    rng = np.random.default_rng(seed)
    clock = np.cumsum(seconds * rng.uniform(0.5, 2.0, count))
    mean = 0.4 + 0.2 * (1 - np.exp(-clock / clock[-1])) + rng.normal(0, 0.002, count)
    accuracy = mean - rng.uniform(-0.01, 0.08, count)
    rows = zip(clock, accuracy, mean, np.cumsum(rng.integers(5, 50, count)), strict=True)
    records = [record(float(c), float(a), float(m), int(s)) for c, a, m, s in rows]
    last = records[-1]  # and time may have gone on since it
    return [*records, record(1.1 * last.clock, None, None, last.samples + 7)] if seed % 2 else records


def heard(goal: Goal, records: list[RoundRecord]) -> Ending:
    ending = Ending(goal, AGE)
    for each in records:
        ending.hear(each)
    return ending


def naive(records: list[RoundRecord], now: Situation, plan: Plan) -> dict[str, Any]:
    """Price, speed, and the factor that saves most, step by step."""
    evaluated = [each for each in records if each.accuracy is not None]
    ahead = float(np.mean([each.mean_accuracy - each.accuracy for each in evaluated[-3:]]))
    last = evaluated[-6:]
    speed = float(np.polyfit([each.clock for each in last], [each.mean_accuracy for each in last], 1)[0])
    price = ahead + max(speed, 0.0) * AGE * records[-1].clock  # the mean is as it was a tenth of training ago
    found: dict[str, Any] = {"price": price, "speed": speed, "saved": -np.inf, "gain": -np.inf}
    interval, room = now.problem.interval, largest_batches(now, plan.cuts)
    found["seconds"] = interval * evaluate(plan, now.problem).round_seconds
    for factor in (2, 4, 8, 16):
        larger = [
            min(factor * int(b), max(int(r), int(b))) for b, r in zip(plan.batch_sizes, room, strict=True)
        ]
        gain = price * (1 - sum(1 / b for b in larger) / sum(1 / b for b in plan.batch_sizes.tolist()))
        takes = interval * evaluate(Plan(larger, plan.cuts), now.problem).round_seconds
        saved = gain / speed - (takes - found["seconds"]) if speed > 0 else np.inf
        if (saved, gain) > (found["saved"], found["gain"]):
            found |= {"saved": saved, "gain": gain, "batches": larger, "takes": takes, "factor": factor}
    since = records[-1].clock - last[-1].clock
    found["mean"] = last[-1].mean_accuracy + speed * since
    found["standing"] = found["mean"] - ahead
    return found


def asked(seed: int) -> tuple[Situation, Plan, list[RoundRecord]]:
    """A situation in which an ending may be worth it."""
    rng = np.random.default_rng(seed)
    problem = a_problem(seed)
    now = situation(problem, t=1 + problem.interval * int(rng.integers(5, 30)))
    plan = a_plan(now, seed)
    seconds = problem.interval * evaluate(plan, problem).round_seconds
    count = int(rng.integers(3, 12))
    return now, plan, history(seed, seconds * float(rng.choice([0.02, 1.0, 30.0])), count)


def of_time(
    goal: dict[str, Any], now: Situation, plan: Plan, records: list[RoundRecord], by: dict[str, Any]
) -> bool:
    """Whether the goal is reached with it, or another interval does not fit before it."""
    interval, last = now.problem.interval, records[-1]
    (name, value), *_ = goal.items()
    if name == "accuracy":
        return by["standing"] + by["gain"] >= value
    if name == "rounds":
        return now.round + interval - 1 >= value  # this interval is the last
    if name == "seconds":
        return last.clock + by["seconds"] + by["takes"] > value
    used = interval * (int(plan.batch_sizes.sum()) + sum(by["batches"]))
    return last.samples + used > value


def goals(now: Situation, plan: Plan, records: list[RoundRecord], by: dict[str, Any]) -> list[dict[str, Any]]:
    """Goals near to where it becomes time, on either side."""
    interval, last = now.problem.interval, records[-1]
    seconds = last.clock + by["seconds"] + by["takes"]
    samples = last.samples + interval * (int(plan.batch_sizes.sum()) + sum(by["batches"]))
    reached = by["standing"] + by["gain"]
    return [
        {"rounds": now.round + interval - 1},
        {"rounds": now.round + interval},
        {"rounds": now.round},
        {"seconds": seconds * (1 - 1e-9)},
        {"seconds": seconds * (1 + 1e-9)},
        {"samples": samples - 1},
        {"samples": samples},
        {"accuracy": reached - 1e-9},
        {"accuracy": reached + 1e-9},
    ]


@given(SEEDS)
@hypothesis_settings(max_examples=150)
def test_by_hand(seed: int) -> None:
    now, plan, records = asked(seed)
    by = naive(records, now, plan)
    for goal in goals(now, plan, records, by):
        ending = heard(Goal(**goal), records)
        found = ending.ended(now, plan)
        worth = by["price"] > 0 and by["gain"] > 0 and by["saved"] > 0
        if abs(by["saved"]) < 1e-9 * by["seconds"]:
            continue  # a matter of rounding
        assert (found is not plan) == (worth and of_time(goal, now, plan, records, by)), goal
        if found is plan:
            assert (ending.trial, ending.factor) == (None, None)
            continue
        assert found == Plan(by["batches"], plan.cuts)
        assert ending.trial == (now.round if "accuracy" in goal else None)
        assert ending.factor == (None if "accuracy" in goal else by["factor"])


def test_both_answers_come() -> None:
    ratios = []
    for seed in range(80):
        now, plan, records = asked(seed)
        found = heard(Goal(rounds=now.round), records).ended(now, plan)
        ratios.append(int((found.batch_sizes / plan.batch_sizes).max()))
    assert {1, 2, 4, 8, 16} <= set(ratios)
    assert 10 < ratios.count(1) < 70


@given(SEEDS)
@hypothesis_settings(max_examples=100)
def test_what_is_larger_still_fits(seed: int) -> None:
    """Memory, data and the largest batch size; cuts stay, and no batch shrinks."""
    now, plan, records = asked(seed)
    found = heard(Goal(rounds=now.round), records).ended(now, plan)
    assert margins(found, now.problem).kept
    assert (found.batch_sizes <= now.problem.samples).all()
    assert (found.batch_sizes >= plan.batch_sizes).all()
    assert (found.batch_sizes <= 16 * plan.batch_sizes).all()
    assert np.array_equal(found.cuts, plan.cuts)


def test_a_plan_beyond_its_limits_does_not_shrink() -> None:
    """One that was kept although it does not fit any more: what it is worth is not for the ending to say."""
    seen = 0
    for seed in range(60):
        now, plan, records = asked(seed)
        tight = replace(now, problem=replace(now.problem, max_batch=1))
        found = heard(Goal(rounds=now.round), records).ended(tight, plan)
        assert (found.batch_sizes == plan.batch_sizes).all()
        seen += plan.batch_sizes.max() > 1
    assert seen > 20


@given(SEEDS)
@hypothesis_settings(max_examples=50)
def test_without_a_goal_there_is_no_last_interval(seed: int) -> None:
    now, plan, records = asked(seed)
    assert heard(NEVER, records).ended(now, plan) is plan


@given(SEEDS)
@hypothesis_settings(max_examples=50)
def test_nothing_is_known_from_two_evaluations_or_without_the_mean(seed: int) -> None:
    now, plan, records = asked(seed)
    goal = Goal(rounds=now.round)
    assert heard(goal, records[:2]).ended(now, plan) is plan
    unwatched = [replace(each, mean_accuracy=None) for each in records]
    assert heard(goal, unwatched).ended(now, plan) is plan


def worthwhile() -> tuple[Situation, Plan, list[RoundRecord]]:
    """The first case where batches are enlarged for sure."""
    for seed in range(200):
        now, plan, records = asked(seed)
        if heard(Goal(rounds=now.round), records).ended(now, plan) is not plan:
            return now, plan, records
    raise AssertionError


def trying(goal: Goal | None = None) -> tuple[Situation, Plan, list[RoundRecord], Ending]:
    """The first case where a goal seems to be reached with larger batches, tried."""
    for seed in range(200):
        now, plan, records = asked(seed)
        by = naive(records, now, plan)
        ending = heard(goal or Goal(accuracy=by["standing"]), records)
        if ending.ended(now, plan) is not plan:
            return now, plan, records, ending
    raise AssertionError


def test_what_was_tried_is_judged_when_it_is_over() -> None:
    now, _, records, ending = trying()
    assert ending.trial == now.round
    assert ending.goal.accuracy is not None
    seen, clock, goal = ending.seen, records[-1].clock, ending.goal.accuracy
    for too_soon in (
        record(clock, 0.1, 0.9, round=now.round - 1),  # of the round before
        record(clock + 0.5, None, None, round=now.round),  # no evaluation
        record(clock + 0.7, 0.1, 0.9, round=now.round + 1, aggregated=False),  # within the interval
    ):
        assert ending.tries(too_soon.round) == (too_soon.round >= now.round)
        ending.hear(too_soon)
        assert (ending.trial, ending.needed) == (now.round, 0.0)
    usual = [*seen, (clock, 0.1, 0.9)][-6:]  # without what larger batches have changed
    assert ending.seen == usual
    ending.hear(record(clock + 1.0, 0.3, 0.35, round=now.round + 2))
    assert ending.saved()["trial"] is None
    assert not ending.tries(now.round + 3)
    assert ending.needed == pytest.approx(0.35 + goal - 0.3)
    assert ending.seen == usual
    ending.hear(record(clock + 2.0, 0.0, 0.9, round=now.round + 3))  # no try, no verdict
    assert ending.needed == pytest.approx(0.35 + goal - 0.3)


@given(SEEDS, st.sampled_from([-1e-3, -1e-9, 1e-9, 1e-3]))
@hypothesis_settings(max_examples=60)
def test_the_next_try_waits_until_what_was_missing_is_gained(seed: int, more: float) -> None:
    """A budget ends training all the same."""
    now, plan, records = asked(seed)
    by = naive(records, now, plan)
    reached = by["standing"] + by.get("gain", 0.0) - 1e-9
    if heard(Goal(accuracy=reached), records).ended(now, plan) is plan:
        return
    for goal, waits in ((Goal(accuracy=reached), True), (Goal(accuracy=reached, rounds=now.round), False)):
        ending = heard(goal, records)
        ending.needed = by["mean"] + more
        assert (ending.ended(now, plan) is plan) == (waits and more > 0)


def test_one_try_at_a_time() -> None:
    """Its end is not known yet when the next interval is planned: that goes on as usual."""
    now, plan, _, ending = trying()
    trial = ending.trial
    assert ending.ended(now, plan) is plan
    assert ending.trial == trial


def test_once_the_budget_runs_out_batches_stay_large() -> None:
    """Whatever comes: nothing is gained by smaller ones any more."""
    now, plan, records = worthwhile()
    ending = heard(Goal(rounds=now.round), records)
    larger = ending.ended(now, plan)
    assert larger is not plan
    ending.hear(record(records[-1].clock + 1.0, 0.9, 0.1, round=now.round))
    assert ending.ended(now, plan) == larger
    assert not ending.tries(now.round)


@given(SEEDS)
@hypothesis_settings(max_examples=50)
def test_where_nothing_is_gained_any_more_larger_batches_cost_nothing(seed: int) -> None:
    """A plateau at the end of a budget, whose mean is ahead: as large as they get."""
    now, plan, _ = asked(seed)
    flat = [record(float(k), 0.5, 0.6) for k in range(6)]
    found = heard(Goal(rounds=now.round), flat).ended(now, plan)
    room = np.maximum(largest_batches(now, plan.cuts), plan.batch_sizes)
    assert found.batch_sizes.tolist() == np.minimum(16 * plan.batch_sizes, room).tolist()


def test_between_aggregations_the_mean_stands_still() -> None:
    """However often models are evaluated, only the aggregated ones tell how fast it moves."""
    _, _, records = worthwhile()
    often = [
        each
        for one in records
        for each in (one, *(replace(one, clock=one.clock + k / 9, aggregated=False) for k in range(1, 4)))
    ]
    assert heard(NEVER, often).seen == heard(NEVER, records).seen


def test_only_the_last_evaluations_count() -> None:
    now, plan, records = worthwhile()
    goal = Goal(rounds=now.round)
    older = [record(-each.clock - 1e3, 0.1, 0.9) for each in records]
    evaluated = [each for each in records if each.accuracy is not None]
    needed = [*evaluated, *evaluated][-6:]
    one, other = heard(goal, needed), heard(goal, [*older, *needed])
    assert one.seen == other.seen
    assert len(other.seen) == 6
    assert one.ended(now, plan) == other.ended(now, plan)


@pytest.mark.parametrize("kind", ["budget", "accuracy"])
def test_it_goes_on_after_a_pause(kind: str) -> None:
    """Before an ending, and in the midst of it."""
    now, plan, records = worthwhile() if kind == "budget" else trying()[:3]
    goal = Goal(rounds=now.round) if kind == "budget" else trying()[3].goal
    whole = heard(goal, records)
    for _ in range(2):
        again = Ending(goal, AGE)
        again.restore(json.loads(json.dumps(whole.saved())))
        assert again == whole
        assert again.ended(now, plan) == whole.ended(now, plan)
        assert again == whole
        assert (whole.factor, whole.trial) != (None, None)
    after = record(records[-1].clock + 1.0, 0.5, 0.6, 999, round=now.round)
    for each in (whole, again):
        each.hear(after)
    assert again == whole
    assert (again.samples, again.clock) == (999, after.clock)


STATS = GradientStats(smoothness=1.0, initial_gap=1.0, variance_of=[1.0], moment_of=[1.0])


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ({"serve": "last"}, True),
        ({"serve": "last", "strategy": "habs+rhams"}, True),
        ({}, False),
        ({"serve": "mean"}, False),
        ({"serve": "last", "plans": "stay"}, False),
        ({"serve": "last", "constants": "paper"}, False),
        ({"serve": "last", "target": 1.0}, False),
        ({"serve": "last", "stats": STATS}, False),
        ({"serve": "last", "strategy": "hasfl-bcd"}, False),
        ({"serve": "last", "strategy": "sfl"}, False),
        ({"serve": "last", "strategy": "b=4+hams"}, False),
        ({"serve": "last", "strategy": "rbs+hams"}, False),
        ({"serve": "last", "strategy": "habs+rms"}, False),
    ],
    ids=str,
)
def test_only_what_was_found_by_measuring_and_is_served_as_it_is_ends_apart(
    settings: dict[str, Any], ends: bool
) -> None:
    made = Settings(**settings)
    assert made.ends_apart == ends
    assert made.serving.watches == ends


def test_a_decider_goes_back_to_the_usual_plan() -> None:
    """After an interval with larger batches that was not the last, the usual plan is the previous one.

    Also where nobody would change from the larger batches, because the constants are hardly known.
    """
    now, _, records = worthwhile()
    vague = replace(now.problem.stats, noise=0.1, noise_error=9.0, drift_error=9.0)
    now = replace(now, problem=replace(now.problem, stats=vague))
    decider = StrategyDecider(strategy("hasfl"), Seeds(0), heard(NEVER, records))
    usual = decider.plan(now.problem, now.devices, now.round, None)
    assert decider.before_ending is None
    rooms = largest_batches(now, usual.cuts)
    larger = Plan(np.minimum(2 * usual.batch_sizes, rooms), usual.cuts)
    assert larger != usual
    assert not worth_changing(larger, usual, now.problem, rounds=10**6)

    class Always(Ending):
        def ended(self, situation: Situation, plan: Plan) -> Plan:
            return larger

    decider.ending = Always(NEVER, AGE)
    assert decider.plan(now.problem, now.devices, now.round + 9, usual) is larger
    assert decider.before_ending == usual
    kept = StrategyDecider(strategy("hasfl"), Seeds(0), Ending(NEVER, AGE))
    kept.restore(json.loads(json.dumps(decider.saved())))
    assert (kept.before_ending, kept.found) == (decider.before_ending, decider.found)
    for each in (decider, kept):
        each.ending = Ending(NEVER, AGE)
        each.answer(now.problem)
        assert each.plan(now.problem, now.devices, now.round + 18, larger) == usual
        assert each.before_ending is None
