"""`hasfl plan --interval`: batch sizes, cuts and the interval together."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hasfl.cli.plan_view import LAW_ENDS, LEFT_OUT, UNKNOWN
from hasfl.planning.intervals import LADDER, LONGEST_MEASURED
from tests.cli.conftest import Hasfl
from tests.cli.test_plan import DEMO, EXAMPLE, MEASURED, write
from tests.problems import raw
from tests.runs.scenarios import sentence


def problem(folder: Path, kind: str, **changes: object) -> Path:
    if kind == "measured":
        changes = {"constants": MEASURED, "target": ...} | changes
    return write(folder, raw(**changes))


def printed(hasfl: Hasfl, *arguments: object) -> dict[str, Any]:
    outcome = hasfl("plan", *arguments, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    found: dict[str, Any] = json.loads(outcome.out)
    return found


@pytest.mark.parametrize("kind", ["measured", "paper"])
def test_one_interval_is_that_of_a_file_with_it(hasfl: Hasfl, tmp_path: Path, kind: str) -> None:
    """Measured drift follows the interval; the paper's bound has the interval itself."""
    other: dict[str, Any] = {"interval": 40}
    if kind == "measured":
        drift = [0.05 * (40 / 15) ** 0.4] * 5
        other |= {"constants": MEASURED | {"drift_of": drift}}
    (tmp_path / "other").mkdir()
    expected = printed(hasfl, problem(tmp_path / "other", kind, **other))
    found = printed(hasfl, problem(tmp_path, kind), "--interval", 40)
    assert found["interval"] == 40
    for field in ("objective", "rounds", "round_seconds"):
        assert found[field] == pytest.approx(expected[field], rel=1e-3)
    assert found["aggregation_seconds"] == expected["aggregation_seconds"]


@pytest.mark.parametrize("kind", ["measured", "paper"])
def test_best_is_the_best_of_single_intervals(hasfl: Hasfl, tmp_path: Path, kind: str) -> None:
    path = problem(tmp_path, kind)
    found = printed(hasfl, path, "--interval", "best")
    tried = {each["interval"]: each for each in found["intervals"]}
    assert {15} < set(tried) <= {15, found["longest_interval"], *LADDER}
    assert found["longest_interval"] in ((None,) if kind == "paper" else range(1, LONGEST_MEASURED + 1))
    for interval in (1, 5, 15):
        alone = printed(hasfl, path, "--interval", interval)
        assert alone["objective"] == pytest.approx(tried[interval]["objective"], rel=2e-3)
        assert tried[interval]["gap"] <= 1e-3 * (1 + 1e-9)
    best = tried[found["interval"]]
    assert best["relative_time"] == 1.0
    assert all(each["relative_time"] >= 1 for each in tried.values())
    assert found["objective"] == best["objective"] == min(each["objective"] for each in tried.values())
    assert found["batch_sizes"] == best["batch_sizes"]
    least = found["objective"] * (1 - found["other_intervals_save_at_most"])
    for interval in {4, 10, 22, 33} & set(range(1, (found["longest_interval"] or 33) + 1)):
        assert printed(hasfl, path, "--interval", interval)["objective"] >= least * (1 - 1e-9)


def test_the_table_says_which_is_best_and_what_is_left_out(hasfl: Hasfl, tmp_path: Path) -> None:
    shown = hasfl("plan", problem(tmp_path, "measured"), "--interval", "50,5,15,5").out
    rows = re.findall(r"^ +(\d+) .* %(.*)$", shown.partition("The best plan for each interval")[2], re.M)
    assert [int(interval) for interval, _ in rows] == [5, 15, 50]
    best = [int(interval) for interval, mark in rows if "◀ best" in mark]
    assert len(best) == 1
    assert f"an aggregation every {best[0]} rounds:" in shown
    assert " ".join(LEFT_OUT.split()) in " ".join(shown.split())
    assert LAW_ENDS in " ".join(shown.split())
    assert "No other interval" not in shown
    chosen = ("--interval", "best", "--batch", 8, "--cut", 2)
    whole = hasfl("plan", problem(tmp_path, "measured"), *chosen).out
    assert re.search(r"No other interval up to \d+ saves more than [\d.]+ % of the time", whole)
    assert re.search(r"So intervals above \d+ are not recommended\.", " ".join(whole.split()))
    assert "for each interval" not in hasfl("plan", problem(tmp_path, "measured"), "--interval", "5").out
    assert (
        "infinitely large batches would need count"
        not in hasfl("plan", problem(tmp_path, "paper"), *chosen).out
    )


