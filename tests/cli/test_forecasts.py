"""What `hasfl train` and `hasfl show` say about the end of a training."""

import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.cli.announcements import OVERRUN, ForecastTimes, Outlook, forecast_in_words
from hasfl.cli.training_view import TrainingView
from hasfl.goal import Goal
from hasfl.record import GoalForecast
from hasfl.runs.request import RunRequest
from hasfl.runs.store import RESULT
from hasfl.training.forecaster import BudgetEnd
from tests.cli.conftest import Hasfl
from tests.learning.simulations import simulation, unequal_fleet
from tests.report.runs import record
from tests.runs.scenarios import rounds, write

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
REACH, LEFT = "on course to reach the accuracy of the goal", "about 3 min 20 s of virtual time to go"
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
            f"{REACH} in round 1,520 (the first forecast was round 1,480); {LEFT}, 2 min 48 s to 4 min 06 s",
        ),
        (
            replace(FORECAST, most_rounds=None, most_seconds_left=None, first_rounds=None),
            f"{REACH} in round 1,520; {LEFT}, 2 min 48 s or much more",
        ),
        (replace(FORECAST, rounds=None, seconds_left=None), "the accuracy of the goal is out of sight"),
    ],
)
def test_a_forecast_in_words(forecast: GoalForecast, expected: str) -> None:
    assert forecast_in_words(forecast) == expected


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
    assert told[0] == f"round 510: {forecast_in_words(FORECAST)}"
    assert re.search(r"virtual .*s, about 3 min 20 s to go \(2 min 48 s to 4 min 06 s\)$", line)


def outlook(rounds: int | None, budget: int | None = None) -> Outlook:
    end = None if budget is None else BudgetEnd("rounds", budget)
    return Outlook(Goal(accuracy=0.9), replace(FORECAST, rounds=rounds), end)


def told(outlooks: dict[int, Outlook]) -> list[int]:
    """The rounds after which the outlook is told."""
    times = ForecastTimes()
    return [t for t, each in outlooks.items() if times.due(record(t), each)]


@given(st.integers(2, 10**6))
def test_a_third_that_is_exactly_reached_counts(third: int) -> None:
    """The end stays the same, so the two lines come in the very rounds that are thirds of it."""
    around = [t for part in (1, 2) for t in (part * third - 1, part * third, part * third + 1)]
    assert told({t: outlook(3 * third) for t in sorted(around)}) == [third, 2 * third]


def test_a_training_that_takes_longer_than_told_goes_on_telling() -> None:
    """The end is always the next evaluation, so more and more rounds pass between two lines."""
    rounds = told({t: outlook(t + 10) for t in range(10, 1000, 10)})
    assert rounds[0] == 10
    assert len(rounds) == pytest.approx(math.log(100) / math.log(OVERRUN), abs=4)
    assert all(later >= OVERRUN * before for before, later in pairwise(rounds[2:]))


def test_nothing_is_told_after_the_last_round() -> None:
    assert told({30: outlook(500, budget=60), 60: outlook(500, budget=60)}) == [30]
    assert told({60: outlook(None, budget=60)}) == []
    assert told({60: Outlook(Goal(accuracy=0.9))}) == []


@given(st.lists(st.integers(1, 400), min_size=3, max_size=30), st.integers(1, 29))
def test_a_resumed_training_tells_each_line_once(ahead: list[int], stop: int) -> None:
    """Those who look at the records before without a word tell the same as those who were there."""
    outlooks = {10 * t: outlook(10 * t + more) for t, more in enumerate(ahead, start=1)}
    early, late = (
        {t: each for t, each in outlooks.items() if (t <= 10 * stop) == before} for before in (True, False)
    )
    resumed = ForecastTimes()
    for t, each in early.items():
        resumed.due(record(t), each)
    again = [t for t, each in late.items() if resumed.due(record(t), each)]
    assert told(early) + again == told(outlooks)


def test_a_resumed_training_does_not_repeat_its_lines(hasfl: Hasfl, tmp_path: Path) -> None:
    """Stopped by a budget in the middle, it goes on with a larger one, and trains these rounds again."""
    path = write(tmp_path, LONG | {"stop.samples": "100000", "stop.rounds": "12"})
    first = hasfl("train", path, "--out", tmp_path, "--run", "run").err
    write(tmp_path, LONG | {"stop.rounds": "1000"})
    second = hasfl("train", path, "--out", tmp_path, "--run", "run", "--resume").err
    whole = hasfl("train", path, "--out", tmp_path, "--run", "whole").err
    lines = [re.findall(r"^(round \d+): on course", each, re.M) for each in (first, second, whole)]
    assert lines[0]
    assert lines[0] + lines[1] == lines[2]


def test_a_training_too_short_for_a_forecast_says_so_once(hasfl: Hasfl, tmp_path: Path) -> None:
    path = write(tmp_path, LONG | {"stop.accuracy": "0.01"})
    done = hasfl("compare", path, "--out", tmp_path, "--strategies", "sfl,fl").err
    assert done.count("too short for a forecast of the end") == 1
    assert "1 of 2: sfl: too short for a forecast of the end: held-out samples were looked at once" in done
    budget = hasfl("train", write(tmp_path, {"stop.rounds": "2"}), "--out", tmp_path, "--run", "b").err
    assert "too short" not in budget


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
    assert "on course to reach" in done.err


def test_a_stopped_run_shows_its_course(hasfl: Hasfl, tmp_path: Path) -> None:
    assert hasfl("train", write(tmp_path, LONG), "--out", tmp_path, "--run", "run").code == 0
    assert "on course to reach" not in hasfl("show", tmp_path / "run").out
    (tmp_path / "run" / RESULT).unlink()
    kept = tmp_path / "run" / "rounds.jsonl"
    kept.write_text("".join(kept.read_text().splitlines(keepends=True)[:12]))
    assert re.search(
        r"on course to reach the accuracy of the goal in round [\d,]+", hasfl("show", tmp_path / "run").out
    )


def test_a_budget_that_comes_first_is_told() -> None:
    goal, late = Goal(accuracy=0.9, rounds=1000), BudgetEnd("rounds", 2000)
    early = Outlook(goal, FORECAST, BudgetEnd("rounds", 1000), 500.0)
    assert (
        early.sentence()
        == f"{forecast_in_words(FORECAST)}; but the budget of rounds ends training after 1,000 rounds"
    )
    assert early.to_go(150) == " of about 8 min 20 s"
    assert Outlook(goal, FORECAST, late, 900.0).sentence() == forecast_in_words(FORECAST)
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
