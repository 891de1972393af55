"""Fleets: rows and arrays, Table I, and drawing."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.errors import InputError
from hasfl.fleet import PER_DEVICE, PER_SERVER, Device, Fleet, FleetRanges, draw_fleet
from hasfl.seeds import Seeds
from tests.generators import fleets


@given(st.integers(1, 6).flatmap(fleets))
def test_rows_and_arrays_round_trip(fleet: Fleet) -> None:
    server = {field: getattr(fleet, field) for field in PER_SERVER}
    again = Fleet.of(list(fleet), **server)
    assert again.names == fleet.names
    assert all(np.array_equal(getattr(again, field), getattr(fleet, field)) for field in PER_DEVICE)


@given(st.integers(1, 6).flatmap(fleets), st.data())
def test_only_some_devices_keep_their_rows_and_names_and_the_server(
    fleet: Fleet, data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.sampled_from(range(len(fleet))), min_size=1, unique=True))
    some = fleet.only(np.array(chosen))
    assert list(some) == [fleet[i] for i in chosen]
    assert all(getattr(some, field) == getattr(fleet, field) for field in PER_SERVER)


def test_only_nobody_is_no_fleet() -> None:
    with pytest.raises(InputError, match="at least one number"):
        draw_fleet(FleetRanges(devices=3), Seeds(0)).only(np.array([], dtype=np.int64))


def test_table_1_is_the_default() -> None:
    fleet = draw_fleet(FleetRanges(), Seeds(0))
    assert len(fleet) == 20
    assert fleet.server_flops == 20e12
    for field, low, high in (
        ("flops", 1e12, 2e12),
        ("up_rate", 75e6, 80e6),
        ("fed_up_rate", 75e6, 80e6),
        ("down_rate", 360e6, 380e6),
        ("fed_down_rate", 360e6, 380e6),
    ):
        drawn = getattr(fleet, field)
        assert low <= drawn.min() < drawn.max() <= high
    assert 360e6 <= fleet.server_fed_up_rate != fleet.server_fed_down_rate <= 380e6


def test_a_larger_fleet_begins_with_the_smaller_and_other_ranges_stay() -> None:
    small = draw_fleet(FleetRanges(devices=5), Seeds(7))
    large = draw_fleet(FleetRanges(devices=9, flops=(1.0, 2.0)), Seeds(7))
    assert np.array_equal(large.up_rate[:5], small.up_rate)
    assert not np.array_equal(draw_fleet(FleetRanges(devices=5), Seeds(8)).up_rate, small.up_rate)


def test_arrays_are_frozen() -> None:
    fleet = draw_fleet(FleetRanges(), Seeds(0))
    with pytest.raises(ValueError, match="read-only"):
        fleet.flops[0] = 1.0


def test_a_value_does_not_change_with_the_array_it_was_made_from() -> None:
    flops = np.ones(20)
    fleet = replace(draw_fleet(FleetRanges(), Seeds(0)), flops=flops)
    flops[0] = 5.0
    assert fleet.flops[0] == 1.0


@pytest.mark.parametrize("bad", [0.0, -1.0, 1e-300, 1e300, np.nan, np.inf])
@pytest.mark.parametrize("field", [*PER_DEVICE, *PER_SERVER])
def test_numbers_that_make_no_sense_are_named(field: str, bad: float) -> None:
    fleet = draw_fleet(FleetRanges(devices=3), Seeds(0))
    value = [1.0, 1.0, bad] if field in PER_DEVICE else bad
    where = rf"fleet\.{field}(\[2\])? must be a finite number above 0"
    with pytest.raises(InputError, match=where):
        replace(fleet, **{field: value})


def test_lengths_must_agree() -> None:
    fleet = draw_fleet(FleetRanges(devices=3), Seeds(0))
    with pytest.raises(InputError, match=r"fleet\.memory has 2 entries but fleet\.flops has 3"):
        replace(fleet, memory=np.ones(2))
    with pytest.raises(InputError, match=r"fleet\.names has 1 entries"):
        replace(fleet, names=("a",))


def test_shapes_must_be_lists() -> None:
    fleet = draw_fleet(FleetRanges(devices=1), Seeds(0))
    with pytest.raises(InputError, match=r"fleet\.memory must be a list of at least one number"):
        replace(fleet, memory=np.ones((1, 1)))
    with pytest.raises(InputError, match=r"fleet\.memory must be a list of numbers"):
        replace(fleet, memory=["much"])


def test_other_faults() -> None:
    with pytest.raises(InputError, match="at least one device"):
        Fleet.of([], server_flops=1.0, server_fed_up_rate=1.0, server_fed_down_rate=1.0)
    with pytest.raises(InputError, match="memory of device 'pi' must be a finite number above 0"):
        Device(name="pi", flops=1, up_rate=1, down_rate=1, fed_up_rate=1, fed_down_rate=1, memory=-1)
    with pytest.raises(InputError, match=r"fleet\.flops must run from low to high, got 2 to 1"):
        FleetRanges(flops=(2.0, 1.0))
    with pytest.raises(
        InputError, match=r"fleet\.devices must be a whole number from 1 to 1,000,000,000, got 0"
    ):
        FleetRanges(devices=0)
    with pytest.raises(InputError, match=r"fleet\.devices must be at most 10,000,000, got 100,000,000"):
        FleetRanges(devices=10**8)
    with pytest.raises(InputError, match=r"fleet\.names must differ"):
        replace(draw_fleet(FleetRanges(devices=2), Seeds(0)), names=("a", "a"))
