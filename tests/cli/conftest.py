"""Runs the command line as a user would, in this process."""

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
