"""What evaluations cost that decide something; evaluations for reports are free."""

import numpy as np
import pytest

from hasfl.arrays import IntN
from hasfl.goal import Goal
from hasfl.plan import Plan
from hasfl.theory.latency import Arrangement
from hasfl.theory.paradigms import CENTRALISED, FEDERATED, Paradigm
from hasfl.training.clock import JUDGING_SHARE, Cost, Judging, ModelledClock
from tests.learning.simulations import run, simulation, unequal_fleet
from tests.training.fakes import SAMPLE_BITS, small_fleet, training
from tests.training.test_beside_training import PARADIGMS, TOLERANCE, clock_of, own_phases

JUDGING = Judging(held_out=np.array([2, 0, 4]), calibrating=np.array([3, 0, 1]))


def judged(aggregated: bool, averaged: bool, present: IntN, clock: ModelledClock) -> Cost:
    fleet = small_fleet()
    plan = Plan(np.ones(len(present), dtype=int), np.array([1, 3, 2])[present])
    now = Arrangement(plan, fleet.only(present), 3)
    own = fleet.only(JUDGING.devices)
    return JUDGING.cost(clock, now, present, own, averaged=averaged, aggregated=aggregated)


def test_an_evaluation_by_hand() -> None:
    """Device 1 has no samples to send; devices 0 and 2 run the model forward, at cuts 1 and 2 of 3."""
    everybody = np.arange(3)
    cost = judged(aggregated=True, averaged=True, present=everybody, clock=clock_of())
    passes = [
        max(n * (100 / 10 + 50 / 100), m * (300 / 12 + 30 / 114)) + (n * 500 + m * 300) / 1000
        for n, m in ((3, 1), (2, 4))
    ]
    download = max(1000 / 400, 3000 / 434, (6000 + 4000) / 600)
    assert cost.phases == {
        "evaluation_passes": pytest.approx(sum(passes), rel=TOLERANCE),
        "evaluation_exchange": pytest.approx(download, rel=TOLERANCE),
    }
    assert cost.samples == 0
    assert cost.bits["evaluation_activation_upload"] == 5 * 50 + 5 * 30
    assert "evaluation_gradient_download" not in cost.bits
    assert cost.bits["evaluation_submodel_download"] == 4000
    assert cost.bits["evaluation_submodel_upload"] == 0


def test_who_is_away_is_judged_at_the_shallowest_cut() -> None:
    """Device 0, with cut 1, is away; the others have cuts 3 and 2."""
    cost = judged(aggregated=True, averaged=True, present=np.array([1, 2]), clock=clock_of())
    assert cost.bits["evaluation_activation_upload"] == 5 * 30 + 5 * 30
    assert cost.bits["evaluation_submodel_download"] == 3000 + 3000


def test_replicas_are_gathered_only_where_nobody_has_their_mean() -> None:
    everybody = np.arange(3)
    exchanged = {
        (aggregated, averaged): judged(aggregated, averaged, everybody, clock_of()).phases[
            "evaluation_exchange"
        ]
        for aggregated in (False, True)
        for averaged in (False, True)
    }
    down = max(1000 / 400, 3000 / 434, 10_000 / 600)
    up = max(1000 / 300, 7000 / 313, 3000 / 326, (6000 + 4000) / 500)
    assert exchanged == {
        (False, False): pytest.approx(up + down, rel=TOLERANCE),
        (False, True): pytest.approx(down, rel=TOLERANCE),
        (True, False): 0,
        (True, True): pytest.approx(down, rel=TOLERANCE),
    }


