"""Virtual time and traffic: what the planner predicts is what the loop counts and what one adds up."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from hasfl.arrays import IntN
from hasfl.constants import BoundConstants
from hasfl.fleet import Fleet
from hasfl.goal import Goal
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.record import RoundRecord
from hasfl.runs.build import Simulation
from hasfl.theory.latency import Arrangement
from hasfl.theory.objective import evaluate
from hasfl.theory.paradigms import CENTRALISED, FEDERATED, SEQUENTIAL, SPLIT
from hasfl.training.clock import ModelledClock
from tests.generators import settings as problems
from tests.learning.simulations import (
    INTERVAL,
    changing_world,
    run,
    simulation,
    unequal_fleet,
)
from tests.training.fakes import SAMPLE_BITS, small_fleet, small_profile, training

# Sums of a few positive numbers in float64, in another order.
TOLERANCE = 1e-12
CONSTANTS = BoundConstants(smoothness=1.0, initial_gap=1.0, variance_of=[1.0] * 4, moment_of=[1e-3] * 4)


@given(problems())
def test_what_is_predicted_for_a_round_is_what_an_interval_takes(given_problem: tuple[Problem, Plan]) -> None:
    problem, plan = given_problem
    clock = ModelledClock(profile=problem.profile, paradigm=SPLIT, sample_bits=8.0)
    now = Arrangement.of(plan, problem.fleet)
    interval = problem.interval * clock.round(now).seconds + clock.aggregation(now, now).seconds
    predicted = problem.interval * evaluate(plan, problem).round_seconds
    assert interval == pytest.approx(predicted, rel=TOLERANCE)


@pytest.mark.parametrize("strategy", ["hasfl", "b=4+cut=2", "fixed:b=5,cut=3", "sfl"])
def test_the_loop_takes_as_long_as_predicted(strategy: str) -> None:
    made = simulation(strategy, unequal_fleet(), rounds=3 * INTERVAL, known_constants=CONSTANTS, target=1.0)
    records = list(made.training.rounds())
    assert len({record.plan for record in records}) == 1
    assert predicted(made, records[0]) * len(records) == pytest.approx(records[-1].clock, rel=TOLERANCE)


def predicted(made: Simulation, record: RoundRecord) -> float:
    problem = made.training.observer.problem(1, record.devices)
    return evaluate(record.plan, problem).round_seconds


@pytest.mark.parametrize("strategy", ["hasfl", "rbs+rms", "fl", "sl", "cl"])
def test_steps_add_up(strategy: str) -> None:
    clock, samples = 0.0, 0
    for record in run(strategy):
        clock, samples = clock + record.seconds, samples + int(record.plan.batch_sizes.sum())
        assert record.seconds == pytest.approx(sum(record.phases.values()), rel=TOLERANCE)
        assert record.clock == pytest.approx(clock, rel=TOLERANCE)
        assert record.samples == samples
        assert min(record.phases.values()) >= 0
        assert ("submodel_upload" in record.phases) == (record.aggregated and strategy != "cl")


def naive_round(plan: Plan, fleet: Fleet, profile: Profile) -> tuple[float, float, float]:
    """T_S, and the bits of activations and gradients, device by device and layer by layer."""
    up, server, down, sent, received = [], 0.0, [], 0.0, 0.0
    for i in range(len(plan)):
        b, c = int(plan.batch_sizes[i]), int(plan.cuts[i])
        forward = np.diff(profile.forward_flops_upto, prepend=0.0)
        backward = np.diff(profile.backward_flops_upto, prepend=0.0)
        sent += b * profile.activation_bits_at[c - 1]
        received += b * profile.gradient_bits_at[c - 1]
        up.append(
            b * forward[:c].sum() / fleet.flops[i] + b * profile.activation_bits_at[c - 1] / fleet.up_rate[i]
        )
        server += b * (forward[c:].sum() + backward[c:].sum()) / fleet.server_flops
        down.append(
            b * backward[:c].sum() / fleet.flops[i] + b * profile.gradient_bits_at[c - 1] / fleet.down_rate[i]
        )
    return max(up) + server + max(down), sent, received


def naive_aggregation(
    before: tuple[list[int], int], after: tuple[list[int], int], profile: Profile, *, keeps_mean: bool
) -> dict[str, float]:
    """What each arrow carries, replica by replica and layer by layer, for cuts and depths."""
    size = np.diff(profile.submodel_bits_upto, prepend=0.0)
    moving = size + np.diff(profile.param_bits_upto, prepend=0.0) * keeps_mean
    (cuts, depth), (next_cuts, next_depth) = before, after
    return {
        "submodel_upload": sum(size[j] for c in cuts for j in range(c)),
        "submodel_download": sum(size[j] for c in next_cuts for j in range(c)),
        # Middle parts, one for each device; and once, what was common and will be private, and its mean.
        "server_submodel_upload": sum(size[j] for c in cuts for j in range(c, depth))
        + sum(moving[j] for j in range(depth, next_depth)),
        # Middle parts as they will be; and once, what was private and will be common, and its mean.
        "server_submodel_download": sum(size[j] for c in next_cuts for j in range(c, next_depth))
        + sum(moving[j] for j in range(next_depth, depth)),
    }


MOVING = [[1, 2, 1], [3, 1, 2], [2, 2, 2], [1, 1, 1], [3, 3, 3], [1, 3, 1]]


def away(t: int) -> list[int]:
    """Device 1, who at times has the deepest cut, leaves within intervals; device 2 is away for one."""
    return {2: [0, 2], 4: [2], 5: [0, 1], 6: [0, 1], 10: [0, 2]}.get(t, [0, 1, 2])


@pytest.mark.parametrize("keeps_mean", [False, True])
@pytest.mark.parametrize("present", [lambda t: [0, 1, 2], away], ids=["all there", "some away"])
def test_bits_and_seconds_when_cuts_move_and_devices_leave(present: object, keeps_mean: bool) -> None:
    profile, fleet = small_profile(), small_fleet()
    made = training(
        interval=2,
        goal=Goal(rounds=14),
        cuts=lambda k: MOVING[k % 6],
        batches=lambda t: [1 + t % 3, 2, 4],
        present=present,
        keeps_mean=keeps_mean,
    )
    records = list(made.rounds())
    for t, record in enumerate(records[:12], start=1):
        own = fleet.only(record.devices)
        seconds, sent, received = naive_round(record.plan, own, profile)
        assert record.bits["activation_upload"] == sent
        assert record.bits["gradient_download"] == received
        if record.aggregated:
            began = records[t - 2]
            after = np.array(present(t + 1))
            next_cuts = np.array(MOVING[t // 2 % 6])[after]
            bits = naive_aggregation(
                (record.plan.cuts.tolist(), int(began.plan.cuts.max())),
                (next_cuts.tolist(), int(next_cuts.max())),
                profile,
                keeps_mean=keeps_mean,
            )
            assert {arrow: record.bits[arrow] for arrow in bits} == bits
            seconds += slowest_exchange(record, own, fleet.only(after), next_cuts, bits)
        assert record.seconds == pytest.approx(seconds, rel=TOLERANCE)


def slowest_exchange(
    record: RoundRecord, before: Fleet, after: Fleet, next_cuts: IntN, bits: dict[str, float]
) -> float:
    delta = small_profile().submodel_bits_upto
    up = (delta[record.plan.cuts - 1] / before.fed_up_rate).max()
    down = (delta[next_cuts - 1] / after.fed_down_rate).max()
    return float(
        max(up, bits["server_submodel_upload"] / before.server_fed_up_rate)
        + max(down, bits["server_submodel_download"] / after.server_fed_down_rate)
    )


def test_by_hand() -> None:
    """Layers of 1000, 2000 and 4000 bit; cuts (1, 3) become (2, 1, 1) when the device that left is back."""
    clock = ModelledClock(profile=small_profile(), paradigm=SPLIT, sample_bits=8.0)
    fleet = small_fleet()
    before = Arrangement(Plan([1, 1], [1, 3]), fleet.only(np.array([0, 2])), 3)
    after = Arrangement(Plan([1, 1, 1], [2, 1, 1]), fleet, 2)
    cost = clock.aggregation(before, after)
    assert cost.bits == {
        "submodel_upload": 1000 + 7000,
        "server_submodel_upload": 6000 + 0,  # layers 2 and 3 of device 0
        "submodel_download": 3000 + 1000 + 1000,
        "server_submodel_download": 0 + 2000 + 2000 + 4000,  # layer 2 of two devices; layer 3, once
    }
    assert cost.phases["submodel_upload"] == pytest.approx(max(1000 / 300, 7000 / 326, 6000 / 500))
    assert cost.phases["submodel_download"] == pytest.approx(max(3000 / 400, 1000 / 417, 8000 / 600))


def test_the_running_mean_that_changes_hands_by_hand() -> None:
    """Layer 3 becomes common, then private: 4000 bit of weights once more, not the optimiser's 5000."""
    profile = replace(small_profile(), optimizer_bits_upto=[1000.0, 3000.0, 8000.0])
    clock = ModelledClock(profile=profile, paradigm=SPLIT, sample_bits=8.0, keeps_mean=True)
    fleet = small_fleet()
    deep, shallow = (Arrangement.of(Plan.uniform(3, batch_size=1, cut=cut), fleet) for cut in (3, 2))
    down, up = clock.aggregation(deep, shallow), clock.aggregation(shallow, deep)
    assert (down.bits["server_submodel_upload"], down.bits["server_submodel_download"]) == (0, 13_000)
    assert (up.bits["server_submodel_upload"], up.bits["server_submodel_download"]) == (13_000, 0)
    assert down.phases["submodel_download"] == pytest.approx(max(6000 / 400, 13_000 / 600))
    assert up.phases["submodel_upload"] == pytest.approx(max(6000 / 300, 13_000 / 500))
    assert clock.aggregation(deep, deep) == replace(clock, keeps_mean=False).aggregation(deep, deep)


