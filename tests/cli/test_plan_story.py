"""`hasfl train` tells which plan it has and why, at the start and whenever the plan changes."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from hasfl.cli.announcements import MOST_CHANGES, BegunTraining, PlanAnnouncer, plan_in_words
from hasfl.fleet import kinds
from hasfl.plan import Plan
from hasfl.record import RoundRecord
from hasfl.runs.build import Simulation
from hasfl.units import format_seconds
from tests.cli.conftest import Hasfl
from tests.learning.simulations import simulation, unequal_fleet
from tests.runs.scenarios import PIS, rounds, sentence, write

NAMES = ["pi-1", "pi-2", "pi-3", "laptop-1", "laptop-2", "jetson"]


def test_kinds_are_names_without_numbers() -> None:
    assert kinds(NAMES) == {"pi": [0, 1, 2], "laptop": [3, 4], "jetson": [5]}
    assert kinds(["1", "2", "3"]) == {"": [0, 1, 2]}
    assert kinds(["a-b", "a-1", "x--2", "-3"]) == {"a-b": [0], "a": [1], "x-": [2], "": [3]}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (NAMES, "pi (3 devices) b = 2, cut 1; laptop (2) b = 4–6, cut 2; jetson (1) b = 24, cut 1–3"),
        (["1", "2", "3", "4", "5", "6"], "6 devices b = 2–24, cut 1–3"),
        ([f"box {letter}" for letter in "abcdef"], "box a (1 device) b = 2, cut 1; box b (1) b = 2, cut 1; "),
    ],
)
def test_a_plan_in_words(names: list[str], expected: str) -> None:
    cuts = [1, 1, 1, 2, 2, 3]
    plan = Plan([2, 2, 2, 4, 6, 24], cuts)
    assert plan_in_words(plan, names, of=len(names)).startswith(
        expected.replace("cut 1–3", "cut 3") if "jetson" in names else expected
    )


def test_one_plan_for_all_is_told_once() -> None:
    assert plan_in_words(Plan.uniform(6, batch_size=16, cut=2), NAMES, of=6) == "6 devices b = 16, cut 2"
    some = plan_in_words(Plan.uniform(6, batch_size=16, cut=2), NAMES, of=9)
    assert some == "6 devices b = 16, cut 2 · 6 of 9 devices take part"
    one = plan_in_words(Plan.uniform(1, batch_size=16, cut=2), ["jetson"], of=40)
    assert one == "jetson (1 device) b = 16, cut 2 · 1 of 40 devices takes part"


def test_many_kinds_are_told_as_one() -> None:
    names = [f"box {letter}" for letter in "abcdefgh"]
    assert plan_in_words(Plan(np.arange(1, 9), np.full(8, 2)), names, of=8) == "8 devices b = 1–8, cut 2"


def story(records: Sequence[RoundRecord] = (), *, short: bool = False, strategy: str = "sfl") -> list[str]:
    made = simulation(strategy, unequal_fleet(), rounds=30)
    told = PlanAnnouncer(BegunTraining.of(made), short=short)
    return [*told.beginning(), *(line for record in records for line in told.after(record))]


@cache
def some_record() -> RoundRecord:
    (record,) = simulation("sfl", unequal_fleet(), rounds=1)
    return record


def later(t: int, *notes: str) -> RoundRecord:
    return replace(some_record(), round=t, notes=notes)


def test_the_beginning_has_the_plan_and_the_time_of_a_round() -> None:
    made = simulation("hasfl", unequal_fleet(), rounds=6)
    plan_line, reason = PlanAnnouncer(BegunTraining.of(made), short=False).beginning()
    records = list(made)
    interval = [record.seconds for record in records if record.plan == records[0].plan][:3]
    words = plan_in_words(records[0].plan, unequal_fleet().names, of=4)
    assert plan_line.startswith(f"plan: {words} · a round takes ")
    if len(interval) == 3:  # a whole interval, with its aggregation
        assert plan_line.endswith(format_seconds(sum(interval) / 3))
    assert reason.startswith("first plan: it rests on 6 guesses of the constants; it takes 1.")


def test_every_change_is_told_with_its_round_and_its_plan() -> None:
    notes = [later(t, f"new plan: reason {t}") for t in (4, 7)]
    lines = story([later(2), *notes])[1:]
    assert [line for line in lines if line.startswith("round")] == [
        "round 4: new plan: reason 4",
        "round 7: new plan: reason 7",
    ]
    assert sum(line.startswith("plan: 4 devices b = ") for line in lines) == 2


def test_changes_are_told_until_there_were_many() -> None:
    lines = story([later(t, f"new plan: reason {t}") for t in range(2, 50)])
    assert sum("new plan: reason" in line for line in lines) == MOST_CHANGES
    assert lines[-1] == "more plans may follow; rounds.jsonl in the run's folder has all of them"


def test_other_notes_are_told_once_and_other_devices_too() -> None:
    kept, absent = "plan kept: still the best", "new plan: other devices take part"
    lines = story([later(t, kept, absent, "batch sizes: less") for t in range(2, 9)])
    assert [line for line in lines if line.startswith("round")] == [
        f"round 2: {kept}",
        f"round 2: {absent}",
        "round 2: batch sizes: less",
    ]


def test_a_comparison_has_the_plan_once() -> None:
    notes = [later(2, "new plan: x", "plan kept: y", "batch sizes: less")]
    lines = story(notes, short=True, strategy="hasfl")
    assert [line.partition(":")[0] for line in lines] == ["plan", "round 2"]
    assert lines[1] == "round 2: batch sizes: less"


def test_a_training_on_the_screen(hasfl: Hasfl, tmp_path: Path) -> None:
    """The record of the first round says what the plan rests on, and nothing changes it."""
    changes = {
        "fleet.devices": "",
        "training.interval": "15",
        "stop.rounds": "20",
        "training.max_batch": "64",
    }
    path = write(tmp_path, changes, PIS)
    done = hasfl("train", path, "--out", tmp_path, "--run", "run")
    rows = rounds(tmp_path / "run")
    lines = done.err.splitlines()[3:]  # after three steps of the preparation
    assert lines[1].startswith("plan: pi (3 devices) b = ")
    assert [lines[2]] == rows[0]["notes"]
    assert "times as long as the best plan for one of them in the mean, and " in lines[2]
    assert all(not row["notes"] for row in rows[1:])


def test_a_batch_size_that_does_not_fit_is_refused_or_told(hasfl: Hasfl, tmp_path: Path) -> None:
    """Above max_batch it is refused, for every strategy; where a device has fewer samples, it is told."""
    path = write(tmp_path, {"data.samples": "5", "training.max_batch": "64"})
    for strategy in ("b=1000+cut=2", "fl:b=65", "cl:b=65", "b=65+hams"):
        said = sentence(hasfl("train", path, "--strategy", strategy, "--out", tmp_path, "--run", "none"))
        assert "of the strategy is above max_batch, which is 64: choose a smaller batch size" in said
    assert not (tmp_path / "none").exists()
    for strategy in ("b=8+cut=2", "cl:b=8"):
        name = strategy.replace(":", "-")
        done = hasfl("train", path, "--strategy", strategy, "--out", tmp_path, "--run", name)
        (note,) = rounds(tmp_path / name)[0]["notes"]
        assert note.startswith("batch sizes: 4 of 4 devices do not get ")
        assert note in done.err.splitlines()


def test_a_looped_layer_is_told_without_the_parts_of_torch(
    hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = {"memory": "it reads dtype of its weights; by torch's vmap, Batching rule not implemented"}
    monkeypatch.setattr(Simulation, "looped_layers", property(lambda simulation: reasons))
    path = write(tmp_path, {"training.strategy": '"sfl"', "stop.rounds": "1"})
    told = hasfl("train", path, "--out", tmp_path, "--run", "run").err.splitlines()
    assert "layer 'memory' is trained for one device after the other: it reads dtype of its weights" in told
