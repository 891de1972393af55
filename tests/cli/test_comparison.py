"""`hasfl compare`: who converged where, or who reached the goal first; nothing is trained twice."""

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from hasfl.cli.compare import MOST_GROUPS, ConvergenceRow, _plan_table, show_convergence
from hasfl.plan import Plan
from hasfl.report.analysis import Spread, finish, outcome
from hasfl.runs.places.comparison import ChosenPlan
from hasfl.runs.store import RunFolder
from hasfl.theory.paradigms import SPLIT
from hasfl.units import format_seconds
from tests.cli.conftest import Hasfl
from tests.runs.scenarios import files, write
from tests.training.fakes import small_fleet, small_profile


def test_a_comparison(hasfl: Hasfl, tmp_path: Path) -> None:
    compare = ("compare", write(tmp_path), "--out", tmp_path / "runs", "--strategies")
    done = hasfl(*compare, "sfl,rbs+rms")
    begun = [line for line in done.err.splitlines() if ", seed " in line]
    assert (done.code, begun) == (0, ["1 of 2: sfl, seed 0: training", "2 of 2: rbs+rms, seed 0: training"])
    assert "times as long" in done.out
    picture = tmp_path / "runs" / "small-accuracy.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    before = {file: (tmp_path / file).read_bytes() for file in files(tmp_path) if (tmp_path / file).is_file()}

    again = hasfl(*compare, "sfl,rbs+rms", "--json")  # nothing is trained again
    assert (again.err.count(": finished before, in "), again.out.count("\n")) == (2, 1)
    assert {file: (tmp_path / file).read_bytes() for file in before} == before
    printed = json.loads(again.out)
    assert printed["picture"] == str(picture)
    assert [row["strategy"] for row in printed["strategies"]] == ["sfl", "rbs+rms"]
    for row in printed["strategies"]:
        reached = outcome(
            row["strategy"],
            RunFolder.open(tmp_path / "runs" / f"small-{row['strategy']}-seed0").records(),
        )
        assert row["converged_accuracy"]["mean"] == reached.converged_accuracy
        assert row["converged_seconds"]["mean"] == reached.converged_seconds

    more = hasfl(*compare, "sfl,fl", "--seeds", "0,1", "--picture", tmp_path / "more.svg")
    begun = [line.removesuffix(": training") for line in more.err.splitlines() if line.endswith("training")]
    assert begun == ["2 of 4: fl, seed 0", "3 of 4: sfl, seed 1", "4 of 4: fl, seed 1"]
    assert " to " in more.out
    assert "<svg" in (tmp_path / "more.svg").read_text()


def test_a_comparison_uses_what_train_has_made(hasfl: Hasfl, tmp_path: Path) -> None:
    scenario = write(tmp_path)
    assert hasfl("train", scenario, "--out", tmp_path, "--strategy", "fl").code == 0
    again = hasfl("compare", scenario, "--out", tmp_path, "--strategies", "fl")
    assert again.err == f"fl, seed 0: finished before, in {tmp_path / 'small-fl-seed0'}\n"


