"""Follows a page as a reader does: runs its commands and its code, one after the other, in one folder."""

import importlib.util
import io
import re
import runpy
import shutil
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from hasfl.cli.main import app, main
from hasfl.runs.files import checked
from hasfl.runs.scenario import Scenario
from tests.shown import ROOT, SHELLS, Block

# Commands that no test follows, with the reason. Their verbs and options are checked all the same.
NOT_RUN = {
    r"hasfl serve (fed|edge|device)": "it runs until it is told to end; tests/deployment starts it",
    r"hasfl serve local": "tests/deployment/test_local.py runs it",
    r"hasfl (status|submit|clock) ?": "it needs a fed server, or a run on machines; tests/deployment has one",
    r"hasfl plan .*--serve": "it serves a page until it is told to end; tests/report has it",
    r"hasfl keys .*example\.org": "it makes the keys of an earlier command anew, for other addresses",
    r"hasfl export .*--to mlflow": "it needs a server; tests/runs/test_exports.py has one",
    r"hasfl reproduce": "it trains for minutes or hours; tests/reproduction has small experiments",
    r".*--on local": "it starts processes; tests/runs/places does too",
    r".*--on slurm": "it needs a cluster; tests/runs/places has one of its own",
    r".*--device cuda": "it needs a GPU",
    r".*package\.module": "the name stands for something of the reader's own",
}
OTHER_PROGRAMS = {"tensorboard": "it serves pages", "mlflow": "it serves pages", ".": "it is for a shell"}
OPTIONAL_PACKAGES = ("pandas",)  # of code that is shown; without them it is only compiled
OTHER_FILES = {"box1.toml": "options of hasfl serve"}  # TOML that is no scenario
ROUNDS, ROUNDS_TO_A_READING = 2, 15  # of trainings; plans can use what the demo and a reader's files measure
SHORTER = {option: ["--time-limit", "2"] for option in ("--why", "--html")}  # of many plans, some are made


@dataclass(frozen=True)
class Reader:
    """Somebody who follows a page in a folder with the examples."""

    folder: Path
    patch: pytest.MonkeyPatch

    @classmethod
    def at(cls, folder: Path, patch: pytest.MonkeyPatch) -> "Reader":
        """A reader in a folder with a copy of the examples, whose trainings are short."""
        shutil.copytree(ROOT / "examples", folder / "examples")
        for scenario in (folder / "examples").glob("*.toml"):
            rounds = ROUNDS_TO_A_READING if scenario.name == "demo.toml" else ROUNDS
            scenario.write_text(shortened(scenario.read_text(), rounds))
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        return cls(folder, patch)

    def follow(self, block: Block) -> None:
        """Do what a block is about."""
        if block.title is not None:
            (self.folder / block.title).write_text(shortened(block.text, ROUNDS_TO_A_READING))
        if block.language == "python":
            self._python(block)
        elif block.language == "toml" and block.title not in OTHER_FILES:
            checked(tomllib.loads(block.text), Scenario, source=block.at)
        elif block.language in SHELLS:
            for words in block.commands():
                self._command(words, block)

    def _python(self, block: Block) -> None:
        code = compile(block.text, block.at, "exec")
        missing = [each for each in OPTIONAL_PACKAGES if f"import {each}" in block.text and not _has(each)]
        if block.title is None and not missing:
            with own_modules_forgotten(self.folder):
                exec(code, {"__name__": "__main__"})

    def _command(self, words: Sequence[str], block: Block) -> None:
        program, *rest = words
        if program == "hasfl":
            if any(re.match(pattern, " ".join(words)) for pattern in NOT_RUN):
                parse(rest)
            else:
                self._hasfl(rest, block)
        elif program == "python" and rest[0] != "-m":
            assert (self.folder / rest[0]).exists(), block.at
            self.patch.setattr(sys, "argv", rest)
            with own_modules_forgotten(self.folder):
                runpy.run_path(rest[0], run_name="__main__")
        else:
            fault = what_is_wrong(words)
            assert fault is None, f"{block.at}: {fault}"

    def _hasfl(self, words: Sequence[str], block: Block) -> None:
        """Run a command; < and > are a file to read and a file to write."""
        given = [word for word in words if word not in ("<", ">")]
        for sign in ("<", ">"):
            if sign in words:
                given.remove(words[list(words).index(sign) + 1])
        printed = io.StringIO()
        with self.patch.context() as patch, own_modules_forgotten(self.folder):
            if "<" in words:
                read = (self.folder / words[list(words).index("<") + 1]).read_text()
                patch.setattr(sys, "stdin", io.StringIO(read))
            patch.setattr(sys, "stdout", printed)
            shorter = [word for option, more in SHORTER.items() if option in words for word in more]
            patch.setattr(sys, "argv", ["hasfl", *given, *shorter])
            with pytest.raises(SystemExit) as stop:
                main()
        assert not stop.value.code, f"{block.at}: hasfl {' '.join(words)} ended with {stop.value.code}"
        assert printed.getvalue(), f"{block.at}: hasfl {' '.join(words)} printed nothing"
        if ">" in words:
            (self.folder / words[list(words).index(">") + 1]).write_text(printed.getvalue())


def shortened(scenario: str, rounds: int) -> str:
    """A scenario whose training ends after so many rounds, and is warm after the first one."""
    text = re.sub(r"^rounds = \d+", f"rounds = {rounds}", scenario, flags=re.M)
    return re.sub(r"^warm_up = \d+", "warm_up = 1", text, flags=re.M)


def what_is_wrong(words: Sequence[str]) -> str | None:
    """What is wrong with a command of another program: a target, an extra or a module that is not there."""
    program, *rest = words
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
        wrong = [word for word in rest if word not in targets]
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        asked = [name for word in rest for name in re.findall(r"[\w,-]+(?=\])", word)]
        wrong = [extra for names in asked for extra in names.split(",") if extra not in extras]
    elif program == "python":
        wrong = [] if _has(rest[1]) else [rest[1]]
    else:
        wrong = [] if program in OTHER_PROGRAMS else [program]
    return f"{program} does not know {', '.join(wrong)}" if wrong else None


def command_of(words: Sequence[str]) -> tuple[Any, list[str]]:
    """The command that words begin with, and the other words."""
    command, left = get_command(app), list(words)
    while hasattr(command, "commands") and left and left[0] in command.commands:
        command = command.commands[left.pop(0)]
    return command, left


def parse(words: Sequence[str]) -> None:
    """Let the parser of the command line read words; nothing is run."""
    command, left = command_of(words)
    with command.make_context(words[0], left):
        pass


def unknown_options(words: Sequence[str]) -> list[str]:
    """What of a command in a sentence does not exist: its verb, or an option."""
    command, left = command_of(words)
    if hasattr(command, "commands") and left and re.fullmatch(r"[a-z]+", left[0]):
        return [left[0]]
    known = {option for parameter in command.params for option in parameter.opts}
    known |= {"-h", "--help", "--install-completion"}
    return [word for word in left if re.match(r"--?[a-z]", word) and word not in known]


@contextmanager
def own_modules_forgotten(folder: Path) -> Iterator[None]:
    """Afterwards, modules of this folder are imported anew."""
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
