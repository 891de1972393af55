"""What a report says in words and numbers, and how `hasfl report` is used."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.record import RoundRecord
from hasfl.report.analysis import ComparedRun, Comparison, Spread, ranked
from hasfl.report.page.columns import evenly, slider_positions
from hasfl.report.page.report import convergence_in_words
from tests.cli.conftest import Hasfl
from tests.report.runs import evaluated
from tests.report.trained_runs import data_of, train
from tests.runs.scenarios import PIS, files, rounds, sentence


def run(strategy: str, records: list[RoundRecord], *, seed: int = 0) -> ComparedRun:
    return ComparedRun(strategy=strategy, seed=seed, state="finished", records=records, goal=None)


RISING = [0.2, 0.5, 0.7, 0.8]
SLOW = [run("slow", evaluated(RISING, seconds=s), seed=k) for k, s in enumerate((6.0, 10.0))]
FAST = [run("fast", evaluated([*RISING, 0.9], seconds=2.0))]


def test_strategies_are_compared_where_the_worst_of_them_came() -> None:
    runs = [*SLOW, *FAST]
    comparison = Comparison.of(runs)
    assert comparison.level is not None
    assert comparison.level.accuracy == 0.8
    slow, fast = comparison.rows
    assert (fast.seconds, fast.rounds) == (Spread.of([8.0]), Spread.of([4.0]))
    assert slow.seconds == Spread(low=24.0, mean=32.0, high=40.0)
    assert (fast.times_as_long, slow.times_as_long) == (1.0, 4.0)
    assert [runs[k].strategy for k in ranked(runs)] == ["fast", "slow", "slow"]
    assert convergence_in_words(runs, comparison) == (
        "fast was first to reach what all reach, 80 % of the test set right, after 8 s of virtual time and "
        "4 rounds. That is 4 times sooner than slow. "
        "By the paper's rule none of the 3 runs converged, so accuracies may still rise."
    )


def test_a_run_that_stays_where_it_is_has_converged() -> None:
    flat = [run("flat", evaluated([*RISING, *[0.8] * 5]))]
    assert convergence_in_words(flat, Comparison.of(flat)).endswith("rule it converged after 9 s.")


@given(count=st.integers(1, 4000), most=st.integers(4, 300), changes=st.sets(st.integers(0, 3999)))
def test_long_runs_are_thinned_evenly(count: int, most: int, changes: set[int]) -> None:
    kept = evenly(count, most)
    assert len(kept) <= most
    assert {0, count - 1} <= set(kept.tolist())
    steps = np.diff(kept)
    assert not steps.size or steps.max() - steps.min() <= 1
    new = sorted(each for each in changes if each < count)
    shown = set(slider_positions(count, new, most).tolist())
    assert len(shown) <= most
    assert {0, count - 1} <= shown
    if len(new) <= most // 2:
        assert set(new) <= shown


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("trained"), "hasfl", {"fleet.devices": ""}, PIS)


def test_the_numbers_are_those_of_the_run(hasfl: Hasfl, trained: Path, tmp_path: Path) -> None:
    before = files(trained.parent)
    done = hasfl("report", trained, "--out", tmp_path / "one.html", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    text = (tmp_path / "one.html").read_text()
    assert (told["runs"], told["bytes"]) == (["hasfl-0"], len(text.encode()))
    assert list(told["answers"]) == [
        "Did it converge?",
        "Where did the time go?",
        "What did the planner decide?",
        "How good is the plan?",
        "What went over the wire?",
        "Who holds which labels?",
        "How to run it again?",
    ]
    (run,), rows = data_of(text)["runs"], rounds(trained)
    assert sum(run["steps"].values()) == pytest.approx(rows[-1]["clock"])
    assert run["bits"] == pytest.approx(
        {arrow: sum(row["bits"].get(arrow, 0.0) for row in rows) for arrow in run["bits"]}
    )
    assert run["curves"]["loss"]["value"] == pytest.approx([row["loss"] for row in rows], rel=1e-4)
    assert run["plans"]["batch"][-1] == rows[-1]["batch_sizes"]
    assert run["plans"]["cut"][-1] == rows[-1]["cuts"]
    assert run["quality"]["lower_bound"] <= run["quality"]["best"] <= run["quality"]["objective"]
    assert sum(map(sum, data_of(text)["labels"]["counts"])) > 1000  # nearly all of the 1,437 digits
    assert files(trained.parent) == before  # a report only reads


def test_a_run_without_rounds_has_a_report(hasfl: Hasfl, trained: Path, tmp_path: Path) -> None:
    young = Path(shutil.copytree(trained, tmp_path / "young"))
    for file in ("result.json", "rounds.jsonl", "timing.jsonl"):
        (young / file).unlink()
    done = hasfl("report", young, "--out", tmp_path / "young.html")
    assert done.code == 0, done.err
    assert "The run has not been evaluated yet" in done.out
    assert data_of((tmp_path / "young.html").read_text())["runs"][0]["shown"] == []


def test_wrong_requests_end_with_a_sentence_and_write_nothing(
    hasfl: Hasfl, trained: Path, tmp_path: Path
) -> None:
    assert "--out must be a file that ends with .html" in sentence(
        hasfl("report", trained, "--out", "page.txt")
    )
    assert "nowhere" in sentence(hasfl("report", tmp_path / "nowhere", "--out", tmp_path / "page.html"))
    there = tmp_path / "there.html"
    there.mkdir()
    assert "there.html" in sentence(hasfl("report", trained, "--out", there))
    assert "make" in sentence(hasfl("report", trained, "--out", tmp_path / "none" / "page.html"))
    assert files(tmp_path) == ["there.html"]