@pytest.mark.parametrize("keeps_mean", [False, True])
def test_centralised_training_collects_the_data_once(keeps_mean: bool) -> None:
    made = training(paradigm=CENTRALISED, batches=lambda t: [2, 3, 4], keeps_mean=keeps_mean)
    records = list(made.rounds())
    fleet, held = small_fleet(), np.array([20, 30, 40])
    assert records[0].bits["data_upload"] == 90 * SAMPLE_BITS
    assert records[0].phases["data_upload"] == pytest.approx((held * SAMPLE_BITS / fleet.up_rate).max())
    assert all("data_upload" not in record.bits for record in records[1:])
    for record in records:
        assert sum(record.bits.values()) == record.bits.get("data_upload", 0)
        assert record.seconds - record.phases.get("data_upload", 0) == pytest.approx(
            9 * (600 + 1100) / fleet.server_flops
        )


@pytest.mark.parametrize("keeps_mean", [False, True])
def test_federated_training_sends_models_alone(keeps_mean: bool) -> None:
    fleet = small_fleet()
    for record in training(paradigm=FEDERATED, cuts=lambda k: [3, 3, 3], keeps_mean=keeps_mean).rounds():
        alone = max(b * (600 + 1100) / f for b, f in zip([2, 3, 4], fleet.flops, strict=True))
        exchanged = (7000 / fleet.fed_up_rate).max() + (7000 / fleet.fed_down_rate).max()
        assert record.seconds == pytest.approx(alone + exchanged * record.aggregated)
        assert sum(record.bits.values()) == 2 * 3 * 7000 * record.aggregated