@pytest.mark.parametrize("names", ["sfl:b=4,cut=2;fl", "sfl:b=4,cut=2;"])
def test_strategies_with_options_end_at_a_semicolon(hasfl: Hasfl, tmp_path: Path, names: str) -> None:
    done = hasfl("compare", write(tmp_path), "--out", tmp_path, "--strategies", names, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["strategies"][0]["strategy"] == "sfl:b=4,cut=2"


RACE = {"stop.accuracy": "0.2", "training.evaluate_every": "1", "stop.rounds": "8"}


def test_a_race_to_an_accuracy(hasfl: Hasfl, tmp_path: Path) -> None:
    """On samples that devices hold out; the test set is only told."""
    compare = ("compare", write(tmp_path, RACE), "--out", tmp_path, "--strategies", "sfl,fl")
    shown = hasfl(*compare)
    assert shown.code == 0, shown.err
    assert (tmp_path / "small-accuracy.png").read_bytes().startswith(b"\x89PNG")
    runs = {name: RunFolder.open(tmp_path / f"small-{name}-seed0").records() for name in ("sfl", "fl")}
    finishes = {name: finish(name, records, 0.2) for name, records in runs.items()}
    assert all(each.reached for each in finishes.values())
    printed = json.loads(hasfl(*compare, "--json").out)
    assert (printed["goal"], printed["picture"]) == (0.2, str(tmp_path / "small-accuracy.png"))
    for row in printed["strategies"]:
        expected = finishes[row["strategy"]]
        assert (row["reached"], row["seeds"]) == (1, 1)
        assert row["seconds"]["mean"] == expected.seconds == runs[row["strategy"]][-1].clock
        assert row["rounds"]["mean"] == expected.rounds == len(runs[row["strategy"]])
        assert row["held_out_accuracy"]["mean"] == expected.held_out_accuracy >= 0.2
        assert row["accuracy"]["mean"] == expected.accuracy
        assert row["slower"]["mean"] == expected.seconds / finishes["sfl"].seconds
    first = min(finishes.values(), key=lambda each: each.seconds)
    assert f"{first.strategy} is first, after {format_seconds(first.seconds)} of virtual time" in shown.out
    names = [line.partition(":")[2].split(",")[0].split(":")[0].strip() for line in shown.err.splitlines()]
    numbers = [line.partition(":")[0] for line in shown.err.splitlines()]  # every line says whose it is
    assert list(dict.fromkeys(zip(numbers, names, strict=True))) == [("1 of 2", "sfl"), ("2 of 2", "fl")]

    # With several seeds, each is a race of its own, and how many reached the goal is told.
    for row in json.loads(hasfl(*compare, "--seeds", "0,1", "--json").out)["strategies"]:
        runs_of = [tmp_path / f"small-{row['strategy']}-seed{seed}" for seed in (0, 1)]
        ends = [finish(row["strategy"], RunFolder.open(run).records(), 0.2) for run in runs_of]
        assert (row["reached"], row["seeds"]) == (sum(end.reached for end in ends), 2)
        assert (row["seconds"]["low"], row["seconds"]["high"]) == tuple(sorted(end.seconds for end in ends))


def test_those_who_train_alike_are_first_together(hasfl: Hasfl, tmp_path: Path) -> None:
    names = "sfl:b=4,cut=2;b=4+cut=2"
    shown = hasfl("compare", write(tmp_path, RACE), "--out", tmp_path, "--strategies", names)
    assert "sfl:b=4,cut=2 and b=4+cut=2 are first, after " in shown.out, shown.out


def test_a_race_of_some_devices_says_how_many_they_are(hasfl: Hasfl, tmp_path: Path) -> None:
    scenario = write(tmp_path, RACE | {"training.participation": "0.5"})
    shown = hasfl("compare", scenario, "--out", tmp_path, "--strategies", "sfl")
    assert "What sfl gave the 2 of 4 devices that took part (round" in shown.out
    assert "2 of 4 devices take part" in shown.err
    assert shown.err.splitlines()[:2] == ["loading digits", "cutting small-cnn"]
    alone = write(tmp_path, RACE | {"training.participation": "0.25"})
    shown = hasfl("compare", alone, "--out", tmp_path / "alone", "--strategies", "sfl")
    assert "What sfl gave the one device of 4 that took part (round" in shown.out
    assert "1 of 4 devices takes part" in shown.err


def test_of_many_groups_the_slowest_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Every device is a group of its own here, and the first ones are the fastest."""
    devices = 30
    fleet = replace(small_fleet(devices), flops=np.linspace(100.0, 10.0, devices))
    plan = ChosenPlan(
        strategy="hasfl",
        seed=0,
        round=9,
        plan=Plan.uniform(devices, batch_size=4, cut=1),
        fleet=fleet,
        all_devices=devices,
        profile=small_profile(),
        paradigm=SPLIT,
    )
    latency = plan.latency(plan.plan)
    slowest = np.argsort(-(latency.up + latency.down))[:MOST_GROUPS]
    Console(width=120).print(_plan_table(plan))
    shown = capsys.readouterr().out
    rows = [line.split()[0] for line in shown.splitlines() if "FLOPS" in line]
    assert rows == [fleet.names[i] for i in slowest]
    assert f"the {MOST_GROUPS} slowest of {devices} groups of devices, slowest first" in shown


def test_a_race_that_nobody_wins(hasfl: Hasfl, tmp_path: Path) -> None:
    scenario = write(tmp_path, RACE | {"stop.accuracy": "0.999999"})
    shown = hasfl("compare", scenario, "--out", tmp_path / "hard", "--strategies", "sfl")
    assert (shown.code, "not reached (" in shown.out) == (0, True)
    assert "No strategy reached 99.9999 % with every seed: give more rounds or a lower" in shown.out
    printed = hasfl("compare", scenario, "--out", tmp_path / "hard", "--strategies", "sfl", "--json").out
    assert json.loads(printed)["strategies"][0]["reached"] == 0


def test_runs_that_ended_earlier_are_marked_among_others_that_converged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where no run converged, a mark would say nothing, and would read like a failure."""
    one = Spread(mean=0.5, low=0.5, high=0.5)
    numbers = dict.fromkeys([field.name for field in fields(ConvergenceRow)][2:], one)
    for converged in ((True, False), (False, False), (True, True)):
        rows = [
            ConvergenceRow(strategy=name, converged=each, **numbers)
            for name, each in zip(("sfl", "fl"), converged, strict=True)
        ]
        show_convergence(rows, [0], Path("a.png"))
        shown = capsys.readouterr().out
        assert ("fl *" in shown) == ("still learning when it ended" in shown) == (converged == (True, False))
        assert ("converged" in shown) == any(converged)