@pytest.mark.parametrize("keeps_mean", [False, True])
@pytest.mark.parametrize("paradigm", PARADIGMS, ids=lambda paradigm: paradigm.name)
def test_evaluations_that_decide_are_on_the_clock(paradigm: Paradigm, keeps_mean: bool) -> None:
    """And nothing else of the training changes, apart from the held-out samples that cl collects."""
    present = (lambda t: [(t - 1) // 2 % 3]) if paradigm.in_turns else (lambda t: [0, 1, 2])
    cuts = (lambda k: [3, 3, 3]) if paradigm is FEDERATED else (lambda k: [2, 2, 2])
    judges, reports = (
        list(
            training(
                paradigm=paradigm,
                present=present,
                cuts=cuts,
                judging=judging,
                evaluate_every=3,
                keeps_mean=keeps_mean,
                goal=Goal(rounds=6),
            ).rounds()
        )
        for judging in (JUDGING, None)
    )
    assert [each.round for each in judges if "evaluation_passes" in each.phases] == [3, 6]
    assert own_phases(reports, "evaluation_") == 0
    collected = 0.0
    if paradigm is CENTRALISED:
        assert judges[0].bits["data_upload"] - reports[0].bits["data_upload"] == 6 * SAMPLE_BITS
        collected = judges[0].phases["data_upload"] - reports[0].phases["data_upload"]
    extra = collected + own_phases(judges, "evaluation_")
    assert judges[-1].clock - extra == pytest.approx(reports[-1].clock, rel=TOLERANCE)
    assert judges[-1].clock == pytest.approx(sum(each.seconds for each in judges), rel=TOLERANCE)
    assert [each.samples for each in judges] == [each.samples for each in reports]
    for each in judges:
        assert each.seconds == pytest.approx(sum(each.phases.values()), rel=TOLERANCE)
        sent = each.bits.get("evaluation_submodel_download", 0)
        asked = "evaluation_passes" in each.phases and paradigm is not CENTRALISED
        needs = keeps_mean or not each.aggregated
        assert sent == (14_000 if paradigm is FEDERATED else 6000) * (asked and needs)


def test_seconds_of_evaluations_are_a_part_of_the_budget() -> None:
    usual = list(training(goal=Goal(rounds=6)).rounds())
    between = Goal(seconds=usual[2].clock + 1e-9)
    assert len(list(training(goal=between, evaluate_every=3).rounds())) == 4
    assert len(list(training(goal=between, evaluate_every=3, judging=JUDGING).rounds())) == 3


@pytest.mark.parametrize(
    ("settings", "decides"),
    [
        ({"held_out": 0.2}, False),
        ({"held_out": 0.2, "keep": "best"}, True),
        ({"goal": Goal(rounds=6, accuracy=1.0)}, True),
        ({"goal": Goal(rounds=6, loss=1e-9)}, True),
        ({"goal": Goal(rounds=6, converged=True)}, True),
    ],
    ids=str,
)
def test_evaluations_for_reports_are_free(settings: dict[str, object], decides: bool) -> None:
    records = run("sfl", unequal_fleet(), **{"rounds": 6, "evaluate_every": 3, **settings})
    assert all((each.accuracy is None) == (each.round % 3 > 0) for each in records)
    counted = {each.round for each in records if "evaluation_passes" in each.phases}
    assert counted == ({3, 6} if decides else set())


@pytest.mark.parametrize("rounds", [1, 7, 40, 200])
def test_models_are_judged_where_that_costs_little(rounds: int) -> None:
    """At most a fifth of the time since the last judgement, and at the end; other evaluations are free."""
    made = training(goal=Goal(rounds=rounds), evaluate_every=1, judging=JUDGING, judges_always=False)
    judged_at, before = 0.0, 0.0
    for each in made.rounds():
        cost = sum(seconds for phase, seconds in each.phases.items() if phase.startswith("evaluation"))
        assert (cost > 0) == (each.held_out_accuracy is not None)
        assert each.accuracy is not None
        without = each.clock - cost
        if cost:
            assert each.round == rounds or cost <= JUDGING_SHARE * (without - judged_at)
            judged_at = each.clock
        else:
            price = JUDGING_SHARE * (without - judged_at)
            assert price < ALWAYS[each.round - 1]
        assert each.clock > before
        before = each.clock


ALWAYS = [
    sum(seconds for phase, seconds in each.phases.items() if phase.startswith("evaluation"))
    for each in training(goal=Goal(rounds=200), evaluate_every=1, judging=JUDGING).rounds()
]


def test_a_goal_is_noticed_when_a_model_is_judged() -> None:
    """The model is good enough from the first round on, and nobody knows until it is judged."""
    goal = Goal(accuracy=0.5, rounds=200)
    made = training(goal=goal, evaluate_every=1, judging=JUDGING, judges_always=False)
    *before, last = made.rounds()
    assert 1 < last.round < 200
    assert last.held_out_accuracy == 0.5
    assert all(each.held_out_accuracy is None for each in before)


@pytest.mark.parametrize(("calibrate", "times"), [(False, 0), (True, 1)])
def test_samples_of_an_evaluation_are_those_that_are_sent_through_the_model(
    calibrate: bool, times: int
) -> None:
    """All training samples, for a batch norm, since there are few; and all that are held out."""
    made = simulation("sfl", unequal_fleet(), rounds=3, keep="best", calibrate=calibrate)
    judging, data = made.training.judging, made.engine.job.data
    assert judging is not None
    assert judging.held_out.tolist() == [3, 3, 3, 3]  # a tenth of 22 or 23
    assert judging.calibrating.tolist() == (times * data.sizes).tolist()
    drawn = made.engine.calibration.drawn if made.engine.calibration else ()
    assert judging.calibrating.sum() == len(drawn)
