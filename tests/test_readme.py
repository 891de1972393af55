"""What the README shows works as shown."""

import io
import re
import shlex
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
    assert len(SNIPPETS) == 2
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("code", SNIPPETS)
def test_code(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    command, _, standard_input = command.partition("<")
    if standard_input:
        monkeypatch.setattr(sys, "stdin", io.StringIO((ROOT / standard_input.strip()).read_text()))
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert capsys.readouterr().out
