"""A training that is there twice counts once. A strategy in another scenario is another contestant."""

from dataclasses import replace
from pathlib import Path

import pytest

from hasfl.runs.reports import OpenRun, contestants, report_of, without_repeats
from tests.report.trained_runs import data_of, train


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Seed 0 in two folders, and seed 1."""
    folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    runs = [train(folder, "sfl:b=4", {}) for folder in folders]
    return [*runs, train(folders[0], "sfl:b=4", {}, seed=1)]


def test_the_same_training_is_no_other_seed(twice: list[Path]) -> None:
    twice[1].rename(again := twice[1].with_name("again"))
    found = report_of([twice[0], again, twice[2]])
    data = data_of(found.html())
    assert [(run["name"], run["seed"]) for run in data["runs"]] == [("sfl:b=4-0", 0), ("sfl:b=4-1", 1)]
    (row,) = data["verdict"]["rows"]
    assert row["seeds"] == 2
    assert found.subtitle.endswith("2 runs: 2 finished · left out, because the same training is here: again")


def test_the_run_that_came_farthest_is_kept(tmp_path: Path) -> None:
    path = train(tmp_path, "sfl:b=4", {})
    whole = OpenRun.of(path)
    part = replace(whole, path=tmp_path / "part", state="stopped", records=whole.records[:2])
    assert [run.path for run in without_repeats([part, whole])] == [path]
    assert [run.path for run in without_repeats([whole, part])] == [path]


def test_a_strategy_in_another_scenario_is_another_contestant(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("slow", "quick")]
    for folder in folders:
        folder.mkdir()
    paths = [
        train(folder, "sfl:b=4", {"training.learning_rate": rate})
        for folder, rate in zip(folders, ("0.01", "0.1"), strict=True)
    ]
    alike = [OpenRun.of(path) for path in paths]
    assert list(contestants(alike).values()) == [f"sfl:b=4 ({path})" for path in paths], "one name for all"
    paths[1] = paths[1].rename(paths[1].with_name("other"))
    runs = [OpenRun.of(path) for path in paths]
    assert without_repeats(runs) == runs
    assert list(contestants(runs).values()) == ["sfl:b=4 (sfl:b=4-0)", "sfl:b=4 (other)"], "files of one name"
    assert list(contestants(runs[:1]).values()) == ["sfl:b=4"]
    title = report_of(paths).title
    assert title == "sfl:b=4 (other) and sfl:b=4 (sfl:b=4-0) compared", "the quicker one comes first"
