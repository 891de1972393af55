"""Experiments are read from files, trained once each, drawn, and continued where they were left."""

import json
import os
import shutil
import tomllib
from pathlib import Path

import pytest

from hasfl.errors import InputError
from hasfl.runs.files import parse_toml
from hasfl.runs.request import RunRequest
from hasfl.runs.scenario import Scenario
from reproduction.experiment import known_experiments, read_experiment, read_experiments
from reproduction.results import Results, RunResult, save_result
from reproduction.training import TRAININGS, UNFINISHED, KeepResult, cases_of, untrained
from tests.cli.conftest import Hasfl
from tests.cli.conftest import hasfl as hasfl  # the fixture
from tests.reproduction.synthetic import synthetic

REPOSITORY = Path(__file__).parents[2] / "experiments"
SCENARIO = """
[model]
name = "small-cnn"
[data]
name = "digits"
[fleet]
devices = 3
[training]
interval = 2
evaluate_every = 2
score_last = true
[stop]
rounds = 4
"""
EXPERIMENT = """
figure = "Fig. 0"
title = "Tiny"
draws = "bars"
strategies = ["b=2+cut=1", "fl:b=2"]
paper = []
seeds = [0]
[[panel]]
name = "one"
title = "one"
scenario = "tiny"
accuracy = 0.1
[[quick]]
name = "one"
title = "one"
scenario = "tiny"
accuracy = 0.1
vary = ["fleet.devices"]
values = [2, 3]
at = [2.0, 3.0]
axis = "devices"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with one tiny experiment."""
    experiments = tmp_path / "experiments"
    (experiments / "scenarios").mkdir(parents=True)
    (experiments / "tiny.toml").write_text(EXPERIMENT)
    (experiments / "scenarios" / "tiny.toml").write_text(SCENARIO)
    shutil.copy(REPOSITORY / "claims.toml", experiments)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})  # one core: no other processes
    return tmp_path


