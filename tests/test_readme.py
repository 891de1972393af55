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
    if line.startswith("    hasfl ") and "package.module" not in line
]


def test_there_is_something_to_try() -> None:
    assert len(SNIPPETS) == 3
    assert len(COMMANDS) >= 13


@pytest.mark.parametrize("code", SNIPPETS)
def test_code(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize("command", COMMANDS)
def test_command(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a copy of the examples, where trainings end after two rounds."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for scenario in (tmp_path / "examples").glob("*.toml"):
        scenario.write_text(re.sub(r"^rounds = \d+", "rounds = 2", scenario.read_text(), flags=re.M))
    monkeypatch.chdir(tmp_path)
    command, _, standard_input = command.partition("<")
    if standard_input:
        monkeypatch.setattr(sys, "stdin", io.StringIO((ROOT / standard_input.strip()).read_text()))
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert capsys.readouterr().out


def test_the_example_of_training_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "train_from_python.py"))
    assert capsys.readouterr().out.count("virtual seconds") == 2 * 4
