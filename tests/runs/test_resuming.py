"""A run goes on with a higher budget as if it had had it from the beginning; other changes are named."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hasfl.runs.files import parse_toml
from hasfl.runs.resuming import differences
from hasfl.runs.scenario import Scenario
from hasfl.runs.store import RunFolder
from tests.cli.conftest import Hasfl, Outcome
from tests.lanes import quick_then_slow
from tests.runs.scenarios import MOVING, files, kept, rounds, sentence, write

Train = Callable[..., Outcome]
QUICK = {"training.strategy": '"sfl"'}


@pytest.fixture
def train(hasfl: Hasfl, tmp_path: Path) -> Train:
    """Train the small scenario with changes, in a run of this name."""

    def run(name: str, changes: dict[str, str], *options: object, tables: str = "") -> Outcome:
        scenario = write(tmp_path, QUICK | changes, tables)
        return hasfl("train", scenario, "--out", tmp_path, "--run", name, *options)

    return run


LONGER: dict[str, tuple[dict[str, str], dict[str, str], dict[str, str]]] = {  # always, at first, then
    "rounds": (
        {"training.checkpoint_seconds": "0", "training.evaluate_every": "4"},
        {"stop.rounds": "5"},
        {"stop.rounds": "7"},
    ),
    "from the beginning": ({}, {"stop.rounds": "4"}, {"stop.rounds": "7"}),
    "within an interval": ({}, {"stop.rounds": "3"}, {"stop.rounds": "8"}),
    "at an aggregation": ({"training.checkpoint_seconds": "0"}, {"stop.rounds": "6"}, {"stop.rounds": "7"}),
    "samples": ({"stop.rounds": ""}, {"stop.samples": "100"}, {"stop.samples": "260"}),
    "seconds": ({"stop.rounds": ""}, {"stop.seconds": "0.004"}, {"stop.seconds": "0.012"}),
    "seldom evaluated": ({"training.evaluate_every": "3"}, {"stop.rounds": "4"}, {"stop.rounds": "8"}),
    "accuracy": (
        {"stop.rounds": "12", "training.evaluate_every": "1", "training.checkpoint_seconds": "0"},
        {"stop.accuracy": "0.1"},
        {"stop.accuracy": "0.5"},
    ),
    "a moving world": (
        MOVING | {"training.checkpoint_seconds": "0"},
        {"stop.rounds": "5"},
        {"stop.rounds": "9"},
    ),
    "the paper's": ({"training.strategy": '"hasfl-bcd"'}, {"stop.rounds": "4"}, {"stop.rounds": "7"}),
    "the best model": (
        {"training.keep": '"best"', "training.checkpoint_seconds": "0"},
        {"stop.rounds": "5"},
        {"stop.rounds": "9"},
    ),
    "reports": ({"training.report_every": "3"}, {"stop.rounds": "4"}, {"stop.rounds": "7"}),
}


@pytest.mark.parametrize("case", quick_then_slow(list(LONGER), quick=1))
def test_a_finished_run_goes_on_with_a_higher_budget(train: Train, tmp_path: Path, case: str) -> None:
    """Its records and its model are those of a run that had this budget from the beginning."""
    always, first, then = LONGER[case]
    assert train("run", always | first).code == 0
    before = len(rounds(tmp_path / "run"))
    assert train("whole", always | then).code == 0
    done = train("run", always | then, "--resume")
    assert done.code == 0, done.err
    assert len(rounds(tmp_path / "run")) > before
    assert kept(tmp_path / "run") == kept(tmp_path / "whole")
    text = (tmp_path / "small.toml").read_text()
    assert RunFolder.open(tmp_path / "run").scenario_text() == text  # the new one
    again = train("run", always | then, "--resume")
    assert "finished before" in again.err


def test_it_says_where_it_goes_on_and_so_does_its_wall_time(train: Train, tmp_path: Path) -> None:
    often = {"training.checkpoint_seconds": "0"}
    assert train("run", often | {"stop.rounds": "4"}).code == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "timing.jsonl").read_text().splitlines()]
    rows = [row | {"elapsed_seconds": 1000.0 + row["elapsed_seconds"]} for row in rows]
    (tmp_path / "run" / "timing.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "training, from round 2 on" in train("run", often | {"stop.rounds": "6"}, "--resume").err
    lines = (tmp_path / "run" / "timing.jsonl").read_text().splitlines()
    elapsed = [json.loads(line)["elapsed_seconds"] for line in lines]
    assert len(elapsed) == 6
    assert elapsed == sorted(elapsed)
    assert elapsed[0] > 1000


def test_a_budget_below_what_was_trained(train: Train, tmp_path: Path) -> None:
    assert train("run", {"stop.rounds": "6"}).code == 0
    before = kept(tmp_path / "run")
    for less in ({"stop.rounds": "3"}, {"stop.samples": "100"}, {"stop.seconds": "0.001"}):
        said = sentence(train("run", {"stop.rounds": "6"} | less, "--resume"))
        assert "[stop] would have ended this training after round" in said
        assert "but 6 rounds are trained: raise it to go on" in said
    assert kept(tmp_path / "run") == before


def test_what_does_not_matter_may_differ(hasfl: Hasfl, train: Train, tmp_path: Path) -> None:
    """Comments, order, defaults that are written out, the folder, and where it is computed."""
    assert train("run", {}, "--device", "cpu").code == 0
    before = kept(tmp_path / "run")
    text = (tmp_path / "small.toml").read_text()
    same = {
        "training.report_every": "2",
        "training.checkpoint_seconds": "3.5",
        "training.device": '"cpu"',
        "training.optimizer": '"sgd"',
        "training.evaluate_every": "2",
        "training.calibrate": "true",
        "model.name": '"small-cnn"',
        "data.held_out": "0.0",
        "data.partition": '"iid"',
    }
    assert "finished before" in train("run", same, "--resume").err
    backwards = "# a comment\n" + "\n".join(reversed(text.splitlines())) + "\n"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "other.toml").write_text(backwards)
    moved = ("train", tmp_path / "elsewhere" / "other.toml", "--out", tmp_path, "--run", "run", "--resume")
    assert "finished before" in hasfl(*moved).err
    (tmp_path / "run" / "result.json").unlink()
    assert hasfl(*moved).code == 0
    assert kept(tmp_path / "run") == before
    settings = RunFolder.open(tmp_path / "run").settings()
    assert (settings["folder"], settings["scenario"]) == (str(tmp_path / "elsewhere"), "other.toml")


OTHERWISE: dict[str, tuple[str, str]] = {
    "interval": ("training.interval = 3", "training.interval was 15, now 3"),
    "strategy": ('training.strategy = "fl"', "training.strategy was 'hasfl', now 'fl'"),
    "seed": ("seed = 1", "seed was 0, now 1"),
    "model": ('model.norm = "group"', "model.norm was left out, now 'group'"),
    "devices": ("fleet.devices = 3", "fleet.devices was 20, now 3"),
    "engine": ('training.engine = "reference"', "training.engine was 'simulated', now 'reference'"),
    "constants": ('training.constants = "paper"', "training.constants was 'measured', now 'paper'"),
    "what is held out": ("stop.rounds = 9", "data.held_out was 0.1, now 0.0"),
}


@pytest.mark.parametrize("case", OTHERWISE)
def test_what_makes_another_training_is_named(case: str) -> None:
    text, expected = OTHERWISE[case]
    assert differences(Scenario(), parse_toml(text, Scenario, "test")) == [expected]


@pytest.mark.parametrize(
    "text", ["stop.accuracy = 0.9", 'training.device = "cuda"', "training.report_every = 4"]
)
def test_what_does_not_is_not(text: str) -> None:
    assert differences(Scenario(), parse_toml(text, Scenario, "test")) == []


def test_another_training_is_refused_and_nothing_changes(train: Train, tmp_path: Path) -> None:
    assert train("run", {}).code == 0
    before = {file: (tmp_path / "run" / file).read_bytes() for file in files(tmp_path / "run")}
    other = {
        "training.interval": "3",
        "training.max_batch": "9",
        "fleet.devices": "3",
        "data.augment": "true",
    }
    said = sentence(train("run", other, "--resume", "--seed", "1"))
    assert "was begun with other settings (seed was 0, now 1; data.augment was False, now True; " in said
    assert " and 2 more): restore them, or choose another place with --out" in said
    assert {file: (tmp_path / "run" / file).read_bytes() for file in files(tmp_path / "run")} == before


def test_the_same_scenario_written_otherwise_is_no_difference() -> None:
    def parsed(text: str) -> Scenario:
        return parse_toml(text, Scenario, "test")

    first = parsed('[[device]]\nname = "a"\nflops = "1 GFLOPS"\nup_rate = "8 Mbps"\ndown_rate = 1e6\n')
    again = parsed(
        '[[device]]\nflops = 1e9\nname = "a"\nup_rate = "1 MB/s"\ndown_rate = "1 Mbps"\ncount = 1\n'
    )
    other = parsed('[[device]]\nflops = 2e9\nname = "a"\nup_rate = "1 MB/s"\ndown_rate = "1 Mbps"\n')
    assert differences(first, again) == []
    assert differences(first, other) == ["device[0].flops was 1000000000.0, now 2000000000.0"]
    papers, same, others = (
        parsed(f'[training]\nstrategy = "hasfl-bcd"\n{constants}')
        for constants in ("", 'constants = "paper"', 'constants = "measured"')
    )
    assert differences(papers, same) == []
    assert differences(papers, others) == ["training.constants was 'paper', now 'measured'"]
    one, two = (parsed(f'constants.from = "{run}"') for run in ("one", "two"))
    assert differences(one, two) == ["constants.from was 'one', now 'two'"]


def test_a_run_that_is_not_there(hasfl: Hasfl, train: Train, tmp_path: Path) -> None:
    said = sentence(train("typo", {}, "--resume"))
    assert f"there is no run {tmp_path / 'typo'} to resume: there are no runs in {tmp_path}" in said
    assert train("run", {}).code == 0
    said = sentence(train("typo", {}, "--resume"))
    assert said.endswith(f"to resume: {tmp_path} has run")
    assert not (tmp_path / "typo").exists()


def test_without_a_name_there_may_be_nothing_to_resume(hasfl: Hasfl, tmp_path: Path) -> None:
    done = hasfl("train", write(tmp_path, QUICK), "--out", tmp_path / "runs", "--resume")
    assert done.code == 0
    assert f"there is no run {tmp_path / 'runs' / 'small-sfl-seed0'} to resume, so it begins" in done.err


def test_records_without_a_checkpoint_are_not_thrown_away(train: Train, tmp_path: Path) -> None:
    assert train("run", {}).code == 0
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    before = {file: (tmp_path / "run" / file).read_bytes() for file in files(tmp_path / "run")}
    said = sentence(train("run", {"stop.rounds": "9"}, "--resume"))
    assert "has the records of 4 rounds, but no checkpoint.safetensors to go on from" in said
    assert {file: (tmp_path / "run" / file).read_bytes() for file in files(tmp_path / "run")} == before


@pytest.mark.slow
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(train: Train, tmp_path: Path) -> None:
    assert train("whole", {}).code == 0
    assert train("run", {}).code == 0
    for file in (
        "checkpoint.safetensors",
        "result.json",
        "rounds.jsonl",
        "timing.jsonl",
        "model.safetensors",
    ):
        (tmp_path / "run" / file).unlink()
    assert train("run", {}, "--resume").code == 0
    assert kept(tmp_path / "run") == kept(tmp_path / "whole")


@pytest.mark.slow
def test_a_comparison_goes_on_with_a_higher_budget(hasfl: Hasfl, tmp_path: Path) -> None:
    compare = ("compare", tmp_path / "small.toml", "--out", tmp_path, "--strategies", "sfl,fl")
    write(tmp_path)
    assert hasfl(*compare).code == 0
    write(tmp_path, {"stop.rounds": "6"})
    done = hasfl(*compare)
    assert done.code == 0, done.err
    assert [len(rounds(tmp_path / f"small-{name}-seed0")) for name in ("sfl", "fl")] == [6, 6]


def test_a_comparison_says_at_once_that_a_run_was_begun_otherwise(hasfl: Hasfl, tmp_path: Path) -> None:
    """Before it trains the strategies that come first."""
    compare = ("compare", tmp_path / "small.toml", "--out", tmp_path, "--strategies")
    write(tmp_path)
    assert hasfl(*compare, "fl").code == 0
    write(tmp_path, {"training.learning_rate": "0.1"})
    said = sentence(hasfl(*compare, "sfl,fl"))
    assert "small-fl-seed0 was begun with other settings (training.learning_rate was 0.05, now 0.1)" in said
    assert not (tmp_path / "small-sfl-seed0").exists()


def test_a_cosine_may_not_change_its_length() -> None:
    def with_rounds(rounds: int, more: str = "") -> Scenario:
        text = f'training.schedule = "cosine"\nstop.rounds = {rounds}\n{more}'
        return parse_toml(text, Scenario, "test")

    assert differences(with_rounds(9), with_rounds(12)) == ["training.schedule_rounds was 9, now 12"]
    assert differences(with_rounds(9), with_rounds(12, "training.schedule_rounds = 9")) == []