@pytest.mark.parametrize("keeps_mean", [False, True])
def test_devices_in_turns_hand_the_client_part_on(keeps_mean: bool) -> None:
    """Up from the one whose turn ends, down to the next; the server exchanges nothing."""
    fleet = small_fleet()
    made = training(
        paradigm=SEQUENTIAL,
        cuts=lambda k: [2, 2, 2],
        present=lambda t: [(t - 1) // 2 % 3],
        interval=2,
        keeps_mean=keeps_mean,
    )
    for record in list(made.rounds())[:-1]:
        (i,) = record.devices
        seconds, sent, received = naive_round(record.plan, fleet.only(record.devices), small_profile())
        if record.aggregated:
            seconds += 3000 / fleet.fed_up_rate[i] + 3000 / fleet.fed_down_rate[(i + 1) % 3]
            assert record.bits["submodel_upload"] == record.bits["submodel_download"] == 3000
            assert record.bits["server_submodel_upload"] == record.bits["server_submodel_download"] == 0
        assert record.seconds == pytest.approx(seconds, rel=TOLERANCE)
        assert (record.bits["activation_upload"], record.bits["gradient_download"]) == (sent, received)


def test_rates_are_those_of_the_round() -> None:
    """Sub-models go up at the rates of the interval that ends, and down at those of the next."""
    world = changing_world()
    made = simulation("sfl", world)
    profile, records = made.training.clock.profile, list(made.training.rounds())
    for record, following in itertools.pairwise(records):
        own = world.fleet_at(record.round).only(record.devices)
        assert record.seconds >= naive_round(record.plan, own, profile)[0] * (1 - TOLERANCE)
        if record.aggregated:
            later = world.fleet_at(following.round).only(following.devices)
            size = profile.submodel_bits_upto[0]
            assert record.phases["submodel_upload"] == pytest.approx((size / own.fed_up_rate).max())
            assert record.phases["submodel_download"] == pytest.approx((size / later.fed_down_rate).max())
