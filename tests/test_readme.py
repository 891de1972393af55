"""What the README shows works as shown."""

import io
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from hasfl.cli.main import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.S)
COMMANDS = [
    line.split("#")[0].strip()
    for line in README.splitlines()
    if line.startswith("    hasfl ") and "package.module" not in line and "serve local" not in line
]  # tests/deployment/test_local.py runs serve local


IN_ORDER = [command for command in COMMANDS if "examples/demo.toml" in command]  # each needs those before it


def test_there_is_something_to_try() -> None:
    assert len(SNIPPETS) == 3
    assert len(COMMANDS) >= 13


@pytest.mark.parametrize("code", SNIPPETS)
def test_code(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(code, "README.md", "exec"), {})


def copy_examples(folder: Path, rounds: int) -> None:
    """Copy the examples; their trainings end after so many rounds, and are warm after the first one."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    for scenario in (folder / "examples").glob("*.toml"):
        text = re.sub(r"^rounds = \d+", f"rounds = {rounds}", scenario.read_text(), flags=re.M)
        scenario.write_text(re.sub(r"^warm_up = \d+", "warm_up = 1", text, flags=re.M))


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in IN_ORDER])
def test_command(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a copy of the examples, where trainings end after two rounds."""
    copy_examples(tmp_path, rounds=2)
    monkeypatch.chdir(tmp_path)
    command, _, standard_input = command.partition("<")
    if standard_input:
        monkeypatch.setattr(sys, "stdin", io.StringIO((ROOT / standard_input.strip()).read_text()))
    few_seconds = ["--time-limit", "2"] if "--why" in command else []  # of the many upgrades, try some
    monkeypatch.setattr(sys, "argv", [*shlex.split(command), *few_seconds])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert capsys.readouterr().out


def test_commands_that_need_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plan, measure, and plan with what was measured; the first reading is in round 15."""
    copy_examples(tmp_path, rounds=15)
    monkeypatch.chdir(tmp_path)
    printed = []
    for command in IN_ORDER:
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code
        printed.append(capsys.readouterr().out)
    assert ["of training = " in out for out in printed] == [False, False, True]


def test_the_example_of_training_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "train_from_python.py"))
    assert capsys.readouterr().out.count("virtual seconds") == 2 * 4
