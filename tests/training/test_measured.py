"""Measured beside predicted seconds in the records of training."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.goal import Goal
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.record import EDGE, MeasuredRound, RoundRecord
from hasfl.theory.latency import Arrangement
from hasfl.theory.paradigms import SPLIT
from hasfl.training.clock import ModelledClock
from tests.generators import settings as problems
from tests.learning.simulations import run
from tests.report.runs import record
from tests.training.fakes import small_fleet, small_profile, training

TOLERANCE = 1e-12  # sums of a few positive numbers in float64, in another order
UP, DOWN = ("device_forward", "activation_upload"), ("gradient_download", "device_backward")
seconds = st.floats(0.0, 1e9)
by_party = st.dictionaries(st.sampled_from([*UP, *DOWN]), st.dictionaries(st.integers(-1, 99), seconds))


@given(
    st.builds(
        MeasuredRound,
        seconds=seconds,
        spans=st.dictionaries(st.sampled_from(["split_training", "reading"]), seconds),
        measured=by_party,
        dropped=st.dictionaries(st.integers(-1, 99), st.text()),
        clock=seconds,
        predicted=by_party,
    )
)
def test_a_measured_round_survives_json(made: MeasuredRound) -> None:
    kept = record(1, measured=made)
    again = RoundRecord.from_json(json.loads(json.dumps(kept.as_json())))
    assert again.measured == made
    assert again.as_json() == kept.as_json()


def test_records_of_simulations_hold_nothing_new() -> None:
    for kept in run("hasfl"):
        assert kept.measured is None
        assert "measured" not in kept.as_json()
        assert RoundRecord.from_json(kept.as_json()).measured is None


@given(problems())
def test_the_slowest_parties_make_the_round(given_problem: tuple[Problem, Plan]) -> None:
    problem, plan = given_problem
    clock = ModelledClock(profile=problem.profile, paradigm=SPLIT, sample_bits=8.0)
    devices = np.arange(len(plan)) * 3 + 5
    now = Arrangement.of(plan, problem.fleet)
    steps = clock.by_party(now, devices)
    sums = [
        max(sum(steps[step][device] for step in half) for device in devices.tolist()) for half in (UP, DOWN)
    ]
    server = steps["server_forward"][EDGE] + steps["server_backward"][EDGE]
    assert sum(sums) + server == pytest.approx(clock.round(now).seconds, rel=TOLERANCE)
    exchange = clock.upload_by_party(now, now, devices) | clock.download_by_party(now, now.depth, devices)
    slowest = {step: max(of.values()) for step, of in exchange.items()}
    assert slowest == pytest.approx(clock.aggregation(now, now).phases, rel=TOLERANCE)
    assert all(set(of) == {EDGE, *devices.tolist()} for of in exchange.values())


MOVING = [[1, 2, 1], [3, 1, 2], [2, 2, 2], [1, 1, 1]]
ROUNDS = 8


def there(t: int) -> list[int]:
    return {3: [1, 2], 4: [1], 6: [0, 2]}.get(t, [0, 1, 2])


def measurements() -> list[MeasuredRound]:
    return [
        MeasuredRound(seconds=0.5 * t, spans={}, measured={"device_forward": {0: t}}, dropped={2: "slow"})
        for t in range(1, ROUNDS + 1)
    ]


@pytest.mark.parametrize("keeps_mean", [False, True])
def test_the_loop_puts_predictions_beside_measurements(keeps_mean: bool) -> None:
    """Cuts move, and devices leave. The slowest parties take what the record's phases say.

    Sub-models come down in the round after an aggregation.
    """
    records = list(
        training(
            cuts=lambda k: MOVING[k % 4],
            present=there,
            goal=Goal(rounds=ROUNDS),
            keeps_mean=keeps_mean,
            measurements=measurements(),
        ).rounds()
    )
    for t, kept in enumerate(records, start=1):
        assert kept.measured is not None
        assert kept.measured.seconds == 0.5 * t
        assert kept.measured.clock == pytest.approx(0.25 * t * (t + 1))
        assert (kept.measured.dropped, kept.measured.measured) == ({2: "slow"}, {"device_forward": {0: t}})
        predicted = kept.measured.predicted
        assert set(predicted["device_forward"]) == set(kept.devices.tolist())
        forward = kept.plan.batch_sizes * small_profile().forward_flops_upto[kept.plan.cuts - 1]
        own = forward / small_fleet().flops[kept.devices]
        assert list(predicted["device_forward"].values()) == pytest.approx(own.tolist())
        assert ("submodel_upload" in predicted) == (t % 2 == 0)
        assert ("submodel_download" in predicted) == (t % 2 == 1 and t > 1)
        if t % 2 == 0:
            assert max(predicted["submodel_upload"].values()) == kept.phases["submodel_upload"]
        elif t > 1:
            took = records[t - 2].phases["submodel_download"]
            assert max(predicted["submodel_download"].values()) == took


def test_the_wall_clock_goes_on_where_a_training_is_resumed() -> None:
    whole = list(training(measurements=measurements(), goal=Goal(rounds=4)).rounds())
    first = training(measurements=measurements(), goal=Goal(rounds=2))
    before = list(first.rounds())
    later = training(measurements=measurements()[2:], goal=Goal(rounds=4))
    later.progress = first.progress
    assert later.progress is not None
    later.progress.last = RoundRecord.from_json(before[-1].as_json())
    after = list(later.rounds())
    assert [kept.measured.clock for kept in after if kept.measured] == [
        kept.measured.clock for kept in whole[2:] if kept.measured
    ]