@pytest.fixture
def trained(hasfl: Hasfl, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder out with the results of the tiny experiment, which is trained once for all tests."""
    out, kept = Path("out"), tmp_path_factory.getbasetemp() / "tiny-results"
    if not kept.exists():
        assert hasfl("reproduce", "tiny", "--out", str(out)).code == 0
        shutil.copytree(out, kept)
    else:
        shutil.copytree(kept, out)
    return out


def learnt(result: RunResult) -> dict[str, object]:
    """A result without what differs from machine to machine."""
    differs = ("environment", "wall_seconds", "commit", "finished")
    return {name: value for name, value in result.as_json().items() if name not in differs}


@pytest.mark.parametrize("quick", [False, True])
def test_every_experiment_of_the_repository_can_be_trained(quick: bool) -> None:
    experiments = read_experiments(["all"], REPOSITORY, quick=quick)
    figures = [f"fig{number:02}" for number in (2, 3, *range(5, 12))]
    assert [experiment.name for experiment in experiments] == [*figures, "gamma", "hindsight", "rms", "worth"]
    for case in cases_of(experiments):
        scenario = parse_toml(case.point.text, Scenario, source=case.point.scenario)
        assert scenario.training.score_last, "one column of every comparison is served the paper's way"
        assert scenario.stop.rounds is not None


def test_the_small_version_has_the_same_panels() -> None:
    for name in known_experiments(REPOSITORY):
        whole, small = (read_experiment(REPOSITORY / f"{name}.toml", quick=quick) for quick in (False, True))
        assert [panel.name for panel in whole.panels] == [panel.name for panel in small.panels]
        assert all(panel.strategies[0] == "hasfl" for panel in whole.panels if "hasfl" in panel.strategies)


def test_a_panel_may_have_more_seeds_for_the_strategies_of_the_paper(folder: Path) -> None:
    path = folder / "experiments" / "tiny.toml"
    text = path.read_text().replace("paper = []", 'paper = ["fl:b=2"]')
    path.write_text(text.replace("[[quick]]", "more_seeds = [1, 2]\n[[quick]]"))
    made = read_experiment(path, quick=False)
    assert [(case.strategy, case.seed) for case in made.cases()] == [
        ("b=2+cut=1", 0),
        ("fl:b=2", 0),
        ("fl:b=2", 1),
        ("fl:b=2", 2),
    ]
    asked = read_experiment(path, quick=False, seeds=[7])
    assert [case.seed for case in asked.cases()] == [7, 7], "--seeds says all seeds"


def test_points_of_a_panel_differ_in_one_key(folder: Path) -> None:
    (panel,) = read_experiment(folder / "experiments" / "tiny.toml", quick=True).panels
    texts = [tomllib.loads(point.text) for point in panel.points]
    assert [point.value for point in panel.points] == [2.0, 3.0]
    assert [text["fleet"].pop("devices") for text in texts] == [2, 3]
    assert texts[0] == texts[1]
    assert panel.points[1].text == SCENARIO, "a value that the scenario has already makes no other scenario"


def test_a_training_is_carried_out_once_and_drawn(hasfl: Hasfl, folder: Path) -> None:
    first = hasfl("reproduce", "tiny", "--out", "out", "--json")
    assert first.code == 0, first.err
    assert "2 trainings, 0 of them are done" in first.err
    files = json.loads(first.out)["files"]
    assert files == ["out/figures/tiny.png", "out/figures/tiny.svg", "out/claims.md"]
    assert all(Path(file).stat().st_size for file in files)
    kept = {result.key: learnt(result) for result in Results.read(Path("out") / TRAININGS)}
    assert sorted(strategy for _, strategy, _ in kept) == ["b=2+cut=1", "fl:b=2"]
    assert not list((Path("out") / UNFINISHED).glob("*/*")), "models are not kept"
    again = hasfl("reproduce", "tiny", "--out", "out")
    assert "2 trainings, 2 of them are done" in again.err
    assert kept == {result.key: learnt(result) for result in Results.read(Path("out") / TRAININGS)}


@pytest.mark.fleet
def test_a_result_that_is_lost_is_trained_again_and_comes_out_alike(hasfl: Hasfl, trained: Path) -> None:
    """Several processes train what one process trains."""
    before = {result.key: learnt(result) for result in Results.read(trained / TRAININGS)}
    for path in (trained / TRAININGS).glob("*/*"):
        path.unlink()
    again = hasfl("reproduce", "tiny", "--out", "out", "--on", "local:2")
    assert again.code == 0, again.err
    assert {result.key: learnt(result) for result in Results.read(trained / TRAININGS)} == before


def test_a_result_of_another_scenario_is_refused(hasfl: Hasfl, folder: Path, trained: Path) -> None:
    scenario = folder / "experiments" / "scenarios" / "tiny.toml"
    scenario.write_text("# a remark changes nothing\n" + SCENARIO)
    (tiny,) = read_experiments(["tiny"], folder / "experiments", quick=False)
    assert not untrained(cases_of([tiny]), trained)
    scenario.write_text(SCENARIO.replace("rounds = 4", "rounds = 6"))
    refused = hasfl("reproduce", "tiny", "--out", "out")
    assert refused.code == 2
    assert "was trained with another scenario than tiny is now: remove it" in refused.err


def test_without_results_figures_and_claims_say_so(hasfl: Hasfl, folder: Path) -> None:
    assert hasfl("reproduce", "all", "--only-draw", "--out", "out").code == 0
    page = Path("out/claims.md").read_text()
    found = {row.rsplit(" | ", 1)[1] for row in page.splitlines() if row.startswith("| **")}
    assert found == {"**not measured**: –<br>last model: the same |"}
    assert "not trained yet" in Path("out/figures/tiny.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fig99"], "FIGURE must be all or one of tiny, got 'fig99'"),
        (["tiny", "--seeds", "a"], "--seeds must be whole numbers with commas between, as 0,1,2; got 'a'"),
        (["tiny", "--on", "moon"], "--on"),
    ],
)
def test_bad_input(hasfl: Hasfl, folder: Path, arguments: list[str], sentence: str) -> None:
    refused = hasfl("reproduce", *arguments, "--out", "out")
    assert refused.code == 2
    assert sentence in refused.err
    assert not Path("out").exists()


def test_a_scenario_that_a_panel_spoils_is_refused(folder: Path) -> None:
    path = folder / "experiments" / "tiny.toml"
    path.write_text(EXPERIMENT.replace('"fleet.devices"', '"fleet.device"'))
    with pytest.raises(InputError, match="device"):
        read_experiment(path, quick=True)


def test_without_the_folder_one_sentence_says_where_to_go(
    hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = hasfl("reproduce", "all")
    assert refused.code == 2
    assert "the folder experiments must be in the working folder" in refused.err


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rounds": None}, "rounds is missing"),
        ({"scenario_text": "[[["}, "scenario_text must be TOML, but is not"),
        ({"scenario_text": 5}, "scenario_text must be"),
        ({"environment": []}, "environment must be"),
        ({"rounds": [10**30] * 40}, "rounds[0] must be"),
        ({"clock": [1.0]}, "clock must have an entry for each of 40 evaluations"),
        ({"accuracy": ["high"] * 40}, "accuracy[0] must be"),
    ],
)
def test_a_spoilt_result_is_named(
    hasfl: Hasfl, folder: Path, changes: dict[str, object], sentence: str
) -> None:
    spoilt = save_result(Path("out") / TRAININGS, synthetic("tiny", "b=2+cut=1"))
    row = json.loads(spoilt.read_text()) | changes
    spoilt.write_text(json.dumps({name: value for name, value in row.items() if value is not None}))
    refused = hasfl("reproduce", "tiny", "--only-draw", "--out", "out")
    assert refused.code == 2
    assert f"{spoilt}: {sentence}" in refused.err
    assert refused.err.endswith("; remove the file, and hasfl reproduce trains it again\n")


def test_a_scenario_that_is_broken_is_named(folder: Path) -> None:
    scenario = folder / "experiments" / "scenarios" / "tiny.toml"
    scenario.write_text("[[[")
    with pytest.raises(InputError, match=r"tiny\.toml is not valid TOML"):
        read_experiment(folder / "experiments" / "tiny.toml", quick=False)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            'vary = ["fleet.devices"]',
            'vary = ["seed.x"]',
            "seed is not a section of a scenario, so it has no x",
        ),
        ("seeds = [0]", "seeds = [-1]", r"seeds\[0\] must be greater than or equal to 0"),
        ("seeds = [0]", "seeds = [0, 0]", "seeds and more_seeds must all be different"),
        (
            "accuracy = 0.1",
            "accuracy = 0.1\nmore_seeds = [1]",
            "for the strategies of the paper, but paper is",
        ),
    ],
)
def test_a_wrong_experiment_is_refused(folder: Path, old: str, new: str, sentence: str) -> None:
    path = folder / "experiments" / "tiny.toml"
    path.write_text(EXPERIMENT.replace(old, new))
    scenario = folder / "experiments" / "scenarios" / "tiny.toml"
    scenario.write_text("seed = 0\n" + SCENARIO)
    with pytest.raises(InputError, match=sentence):
        read_experiment(path, quick=True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--only-draw", "--on", "local:2"],
            "--only-draw does not train, so --on and --device have no effect",
        ),
        (
            ["--only-draw", "--device", "cpu"],
            "--only-draw does not train, so --on and --device have no effect",
        ),
        (["--out", "a-file"], "--out must be a folder, got a-file, which is a file"),
    ],
)
def test_options_that_cannot_be_meant(
    hasfl: Hasfl, folder: Path, arguments: list[str], sentence: str
) -> None:
    Path("a-file").write_text("")
    refused = hasfl("reproduce", "tiny", *arguments)
    assert refused.code == 2
    assert sentence in refused.err


def test_results_of_other_seeds_are_not_judged(hasfl: Hasfl, trained: Path) -> None:
    """The page is about the seeds that were asked for, as the figures are."""
    assert "| seeds | 0 (2 trainings) |" in (trained / "claims.md").read_text()
    assert hasfl("reproduce", "tiny", "--only-draw", "--seeds", "7", "--out", "out").code == 0
    assert "None of 2 trainings has a result yet." in (trained / "claims.md").read_text()


def test_a_result_that_is_kept_is_kept_once(folder: Path, trained: Path) -> None:
    """A job that is carried out again after its end finds the result, and no folder."""
    (tiny,) = read_experiments(["tiny"], folder / "experiments", quick=False)
    case = next(iter(tiny.cases()))
    path = trained / UNFINISHED / "gone"
    request = RunRequest.of(
        trained / "scenarios" / "tiny.toml",
        trained / UNFINISHED,
        strategy_name=case.strategy,
        seed=case.seed,
        name="gone",
        device=None,
    )
    KeepResult(trained, {path: case.key})(request)
