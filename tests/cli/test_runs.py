"""`hasfl runs` and `hasfl show`: what the folders of runs say, without training and without torch."""

import fcntl
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from hasfl.cli.training_view import TrainingView
from hasfl.runs.request import RunRequest
from hasfl.runs.run import carry_out
from hasfl.runs.store import Journal, RunFolder
from tests.cli.conftest import Hasfl
from tests.report.runs import record
from tests.runs.scenarios import PIS, files, rounds, sentence, write


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario and a finished run."""
    folder = tmp_path_factory.mktemp("trained")
    scenario = write(folder, {"training.strategy": '"sfl"', "fleet.devices": ""}, PIS)
    with TrainingView() as view:
        carry_out(RunRequest.of(scenario, folder / "runs", strategy_name="sfl", seed=0), view, resume=False)
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    """Copies of it in every state."""
    made = tmp_path / "runs"
    for name in ("finished", "stopped", "young", "broken", "damaged"):
        shutil.copytree(trained / "runs" / "small-sfl-seed0", made / name)
    (made / "stopped" / "result.json").unlink()
    for file in ("result.json", "rounds.jsonl", "timing.jsonl"):
        (made / "young" / file).unlink()
    (made / "broken" / "settings.json").write_text("[]")
    (made / "damaged" / "scenario.toml").unlink()
    (made / "notes").mkdir()
    (made / "notes" / "readme.txt").write_text("mine")
    (made / "picture.png").write_text("")
    return made


def listed(hasfl: Hasfl, folder: Path) -> dict[str, dict[str, Any]]:
    done = hasfl("runs", folder, "--json")
    assert (done.code, done.err) == (0, "")
    return {run["run"]: run for run in json.loads(done.out)["runs"]}


def test_every_run_has_its_state(hasfl: Hasfl, runs: Path) -> None:
    before = files(runs)
    found = listed(hasfl, runs)
    assert {name: run["state"] for name, run in found.items()} == {
        "finished": "finished",
        "stopped": "stopped",
        "young": "stopped",
        "broken": "broken",
        "damaged": "broken",
    }
    last, result = rounds(runs / "finished")[-1], RunFolder.open(runs / "finished").result()
    timing = json.loads((runs / "finished" / "timing.jsonl").read_text().splitlines()[-1])
    assert found["finished"] == {
        "run": "finished",
        "state": "finished",
        "strategy": "sfl",
        "seed": 0,
        "rounds": 4,
        "accuracy": result["accuracy"],
        "measured_on": "the test set",
        "seconds": last["clock"],
        "elapsed_seconds": timing["elapsed_seconds"],
        "fault": None,
    }
    assert found["stopped"] == found["finished"] | {"run": "stopped", "state": "stopped"}
    assert (found["young"]["rounds"], found["young"]["accuracy"]) == (0, None)
    assert "settings.json must hold one JSON object" in found["broken"]["fault"]
    assert "it has no scenario.toml" in found["damaged"]["fault"]
    assert files(runs) == before


def test_a_run_that_another_process_writes_is_running(hasfl: Hasfl, runs: Path) -> None:
    with (runs / "stopped" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert listed(hasfl, runs)["stopped"]["state"] == "running"
        assert "hasfl train" not in hasfl("show", runs / "stopped").out
    assert listed(hasfl, runs)["stopped"]["state"] == "stopped"


@pytest.mark.parametrize("width", ["80", "120"])
def test_the_table(hasfl: Hasfl, runs: Path, monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    monkeypatch.setattr("tests.cli.conftest.COLUMNS", width)
    shown = hasfl("runs", runs)
    assert (shown.code, shown.err) == (0, "")
    row = next(line for line in shown.out.splitlines() if line.startswith(" finished"))
    for cell in (
        "finished",
        "sfl",
        "0",
        "4",
        f"{RunFolder.open(runs / 'finished').result()['accuracy']:.2%}",
    ):
        assert cell in row.split()
    assert "broken is broken: " in shown.out
    assert "notes" not in shown.out


@pytest.mark.parametrize("width", ["30", "40", "60"])
def test_a_narrow_table(hasfl: Hasfl, runs: Path, monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    """The names of run and strategy stay whole; other columns are left out."""
    monkeypatch.setattr("tests.cli.conftest.COLUMNS", width)
    lines = hasfl("runs", runs).out.splitlines()
    row = next(line for line in lines if line.startswith(" finished"))
    assert row.split()[:3] == ["finished", "finished", "sfl"]
    assert len(row) <= int(width)
    assert ("%" in row) == (width == "60")
    assert not any("…" in line for line in lines)


def test_folders_without_runs(hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there are no runs in" in hasfl("runs", tmp_path).out
    assert json.loads(hasfl("runs", tmp_path, "--json").out) == {"runs": []}
    assert "must be a folder with runs, but does not exist" in sentence(hasfl("runs", tmp_path / "none"))
    (tmp_path / "file").write_text("")
    assert "must be a folder with runs, but is a file" in sentence(hasfl("runs", tmp_path / "file"))
    monkeypatch.chdir(tmp_path)
    assert "runs must be a folder with runs" in sentence(hasfl("runs"))
    too_long = "x" * 300  # for any file system
    assert "must be a folder with runs, but does not exist" in sentence(hasfl("runs", too_long))
    assert "must be the folder of a run, but is not there" in sentence(hasfl("show", too_long))


def test_one_run(hasfl: Hasfl, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    by_path, by_name = hasfl("show", "runs/small-sfl-seed0"), hasfl("show", "small-sfl-seed0")
    assert (by_path.code, by_path.out) == (0, by_name.out)
    (trained / "small-sfl-seed0").mkdir()  # a folder of this name that is no run
    assert hasfl("show", "small-sfl-seed0").out == by_name.out
    (trained / "small-sfl-seed0").rmdir()
    for what in (
        "sfl with seed 0: small-cnn on digits, 3 devices, sgd with learning rate 0.05",
        "used up its budget after 4 rounds",
        "plan of round 4: pi (3 devices) b = 8, cut 1",
        "model.safetensors",
        "hasfl export runs/small-sfl-seed0 --to state-dict",
    ):
        assert what in by_path.out
    printed = json.loads(hasfl("show", "small-sfl-seed0", "--json").out)
    assert printed["last"] == rounds(trained / "runs" / "small-sfl-seed0")[-1]
    assert printed["result"] == RunFolder.open(trained / "runs" / "small-sfl-seed0").result()
    assert printed["scenario"] == str(trained / "small.toml")


def test_the_command_that_resumes_a_run_resumes_it(hasfl: Hasfl, runs: Path, trained: Path) -> None:
    command = json.loads(hasfl("show", runs / "stopped", "--json").out)["commands"]["resume"]
    program, *arguments = shlex.split(command)
    assert program == "hasfl"
    done = hasfl(*arguments)
    assert done.code == 0, done.err
    assert (runs / "stopped" / "rounds.jsonl").read_bytes() == (
        runs / "finished" / "rounds.jsonl"
    ).read_bytes()


def test_runs_that_cannot_be_shown(hasfl: Hasfl, runs: Path) -> None:
    said = sentence(hasfl("show", runs / "typo"))
    assert said.endswith(f"is not there: {runs} has broken, damaged, finished, stopped, young")
    assert "has none of a run's files" in sentence(hasfl("show", runs / "notes"))
    assert "settings.json must hold one JSON object" in sentence(hasfl("show", runs / "broken"))
    settings = json.loads((runs / "stopped" / "settings.json").read_text())
    (runs / "stopped" / "settings.json").write_text(json.dumps(settings | {"seed": "one"}))
    assert "settings.json must say the seed of the run" in sentence(hasfl("show", runs / "stopped"))


def test_only_the_end_of_the_records_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the blocks are, backwards is the reverse of forwards."""
    journal = Journal(tmp_path / "rounds.jsonl")
    assert list(journal.newest_rows()) == []
    for t in range(1, 8):
        journal.append(record(t).as_json())
    expected = list(journal.rows())[::-1]
    with (tmp_path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 8, "incompl')
    for block in (1, 7, 100, 10**6):
        monkeypatch.setattr("hasfl.runs.store.BLOCK", block)
        assert list(journal.newest_rows()) == expected


def test_records_that_cannot_be_read_break_one_run_only(hasfl: Hasfl, runs: Path) -> None:
    (runs / "stopped" / "rounds.jsonl").unlink()
    (runs / "stopped" / "rounds.jsonl").mkdir()
    shown = hasfl("runs", runs, "--json")
    states = {run["run"]: (run["state"], run["fault"]) for run in json.loads(shown.out)["runs"]}
    assert states["finished"] == ("finished", None)
    assert states["stopped"] == ("broken", f"cannot read {runs / 'stopped' / 'rounds.jsonl'}: Is a directory")
