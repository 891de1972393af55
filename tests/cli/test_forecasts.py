"""What `hasfl train` and `hasfl show` say about the end of a training."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from hasfl.cli.training_view import Outlook, TrainingView, course
from hasfl.forecast import GoalForecast
from hasfl.forecasting.budgets import BudgetEnd
from hasfl.goal import Goal
from hasfl.reporting.store import RESULT
from hasfl.runs.request import RunRequest
from tests.cli.conftest import Hasfl
from tests.engines.simulations import simulation, unequal_fleet
from tests.reporting.runs import record
from tests.runner.scenarios import rounds, write

FORECAST = GoalForecast(
    measure="accuracy",
    rounds=1520,
    fewest_rounds=1400,
    most_rounds=1700,
    seconds_left=200.0,
    least_seconds_left=168.0,
    most_seconds_left=246.0,
    first_rounds=1480,
    endless_rounds=300.0,
)
IN_WORDS = "on course for 1,520; about 3 min 20 s of virtual time to go, 2 min 48 s to 4 min 06 s"
LONG = {
    "training.strategy": '"sfl"',
    "training.interval": "5",
    "training.evaluate_every": "5",
    "stop.rounds": "",
    "stop.accuracy": "0.9",
    "stop.samples": "100000",
}


@pytest.mark.parametrize(
    ("forecast", "expected"),
    [
        (
            FORECAST,
            f"forecast 1,480 rounds, {IN_WORDS}",
        ),
        (
            replace(FORECAST, most_rounds=None, most_seconds_left=None, first_rounds=None),
            "on course for 1,520 rounds; about 3 min 20 s of virtual time to go, 2 min 48 s or much more",
        ),
        (replace(FORECAST, rounds=None, seconds_left=None), "the accuracy to reach is out of sight"),
    ],
)
def test_a_forecast_in_words(forecast: GoalForecast, expected: str) -> None:
    assert course(forecast) == expected


def test_the_course_is_told_after_each_third_of_the_way(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = simulation("sfl", unequal_fleet(), rounds=1)
    (last,) = made
    made.training.goal = Goal(accuracy=0.9)
    request = RunRequest(scenario_file=Path("a.toml"), text="", path=Path("run"), strategy="sfl", seed=0)
    with TrainingView() as view:
        view.started(request, made, None)
        for t in (100, 500, 510, 900, 1100, 1400, 1519):
            view.recorded(replace(last, round=t, accuracy=0.5, forecast=FORECAST, notes=()))
        monkeypatch.setattr("hasfl.cli.training_view.PLAIN_SECONDS", 0.0)
        view.recorded(replace(last, round=1519, accuracy=None, forecast=None, notes=()))
    *told, line = [line for line in capsys.readouterr().err.splitlines() if line.startswith("round ")]
    assert [each.split(":")[0] for each in told] == ["round 510", "round 1100"]
    assert told[0] == f"round 510: {course(FORECAST)}"
    assert re.search(r"virtual .*s, about 3 min 20 s to go \(2 min 48 s to 4 min 06 s\)$", line)


def test_forecasts_come_true_in_a_training(hasfl: Hasfl, tmp_path: Path) -> None:
    """Every evaluation between the first and the last has a forecast, of a later evaluation."""
    done = hasfl("train", write(tmp_path, LONG), "--out", tmp_path, "--run", "run")
    assert done.code == 0, done.err
    run = rounds(tmp_path / "run")
    *before, last = [row for row in run if row["accuracy"] is not None]
    first, *before = before
    assert len(before) >= 2
    assert first["forecast"] is None  # one evaluation says nothing of the slope
    assert last["forecast"] is None
    assert all(row["forecast"] is None for row in run if row["accuracy"] is None)
    for row in before:
        found = row["forecast"]
        assert found["fewest_rounds"] <= found["rounds"]
        assert (found["rounds"] - row["round"]) % 5 == 0
        assert found["first_rounds"] == before[0]["forecast"]["rounds"]
    newest = before[-1]["forecast"]
    assert newest["rounds"] <= 2 * last["round"]
    assert newest["seconds_left"] > 0
    assert "on course for" in done.err


def test_a_stopped_run_shows_its_course(hasfl: Hasfl, tmp_path: Path) -> None:
    assert hasfl("train", write(tmp_path, LONG), "--out", tmp_path, "--run", "run").code == 0
    assert "on course for" not in hasfl("show", tmp_path / "run").out
    (tmp_path / "run" / RESULT).unlink()
    kept = tmp_path / "run" / "rounds.jsonl"
    kept.write_text("".join(kept.read_text().splitlines(keepends=True)[:12]))
    assert re.search(r"on course for [\d,]+", hasfl("show", tmp_path / "run").out)


def test_a_budget_that_comes_first_is_told() -> None:
    goal, late = Goal(accuracy=0.9, rounds=1000), BudgetEnd("rounds", 2000)
    early = Outlook(goal, FORECAST, BudgetEnd("rounds", 1000), 500.0)
    assert (
        early.sentence() == f"{course(FORECAST)}; but the budget of rounds ends training after 1,000 rounds"
    )
    assert early.to_go(150) == " of about 8 min 20 s"
    assert Outlook(goal, FORECAST, late, 900.0).sentence() == course(FORECAST)
    assert Outlook(goal, FORECAST, late, 900.0).to_go(120) == ", about 3 min 20 s to go"
    assert Outlook(Goal(rounds=1000), None, BudgetEnd("rounds", 1000), 7.0).to_go(150) == " of about 7 s"
    assert Outlook(goal, None, BudgetEnd("rounds", 1000), 7.0).to_go(150) == ""
    assert early.to_go(119) == Outlook(goal, FORECAST, late, 900.0).to_go(119) == ""


def test_the_way_is_toward_what_ends_training() -> None:
    now = record(380)
    goal = Goal(accuracy=0.9, rounds=1000)
    assert Outlook(goal, FORECAST, None).way(now) == pytest.approx(25.0)
    assert Outlook(goal, FORECAST, BudgetEnd("rounds", 1000)).way(now) == pytest.approx(38.0)
    assert Outlook(goal).way(now) == 0.0