def test_plans_beyond_the_law_are_marked(hasfl: Hasfl, tmp_path: Path) -> None:
    shown = hasfl("plan", problem(tmp_path, "measured"), "--interval", "1,500").out
    rows = re.findall(r"^ +(\d+) .* %(.*)$", shown.partition("The best plan for each interval")[2], re.M)
    assert [("*" in mark) for _, mark in rows] == [False, True]
    assert "* The law is not known for this plan." in " ".join(shown.split())
    assert "*" not in hasfl("plan", problem(tmp_path, "measured"), "--interval", "1,2").out


def test_one_round_is_no_plural(hasfl: Hasfl, tmp_path: Path) -> None:
    shown = hasfl("plan", problem(tmp_path, "measured"), "--interval", 1).out
    assert "an aggregation every round:" in shown
    assert shown.count("every round ") == 2
    assert "every 1" not in shown


def test_a_loose_bound_is_not_told(hasfl: Hasfl, tmp_path: Path) -> None:
    """Without drift and sampling noise, the paper's theorem asks for ever longer intervals."""
    constants = raw()["constants"] | {"moment_of": [0.0] * 5}
    path = write(tmp_path, raw(constants=constants))
    found = printed(hasfl, path, "--interval", "best", "--cut", 4, "--batch", 1)
    assert found["longest_interval"] is None
    shown = hasfl("plan", path, "--interval", "best", "--cut", 4, "--batch", 1).out
    loose = found["other_intervals_save_at_most"] > 0.2
    assert (UNKNOWN in shown, "No other interval" in shown) == (loose, not loose)
    assert loose


