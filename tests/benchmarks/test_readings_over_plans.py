"""`benchmarks.readings_over_plans`: readings come in given rounds, and are averaged rightly."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.readings_over_plans import Seen, Work, drift_of, report, take, take_all


@pytest.fixture(scope="module")
def rows() -> list[dict[str, object]]:
    return take(Work("digits-iid", 0, 2, 2, (15, 30), "digits"))


def test_readings_are_taken_in_the_rounds_that_were_asked_for(rows: list[dict[str, object]]) -> None:
    assert [row["round"] for row in rows] == [15, 30]
    assert all((row["seed"], row["b"], row["cut"]) == (0, 2, 2) for row in rows)


def test_the_report_needs_only_the_stored_readings(tmp_path: Path) -> None:
    assert report(tmp_path, "digits-iid")[-2] == "No readings are stored."
    take_all([Work("digits-iid", 0, 2, 1, (15,), "digits")], tmp_path, processes=1, limit=100)
    lines = report(tmp_path, "digits-iid")
    assert any(line.startswith("| 1 | 2 |") for line in lines)
    assert any(line.startswith("**The grid** to 95 %: noise") for line in lines)


@given(st.lists(st.tuples(st.floats(0.1, 50), st.floats(0.05, 2)), min_size=1, max_size=5))
def test_readings_are_averaged_as_independent_numbers(pairs: list[tuple[float, float]]) -> None:
    """The weighted mean and its error, by the textbook's loop."""
    total = sum(1 / error**2 for _, error in pairs)
    log = sum(math.log(value) / error**2 for value, error in pairs) / total
    seen = Seen.of([*pairs, (None, None)])
    assert (seen.log, seen.error) == pytest.approx((log, total**-0.5), abs=1e-9)
    assert not Seen.of([(None, None)]).known


def test_drift_of_private_layers_is_divided_by_their_share() -> None:
    row = {"cut": 2, "read_drift": 3.0, "read_drift_error": 0.2}
    seen = drift_of([row], 0.25)
    assert math.exp(seen.log) == pytest.approx(3.0 / 0.25)
    assert seen.close_to(Seen(math.log(12 * 1.99), 0.0))
    assert not seen.close_to(Seen(math.log(12 * 2.01), 0.0))
    assert seen.close_to(Seen(math.log(12 * 2.01), 0.1))  # give or take the other's error
    assert np.isinf(drift_of([row | {"read_drift": None}], 0.25).error)
    assert not seen.close_to(Seen(math.log(12 * 2.01), 0.1), strict=True)
