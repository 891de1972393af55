"""Centralised training: samples are collected once, when their device is there, and used from then on."""

import numpy as np
import pytest

from hasfl.record import RoundRecord
from tests.learning.simulations import DEVICES, INTERVAL, images, run, simulation, world_without

SAMPLE_BITS = 8 * 64  # a byte for each of 64 pixels
EVERYONE = list(range(DEVICES))
AWAY_LATER = ((1, INTERVAL + 1, 3 * INTERVAL),)
AWAY_AT_ONCE = ((2, 2, 2), (1, INTERVAL + 2, 2 * INTERVAL))  # within an interval
AWAY_AT_FIRST = ((0, 1, INTERVAL), (1, INTERVAL + 1, 3 * INTERVAL))


def collected(records: list[RoundRecord]) -> dict[int, float]:
    """Bits of raw samples, by the round in which they were sent."""
    return {record.round: bits for record in records if (bits := record.bits.get("data_upload", 0))}


@pytest.mark.parametrize("engine", ["simulated", "reference"])
@pytest.mark.parametrize("absences", [AWAY_LATER, AWAY_AT_ONCE], ids=["for intervals", "within an interval"])
def test_who_leaves_later_makes_no_difference(
    absences: tuple[tuple[int, int, int], ...], engine: str
) -> None:
    """Its samples are at the server by then: they are used as before, and not sent again."""
    made = simulation("cl", world_without(*absences), rounds=4 * INTERVAL, engine=engine)
    records = list(made)
    assert all(record.devices.tolist() == EVERYONE for record in records)
    assert collected(records) == {1: made.engine.job.data.sizes.sum() * SAMPLE_BITS}
    whole = run("cl", world_without(), rounds=4 * INTERVAL, engine=engine)
    assert [record.as_json() for record in records] == [record.as_json() for record in whole]


def test_who_comes_later_is_used_from_then_on() -> None:
    """Device 0 is away at first; device 1, later."""
    made = simulation("cl", world_without(*AWAY_AT_FIRST), rounds=4 * INTERVAL)
    records, sizes = list(made), made.engine.job.data.sizes
    before, after = records[:INTERVAL], records[INTERVAL:]
    assert all(record.devices.tolist() == EVERYONE[1:] for record in before)
    assert all(record.devices.tolist() == EVERYONE for record in after)
    assert collected(records) == {1: sizes[1:].sum() * SAMPLE_BITS, INTERVAL + 1: sizes[0] * SAMPLE_BITS}
    drawn = np.zeros(DEVICES, dtype=int)
    for record in records:
        drawn[record.devices] += record.plan.batch_sizes
    assert made.training.progress is not None
    assert made.training.progress.drawn.tolist() == drawn.tolist()
    assert drawn[0] > 0


@pytest.mark.parametrize(("first_absence", "differs"), [(1, False), (2, True), (INTERVAL + 1, True)])
def test_samples_matter_from_the_round_on_in_which_they_are_collected(
    first_absence: int, differs: bool
) -> None:
    shares = np.array_split(np.arange(len(images().y_train)), DEVICES)
    other = images()
    other.x_train[shares[0]] *= -1
    usual, changed = (
        run("cl", world_without((0, first_absence, 99)), data=data, shares=shares, rounds=2 * INTERVAL)
        for data in (images(), other)
    )
    losses = [[record.loss for record in records] for records in (usual, changed)]
    assert (losses[0] != losses[1]) is differs
    assert (losses[0][0] != losses[1][0]) is differs


@pytest.mark.parametrize("strategy", ["fl", "sfl"])
def test_other_strategies_use_no_samples_of_absent_devices(strategy: str) -> None:
    records = run(strategy, world_without(*AWAY_LATER), rounds=4 * INTERVAL)
    away = [record.round for record in records if 1 not in record.devices]
    assert away == list(range(INTERVAL + 1, 3 * INTERVAL + 1))
    assert collected(records) == {}
