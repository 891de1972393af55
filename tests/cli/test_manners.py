"""What every command does for its user: help, completion, progress, a sentence where a package is missing."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hasfl.cli.compare import _names
from hasfl.cli.training_view import TrainingView
from tests.cli.conftest import Hasfl
from tests.lanes import quick_then_slow
from tests.runs.scenarios import files, rounds, write

HERE = ("plan", "profile", "data", "train", "compare", "runs", "show", "export", "report", "doctor")
COMMANDS = (*HERE, "keys", "serve", "submit", "status", "clock")
QUICK = {"training.strategy": '"sfl"'}


def test_short_and_long_help(hasfl: Hasfl) -> None:
    for command in ((), *((each,) for each in COMMANDS)):
        short, long = hasfl(*command, "-h"), hasfl(*command, "--help")
        assert (short.code, short.out) == (0, long.out)
        assert "Usage: " in short.out
        assert "\\[" not in short.out, "help is plain text"
    assert all(command in hasfl("-h").out for command in COMMANDS)
    assert "cuda:1" in hasfl("train", "-h").out


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("fl", ["fl"]),
        ("hasfl,fl", ["hasfl", "fl"]),
        ("hasfl;fl", ["hasfl", "fl"]),
        ("sfl:b=16,cut=2", ["sfl:b=16,cut=2"]),
        ("hasfl,sfl:b=16,cut=2,fl", ["hasfl", "sfl:b=16,cut=2", "fl"]),
        ("hasfl; sfl:cut=2, b=16; fl;", ["hasfl", "sfl:cut=2, b=16", "fl"]),
        ("b=16+hams,b=4+cut=2,fl:b=3", ["b=16+hams", "b=4+cut=2", "fl:b=3"]),
        ("sl:b=4,cut=2,b=4+cut=2", ["sl:b=4,cut=2", "b=4+cut=2"]),
        ("own.module:strategy,fl", ["own.module:strategy", "fl"]),
    ],
)
def test_names_of_strategies(text: str, names: list[str]) -> None:
    assert _names(text) == names


WITHOUT = """
import sys
sys.modules |= dict.fromkeys({packages!r})
from hasfl.cli.main import main
for command in {commands!r}:
    sys.argv = ["hasfl", *command]
    try:
        main()
    except SystemExit as stop:
        print("code", stop.code or 0, file=sys.stderr, flush=True)
"""


def without(packages: str | Sequence[str], *commands: tuple[object, ...]) -> list[tuple[int, str]]:
    """The exit code and the standard error of commands where a package, or several, are not installed."""
    words = [[str(word) for word in command] for command in commands]
    code = WITHOUT.format(packages=[packages] if isinstance(packages, str) else [*packages], commands=words)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    parts = re.split(r"code (\d+)\n", done.stderr)
    return [(int(code), said) for said, code in zip(parts[::2], parts[1::2], strict=False)]


def test_without_torch(hasfl: Hasfl, tmp_path: Path) -> None:
    scenario = write(tmp_path, QUICK)
    assert hasfl("train", scenario, "--out", tmp_path / "runs").code == 0
    before = files(tmp_path)
    new, run = ("--out", tmp_path / "new"), tmp_path / "runs" / "small-sfl-seed0"
    *others, listing, shown, as_json = without(
        "torch",
        ("train", scenario, *new),
        ("train", scenario, *new, "--dry-run"),
        ("data", scenario),
        ("compare", scenario, *new),
        ("export", run, "--to", "onnx"),
        ("runs", run.parent),
        ("show", run),
        ("show", run, "--json"),
    )
    assert others == [(2, "hasfl: this command needs torch: pip install 'hasfl[train]'\n")] * 5
    assert [listing, shown, as_json] == [(0, "")] * 3
    assert files(tmp_path) == before


def test_without_matplotlib_nothing_is_trained_for_a_picture(tmp_path: Path) -> None:
    scenario, new = write(tmp_path, QUICK), ("--out", tmp_path / "new")
    picture = ("--picture", tmp_path / "a.png")
    commands = [
        ("compare", scenario, *new),
        ("train", scenario, *new, *picture),
        ("data", scenario, *picture),
    ]
    for outcome in without("matplotlib", *commands):
        assert outcome == (2, "hasfl: drawing a picture needs matplotlib: pip install 'hasfl[train]'\n")
    assert files(tmp_path) == ["small.toml"]


def test_progress_is_labelled_from_the_beginning(
    terminal: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the second run of a comparison begins without numbers of the first."""
    refresh = TrainingView.prepares

    def seen(view: TrainingView, step: str) -> None:
        refresh(view, step)
        view.progress.refresh()

    monkeypatch.setattr(TrainingView, "prepares", seen)
    compare = ("compare", write(tmp_path), "--out", tmp_path, "--strategies", "sfl,fl")
    lines = terminal(*compare, columns=120)
    for k, name in enumerate(("sfl", "fl"), start=1):
        own = [line for line in lines if line.startswith(f"{k} of 2: {name} ")]
        for step in ("loading digits", "cutting small-cnn", "planning"):
            shown = [line for line in own if line.rstrip().endswith(step)]
            assert shown
            assert "%" not in shown[0]
        assert re.search(r"round 4 · accuracy \d+\.\d% · virtual .* · done", own[-1])


