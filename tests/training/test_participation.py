"""A share of the devices in each interval: who it is, what the others do, and what it costs in rounds."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasfl.constants import Conditions, possible
from hasfl.errors import InputError
from hasfl.fleet import FleetRanges, draw_fleet
from hasfl.record import RoundRecord
from hasfl.seeds import Seeds
from hasfl.world import AlwaysThere, RandomDropout, World
from tests.lanes import quick_then_slow
from tests.learning.oracles import fed_avg, orders_of
from tests.learning.simulations import DEVICES, INTERVAL, changing_world, run, simulation, unequal_fleet
from tests.training.test_centralised import SAMPLE_BITS

FLEET = draw_fleet(FleetRanges(devices=9), Seeds(1))


def world(share: float, absences: Any = None, *, interval: int = 4, seed: int = 0) -> World:
    return World(
        fleet=FLEET,
        seeds=Seeds(seed),
        interval=interval,
        absences=absences or AlwaysThere(),
        participation=share,
    )


@given(st.floats(0.01, 1), st.integers(0, 50), st.integers(1, 6), st.floats(0, 0.6), st.integers(0, 20))
def test_a_share_of_those_who_are_there(share: float, seed: int, interval: int, leave: float, k: int) -> None:
    """As many as the share says when an interval begins; they may leave, but nobody joins or is missing."""
    dropout = RandomDropout(leave, 0.3)
    sampling, there = (world(each, dropout, interval=interval, seed=seed) for each in (share, 1.0))
    rounds = range(k * interval + 1, (k + 1) * interval + 1)
    taking_part = [set(sampling.present(t).tolist()) for t in rounds]
    present = [set(there.present(t).tolist()) for t in rounds]
    assert len(taking_part[0]) == max(int(share * len(present[0]) + 0.5), 1)
    assert all(taking_part)
    for now, everyone in zip(taking_part, present, strict=True):
        assert now == taking_part[0] & everyone
    assert taking_part == [
        set(world(share, dropout, interval=interval, seed=seed).present(t)) for t in rounds
    ]


def test_everybody_takes_part_as_often_as_the_others() -> None:
    intervals = 600
    sampled = [world(0.34).present(4 * k + 1) for k in range(intervals)]
    assert {len(each) for each in sampled} == {3}
    often = np.bincount(np.concatenate(sampled), minlength=len(FLEET)) / intervals
    error = np.sqrt(1 / 3 * 2 / 3 / intervals)
    assert np.abs(often - 1 / 3).max() < 4.5 * error
    assert len({tuple(each) for each in sampled}) > 50


def test_the_share_is_checked_and_belongs_to_the_settings() -> None:
    with pytest.raises(InputError, match="participation must be above 0 and at most 1, which means all"):
        world(1.5)
    with pytest.raises(InputError, match=r"the world has participation 0\.5, the training 0\.25: make them"):
        simulation("sfl", World(fleet=FLEET, seeds=Seeds(0), interval=INTERVAL, participation=0.5),
                   participation=0.25)  # fmt: skip


def who(records: list[RoundRecord]) -> list[list[int]]:
    return [record.devices.tolist() for record in records]


def test_every_strategy_has_the_same_devices() -> None:
    """In turns, one of them. Where samples are collected, all that took part so far."""
    taken = {name: who(run(name, unequal_fleet(), participation=0.5)) for name in ("hasfl", "fl", "sl", "cl")}
    assert taken["hasfl"] == taken["fl"]
    assert {len(devices) for devices in taken["fl"]} == {2}
    assert len({tuple(devices) for devices in taken["fl"]}) > 1
    so_far: set[int] = set()
    for t, devices in enumerate(taken["fl"]):
        so_far |= set(devices)
        assert taken["fl"][t] == taken["fl"][t - t % INTERVAL]
        assert taken["sl"][t][0] in devices
        assert len(taken["sl"][t]) == 1
        assert set(taken["cl"][t]) == so_far


def test_samples_are_collected_once_from_every_device_that_takes_part() -> None:
    made = simulation("cl", unequal_fleet(), participation=0.5)
    records, sizes = list(made), made.engine.job.data.sizes
    seen: set[int] = set()
    for record in records:
        new = sorted(set(record.devices.tolist()) - seen)
        assert record.bits.get("data_upload", 0) == sizes[new].sum() * SAMPLE_BITS
        seen |= set(new)
    assert len(seen) > 2


@pytest.mark.parametrize("engine", ["simulated", "reference"])
def test_it_is_federated_averaging_over_the_devices_that_take_part(engine: str) -> None:
    made = simulation("fl", unequal_fleet(), participation=0.5, engine=engine, serve="last")
    records = list(made)
    expected = fed_avg(made.engine.job, orders_of(records, DEVICES), INTERVAL)
    found = made.engine.state.mean()
    for state, name in zip(found, made.engine.state.names, strict=True):
        for key, weight in state.weights.items():
            torch.testing.assert_close(weight, expected[f"{name}.{key}"], rtol=1e-12, atol=1e-12)


def test_who_is_not_sampled_holds_no_layers_uses_no_samples_and_sends_nothing() -> None:
    made, whole = (simulation("sfl", unequal_fleet(), participation=share) for share in (0.5, 1.0))
    drawn = np.zeros(DEVICES, dtype=int)
    for record in made:
        drawn[record.devices] += record.plan.batch_sizes
        assert made.engine.state.devices.tolist() == record.devices.tolist()
        assert all(len(tensor) == 2 for layer in made.engine.state.private for tensor in layer.tensors())
    assert made.training.progress is not None
    assert made.training.progress.drawn.tolist() == drawn.tolist()
    half, full = ([sum(record.bits.values()) for record in run("sfl", unequal_fleet(), participation=share)]
                  for share in (0.5, 1.0))  # fmt: skip
    assert half == pytest.approx([each / 2 for each in full])  # all devices have the same cut and batch
    assert whole.training.observer.participants(1).tolist() == list(range(DEVICES))


@pytest.mark.parametrize("strategy", quick_then_slow(["rbs+rms", "hasfl", "fl", "sl", "cl"]))
def test_engines_agree(strategy: str) -> None:
    """In a world in which devices also leave and come back, with every other knob."""
    knobs = {"participation": 0.6, "clip": 0.5, "weight_decay": 0.01, "schedule": "cosine", "warm_up": 2}
    one, other = (
        run(strategy, changing_world(), engine=engine, optimizer="nesterov", **knobs)
        for engine in ("simulated", "reference")
    )
    assert who(one) == who(other)
    assert [record.loss for record in one] == pytest.approx([record.loss for record in other], rel=1e-10)


def test_plans_are_for_the_rate_and_the_devices_of_the_round() -> None:
    """Noise and drift are those of the conditions; all rounds of an interval have the rate of its first."""
    made = simulation("hasfl", unequal_fleet(), schedule="step", step_every=4, step_factor=0.5, rounds=12)
    observer = made.training.observer
    whole = observer.problem(1, np.arange(DEVICES))
    for t, devices, rate in [(1, 4, 0.05), (3, 2, 0.05), (4, 4, 0.05), (7, 3, 0.025), (10, 1, 0.0125)]:
        problem = observer.problem(t, np.arange(devices))
        assert problem.learning_rate == pytest.approx(rate, rel=0.05)
        now = Conditions(problem.learning_rate, devices, problem.interval)
        known = Conditions(0.05, DEVICES, problem.interval)
        for (_, mine), (_, first) in zip(possible(problem.constants), possible(whole.constants), strict=True):
            assert mine.noise == pytest.approx(first.noise * now.noise_over(known))
            np.testing.assert_allclose(mine.drift_upto, first.drift_upto * now.drift_over(known))
            assert mine.skew_upto.any() == (devices > 1)
        assert observer.problem(t, np.arange(devices)) is problem
    assert observer.problem(2, np.arange(3)) is observer.problem(3, np.arange(3))
