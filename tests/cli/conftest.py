"""Runs the command line as a user would, in this process."""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from hasfl.cli.main import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Hasfl = Callable[..., Outcome]
COLUMNS = "100"


@pytest.fixture
def hasfl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Hasfl:
    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["hasfl", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", COLUMNS)
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return Outcome(int(stop.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def terminal(hasfl: Hasfl, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """What a terminal shows while a command runs, line after line, each state of a live line too."""

    def run(*arguments: object, columns: int = 100) -> list[str]:
        monkeypatch.setattr("tests.cli.conftest.COLUMNS", str(columns))
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
        shown = hasfl(*arguments)
        assert shown.code == 0, shown.err
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.err).replace("\r", "\n").split("\n")

    return run