def test_every_file_is_named_at_the_end(hasfl: Hasfl, tmp_path: Path) -> None:
    train = ("train", write(tmp_path, QUICK), "--out", tmp_path / "runs", "--picture", tmp_path / "plans.png")
    done = hasfl(*train)
    assert done.code == 0, done.err
    run = tmp_path / "runs" / "small-sfl-seed0"
    kept = {"scenario.toml", "settings.json", "environment.json", "lock"}  # what it was begun with
    for file in set(files(run)) - kept:
        assert file in done.out
    assert str(run) in done.out
    assert str(tmp_path / "plans.png") in done.out
    printed = json.loads(hasfl(*train, "--resume", "--json").out)
    assert (printed["run"], printed["picture"]) == (str(run), str(tmp_path / "plans.png"))
    compared = hasfl(
        "compare", tmp_path / "small.toml", "--out", tmp_path / "runs", "--strategies", "sfl"
    ).out
    assert str(tmp_path / "runs" / "small-accuracy.png") in compared
    assert f"the runs are in {tmp_path / 'runs'}" in compared


def test_without_a_terminal_there_is_a_plain_line_now_and_then(
    hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ("train", write(tmp_path, QUICK), "--out", tmp_path)
    assert not [line for line in hasfl(*train).err.splitlines() if line.startswith("round ")]
    monkeypatch.setattr("hasfl.cli.training_view.PLAIN_SECONDS", 0.0)
    lines = hasfl(*train, "--seed", 1).err.splitlines()
    told = [line for line in lines if re.match(r"round \d/4 · loss \d\.\d+.* · virtual .* m?s$", line)]
    assert len(told) == 4


@pytest.mark.parametrize("name", quick_then_slow(["rbs+rms", "hasfl", "sfl:b=4", "sl"], quick=1))
def test_a_dry_run_counts_the_largest_round(hasfl: Hasfl, tmp_path: Path, name: str) -> None:
    """No round of the training has more samples or more private layers."""
    train = ("train", write(tmp_path), "--out", tmp_path, "--run", "run", "--strategy", name)
    said = json.loads(hasfl(*train, "--dry-run", "--json").out)
    assert said["largest"]["need"]["activations"] >= said["first"]["need"]["activations"]
    assert hasfl(*train).code == 0
    recorded = rounds(tmp_path / "run")
    assert said["first"]["samples"] == sum(recorded[0]["batch_sizes"])
    assert said["largest"]["samples"] >= max(sum(row["batch_sizes"]) for row in recorded)
    assert said["largest"]["depth"] >= max(max(row["cuts"]) for row in recorded)
    if name in ("sfl:b=4", "sl"):
        assert said["largest"] == said["first"]
