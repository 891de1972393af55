"""How a fleet changes: laws of the walk, the trace and the absences, and independence of who asks when."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.errors import InputError
from hasfl.fleet import PER_DEVICE, PER_SERVER, Fleet, FleetRanges, draw_fleet
from hasfl.seeds import Seeds
from hasfl.world import (
    AlwaysThere,
    Change,
    Fixed,
    RandomDropout,
    RandomWalk,
    Redrawn,
    Schedule,
    Trace,
    World,
)

RANGES = FleetRanges(devices=4)
FLEET = draw_fleet(RANGES, Seeds(3))
VARYING = [field for field in PER_DEVICE if field != "memory"]
KINDS = (Fixed(), Redrawn(RANGES), RandomWalk(0.3, 2.0), Trace((Change(9, 1, "up_rate", 5e6),)))


def world(rates: object = None, absences: object = None, *, interval: int = 5, seed: int = 0) -> World:
    chosen = {"rates": rates or Fixed(), "absences": absences or AlwaysThere()}
    return World(fleet=FLEET, seeds=Seeds(seed), interval=interval, **chosen)


def numbers(fleet: Fleet) -> list[float]:
    columns = [getattr(fleet, field) for field in PER_DEVICE]
    return [*np.concatenate(columns).tolist(), *(getattr(fleet, field) for field in PER_SERVER)]


@pytest.mark.parametrize("rates", KINDS)
def test_a_fleet_is_one_object_throughout_an_interval(rates: object) -> None:
    changing = world(rates)
    assert all(changing.fleet_at(t) is changing.fleet_at(6) for t in (7, 8, 9, 10))
    assert numbers(changing.fleet_at(5)) == numbers(FLEET)


@pytest.mark.parametrize("rates", KINDS)
@given(rounds=st.lists(st.integers(1, 200), min_size=1))
def test_rates_do_not_depend_on_the_order_of_asking(rates: object, rounds: list[int]) -> None:
    asked, fresh = world(rates), world(rates)
    told = [numbers(asked.fleet_at(t)) for t in rounds]
    assert told[::-1] == [numbers(fresh.fleet_at(t)) for t in reversed(rounds)]


@pytest.mark.parametrize("rates", [Redrawn(RANGES), RandomWalk(0.3, 2.0)])
def test_everything_but_memory_and_names_varies(rates: object) -> None:
    before, after = world(rates).fleet_at(6), world(rates).fleet_at(11)
    assert all((getattr(before, field) != getattr(after, field)).all() for field in VARYING)
    assert before.server_fed_up_rate != after.server_fed_up_rate
    assert before.server_fed_down_rate != after.server_fed_down_rate
    assert np.array_equal(after.memory, FLEET.memory)
    assert after.names == FLEET.names
    assert numbers(world(rates, seed=1).fleet_at(6)) != numbers(before)


@given(st.integers(6, 5000))
def test_redrawn_rates_stay_in_their_ranges(t: int) -> None:
    drawn = world(Redrawn(RANGES)).fleet_at(t)
    for field in (*VARYING, *PER_SERVER):
        low, high = getattr(RANGES, field)
        assert (np.asarray(getattr(drawn, field)) >= low).all()
        assert (np.asarray(getattr(drawn, field)) <= high).all()


@given(st.integers(1, 2000), st.just(0.0) | st.floats(1e-6, 5), st.floats(1.01, 20))
def test_a_walk_stays_within_its_bounds(t: int, step: float, bound: float) -> None:
    walked = world(RandomWalk(step, bound)).fleet_at(t)
    for field in (*VARYING, *PER_SERVER):
        value, first = np.asarray(getattr(walked, field)), np.asarray(getattr(FLEET, field))
        assert (value <= first * bound).all()
        assert (value >= first * (1 / bound)).all()


def test_a_walk_far_from_its_bounds_takes_normal_steps() -> None:
    large = draw_fleet(FleetRanges(devices=4000), Seeds(0))
    walking = World(fleet=large, seeds=Seeds(0), interval=1, rates=RandomWalk(0.01, 1e6))
    steps = np.log(walking.fleet_at(31).flops / walking.fleet_at(30).flops) / 0.01
    assert abs(steps.mean()) < 5 / np.sqrt(4000)
    assert abs(steps.std() - 1) < 5 / np.sqrt(2 * 4000)
    whole_way = np.log(walking.fleet_at(31).flops / large.flops) / 0.01
    assert abs(whole_way.std() / np.sqrt(30) - 1) < 5 / np.sqrt(2 * 4000)


def test_a_walk_takes_one_step_from_each_interval_to_the_next() -> None:
    walking, walked = world(RandomWalk(0.01, 1e6)), np.zeros(4)
    for k in range(1, 70):
        walked += Seeds(0).stream("walk.down_rate", k).standard_normal(4)
        factor = walking.fleet_at(5 * k + 1).down_rate / FLEET.down_rate
        assert np.log(factor) == pytest.approx(0.01 * walked, rel=1e-9, abs=1e-12)


def test_a_walk_is_turned_back_and_not_stopped_at_its_bound() -> None:
    walking = world(RandomWalk(0.3, 1.5), interval=1)
    path = np.log([walking.fleet_at(t).up_rate[0] / FLEET.up_rate[0] for t in range(1, 2001)])
    assert (np.abs(path) == np.log(1.5)).mean() < 0.01
    quarters, _ = np.histogram(path, bins=4, range=(-np.log(1.5), np.log(1.5)))
    assert quarters.min() > 300  # its law is uniform in the end


def test_a_walk_of_fewer_devices_is_part_of_the_larger_one() -> None:
    fewer = World(fleet=FLEET.only(np.arange(2)), seeds=Seeds(0), interval=5, rates=RandomWalk(0.3, 2.0))
    assert fewer.fleet_at(50).flops.tolist() == world(RandomWalk(0.3, 2.0)).fleet_at(50).flops[:2].tolist()


@pytest.mark.parametrize(("step", "bound"), [(-0.1, 2), (np.nan, 2), (0.1, 1), (0.1, 0.5), (0.1, np.inf)])
def test_walks_that_make_no_sense(step: float, bound: float) -> None:
    with pytest.raises(InputError, match="of a random walk must be"):
        RandomWalk(step, bound)


def test_a_trace_takes_effect_when_the_next_interval_begins() -> None:
    trace = Trace(
        (
            Change(6, 0, "flops", 1.0),
            Change(7, 1, "flops", 2.0),
            Change(1, 2, "up_rate", 3.0),
            (12, 0, "flops", 4.0),
        )
    )
    changing = world(trace)
    assert changing.fleet_at(1).up_rate[2] == 3.0
    assert [changing.fleet_at(t).flops[0] for t in (5, 6, 15, 16)] == [FLEET.flops[0], 1.0, 1.0, 4.0]
    assert [changing.fleet_at(t).flops[1] for t in (7, 10, 11)] == [FLEET.flops[1], FLEET.flops[1], 2.0]
    assert changing.fleet_at(100).flops[3] == FLEET.flops[3]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ((0, 0, "flops", 1.0), "round of a trace must be a whole number"),
        ((1, 0, "memory", 1.0), "a trace can change flops, up_rate, .* got 'memory'"),
        ((1, 0, "flops", 0.0), "flops of a trace must be a finite number above 0"),
        ((1, 4, "flops", 1.0), "changes device 4, but the fleet has 4 devices, counted from 0"),
        ((99, -1, "flops", 1.0), "changes device -1"),
    ],
)
def test_traces_that_make_no_sense(row: tuple[int, int, str, float], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        world(Trace((Change(*row),))).fleet_at(1)


def test_everyone_is_there_unless_told_otherwise() -> None:
    assert world().present(77).tolist() == [0, 1, 2, 3]
    assert world().fleet_at(77) is FLEET


def test_who_comes_back_waits_for_the_next_interval() -> None:
    absent = world(absences=Schedule(((1, 3, 3), (2, 5, 7), (0, 20, 20))))
    told = {t: absent.present(t).tolist() for t in (1, 2, 3, 4, 5, 6, 8, 10, 11, 19, 20, 21)}
    assert told[1] == told[2] == [0, 1, 2, 3]
    assert told[3] == told[4] == [0, 2, 3]  # 1 was away in round 3 alone, but the interval ends with 5
    assert told[5] == [0, 3]
    assert told[6] == told[8] == told[10] == [0, 1, 3]  # 2 was away when rounds 6 to 10 began
    assert told[11] == told[19] == told[21] == [0, 1, 2, 3]
    assert told[20] == [1, 2, 3]


def test_who_took_part_so_far() -> None:
    absent = world(absences=Schedule(((1, 3, 3), (2, 1, 7), (0, 6, 100))))
    told = {t: absent.present_so_far(t).tolist() for t in (1, 3, 5, 6, 10, 11, 12, 50)}
    assert told[1] == told[3] == told[5] == [0, 1, 3]  # 1 leaves and 0 will, but they were there
    assert told[6] == told[10] == [0, 1, 3]  # 2 is back in round 8, and takes part from round 11 on
    assert told[11] == told[12] == told[50] == [0, 1, 2, 3]


@given(st.integers(0, 50), st.floats(0, 1), st.floats(0, 1), st.integers(1, 7), st.integers(1, 60))
def test_who_took_part_so_far_is_all_who_did(
    seed: int, leave: float, come_back: float, interval: int, t: int
) -> None:
    dropping = world(absences=RandomDropout(leave, come_back), interval=interval, seed=seed)
    before = {i for earlier in range(1, t + 1) for i in dropping.present(earlier).tolist()}
    assert dropping.present_so_far(t).tolist() == sorted(before)


def test_a_schedule_without_anybody_is_told_when_it_comes_to_that() -> None:
    empty = world(absences=Schedule(((0, 2, 2), (1, 2, 3), (2, 2, 3), (3, 4, 4))))
    assert empty.present(3).tolist() == [3]
    with pytest.raises(InputError, match="leaves no device in round 4"):
        empty.present(4)
    assert empty.present(6).tolist() == [0, 1, 2, 3]


def test_schedules_that_make_no_sense() -> None:
    with pytest.raises(InputError, match="device 1 cannot be away from round 5 to round 4"):
        Schedule(((1, 5, 4),))
    with pytest.raises(InputError, match="first round of an absence"):
        Schedule(((1, 0, 4),))
    with pytest.raises(InputError, match="names device 4, but the fleet has 4 devices, counted from 0"):
        world(absences=Schedule(((4, 1, 1),))).present(1)


@given(st.integers(0, 50), st.floats(0, 1), st.floats(0, 1), st.integers(1, 7))
def test_dropout_keeps_the_rules(seed: int, leave: float, come_back: float, interval: int) -> None:
    dropping = world(absences=RandomDropout(leave, come_back), interval=interval, seed=seed)
    present = [set(dropping.present(t).tolist()) for t in range(1, 60)]
    assert present[0] == {0, 1, 2, 3}
    assert all(present)
    for t in range(2, 60):
        if (t - 1) % interval:
            assert present[t - 1] <= present[t - 2], "nobody joins within an interval"


@given(st.lists(st.integers(1, 300), min_size=1), st.integers(0, 5))
def test_dropout_does_not_depend_on_the_order_of_asking(rounds: list[int], seed: int) -> None:
    dropping = world(absences=RandomDropout(0.1, 0.3), seed=seed)
    told = [dropping.present(t).tolist() for t in rounds]
    assert told[::-1] == [dropping.present(t).tolist() for t in reversed(rounds)]
    assert all(found == sorted(found) for found in told)


@pytest.mark.parametrize(("leave", "come_back", "interval"), [(0.15, 0.4, 3), (0.7, 0.3, 4), (0.9, 0.5, 2)])
def test_dropout_is_the_chain_that_the_draws_say(leave: float, come_back: float, interval: int) -> None:
    seeds = Seeds(11)
    dropping = World(fleet=FLEET, seeds=seeds, interval=interval, absences=RandomDropout(leave, come_back))
    there = taking_part = {0, 1, 2, 3}
    for t in range(2, 200):
        draws = [seeds.stream("dropout", t).random(device + 1)[device] for device in range(4)]
        there = {i for i in range(4) if (draws[i] >= leave if i in there else draws[i] < come_back)}
        left = there if t % interval == 1 else there & taking_part
        if not left:
            left = {max(taking_part, key=lambda i: draws[i])}
            there |= left
        taking_part = left
        assert set(dropping.present(t).tolist()) == taking_part, t


def test_the_last_one_stays() -> None:
    seeds = Seeds(2)
    dropping = World(fleet=FLEET, seeds=seeds, interval=4, absences=RandomDropout(1.0, 0.0))
    luckiest = int(seeds.stream("dropout", 2).random(4).argmax())
    assert [dropping.present(t).tolist() for t in (1, 2, 3, 4, 5, 50)] == [[0, 1, 2, 3], *[[luckiest]] * 5]


def test_dropout_leaves_and_comes_back_as_often_as_told() -> None:
    many = draw_fleet(FleetRanges(devices=2000), Seeds(0))
    dropping = World(fleet=many, seeds=Seeds(0), interval=1, absences=RandomDropout(0.1, 0.3))
    share = np.mean([len(dropping.present(t)) for t in range(40, 60)]) / 2000
    assert share == pytest.approx(0.3 / 0.4, abs=0.02)


@pytest.mark.parametrize("chance", [-0.1, 1.1, np.nan])
def test_chances_that_make_no_sense(chance: float) -> None:
    with pytest.raises(InputError, match="come_back must be a probability from 0 to 1"):
        RandomDropout(0.1, chance)


@pytest.mark.parametrize("t", [0, -1, 1.5, True])
def test_rounds_begin_with_one(t: object) -> None:
    with pytest.raises(InputError, match="round must be a whole number from 1"):
        world().fleet_at(t)
    with pytest.raises(InputError, match="round must be a whole number from 1"):
        world().present(t)
    with pytest.raises(InputError, match="interval must be a whole number"):
        world(interval=0)