def test_planning_time_is_that_of_all_intervals(hasfl: Hasfl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasfl.planning.intervals._Search.used", property(lambda self: 7.0))
    assert "planned in 7" in hasfl("plan", DEMO, "--interval", "5,15").out
    seconds = printed(hasfl, DEMO, "--interval", "5,15")["seconds"]  # with the best plan for each guess
    assert 7 < seconds < 14  # and 7 once


def test_an_interval_out_of_reach_has_a_row(hasfl: Hasfl, tmp_path: Path) -> None:
    path = problem(tmp_path, "paper")
    assert "no plan reaches the target" in hasfl("plan", path, "--interval", "5,1000").out
    last = printed(hasfl, path, "--interval", "5,1000")["intervals"][-1]
    assert last["interval"] == 1000
    assert "target" in last["trouble"]


def test_guesses_give_relative_times(hasfl: Hasfl) -> None:
    found = printed(hasfl, DEMO, "--interval", "best", "--cut", 2)
    assert found["constants"] == "guessed"
    assert found["interval"] <= LONGEST_MEASURED == found["longest_interval"]
    for each in (found, *found["intervals"]):
        assert not {"objective", "rounds", "lower_bound"} & set(each)
    assert min(each["relative_time"] for each in found["intervals"]) == 1.0
    shown = hasfl("plan", DEMO, "--interval", "1,20", "--cut", 2).out
    assert re.search(r"median +training, compared *\n +interval +batch .*with the best", shown)
    assert "1.000 times as long" in shown


def test_guesses_for_another_interval_are_those_of_a_scenario_with_it(hasfl: Hasfl, tmp_path: Path) -> None:
    """Also from an interval of 1, with which nothing drifts."""
    text = DEMO.read_text()
    interval = re.search(r"^interval = \d+", text, re.M)
    assert interval is not None
    for written in ("1", "7"):
        (tmp_path / f"{written}.toml").write_text(text.replace(interval[0], f"interval = {written}"))
    there = printed(hasfl, tmp_path / "7.toml")
    assert printed(hasfl, tmp_path / "1.toml", "--interval", 7)["cuts"] == there["cuts"]


def test_why_is_for_the_best_interval(hasfl: Hasfl, tmp_path: Path) -> None:
    path, fixed = problem(tmp_path, "measured"), ("--batch", 8, "--cut", 2, "--why")
    found = printed(hasfl, path, "--interval", "best", *fixed)
    assert found["interval"] != 15
    alone = printed(hasfl, path, "--interval", found["interval"], *fixed)
    assert (found["set_by"], found["upgrades"]) == (alone["set_by"], alone["upgrades"])
    assert found["upgrades"] != printed(hasfl, path, *fixed)["upgrades"]


@pytest.mark.slow
def test_sensitivity_is_for_the_best_interval(hasfl: Hasfl, tmp_path: Path) -> None:
    path = problem(tmp_path, "measured")
    found = printed(hasfl, path, "--interval", "2,40", "--sensitivity")
    alone = printed(hasfl, path, "--interval", found["interval"], "--sensitivity")
    predicted, expected = (
        [each["predicted_seconds"] for each in one["sensitivity"]] for one in (found, alone)
    )
    assert predicted == pytest.approx(expected, rel=2e-3)


def test_what_is_fixed_stays_fixed(hasfl: Hasfl, tmp_path: Path) -> None:
    path = problem(tmp_path, "measured")
    found = printed(hasfl, path, "--interval", "best", "--batch", 8, "--cut", 2)
    assert (found["batch_sizes"], found["cuts"]) == ([8] * 3, [2] * 3)
    assert found["other_intervals_save_at_most"] < 0.1


@pytest.mark.parametrize("intervals", ["5,8", "best"])
def test_algorithm_2_has_a_plan_for_each_interval_and_proves_nothing(hasfl: Hasfl, intervals: str) -> None:
    found = printed(hasfl, EXAMPLE, "--interval", intervals, "--solver", "bcd")
    assert found["other_intervals_save_at_most"] is None
    tried = {each["interval"]: each for each in found["intervals"]}
    assert set(tried) == ({5, 8} if intervals == "5,8" else {15, *LADDER})
    alone = printed(hasfl, EXAMPLE, "--interval", 8, "--solver", "bcd")
    assert (tried[8]["batch_sizes"], tried[8]["cuts"]) == (alone["batch_sizes"], alone["cuts"])
    assert found["objective"] == min(each["objective"] for each in tried.values())


def test_algorithm_2_chooses_the_interval_with_measured_constants_too(hasfl: Hasfl, tmp_path: Path) -> None:
    path = problem(tmp_path, "measured")
    found, exact = (printed(hasfl, path, "--interval", "5,8", *more) for more in (("--solver", "bcd"), ()))
    assert found["other_intervals_save_at_most"] is None
    least = {each["interval"]: each["lower_bound"] for each in exact["intervals"]}
    assert all(each["objective"] >= least[each["interval"]] for each in found["intervals"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--solver", "bcd", "--batch", 8), "solver bcd finds batch sizes and cuts together"),
        (("--solver", "best"), "solver must be exact or bcd, got 'best'"),
    ],
)
def test_what_a_solver_cannot_do_for_the_best_interval_is_said(
    hasfl: Hasfl, tmp_path: Path, options: tuple[object, ...], expected: str
) -> None:
    assert expected in sentence(hasfl("plan", problem(tmp_path, "measured"), "--interval", "best", *options))
