"""What all commands have in common: an example that works, JSON for machines, completion in a shell."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from hasfl.cli.main import app
from tests.cli.conftest import Hasfl
from tests.runs.scenarios import rounds, write

SERVING = (
    "serve fed",
    "serve edge",
    "serve device",
)  # they run until they are told to end, and have no result


def all_commands(group: Any = None, before: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command with its words, those of groups too."""
    for name, command in (group or get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from all_commands(command, (*before, name))
        else:
            yield " ".join((*before, name)), command


COMMANDS = dict(all_commands())


def example(words: str) -> list[str]:
    """The words of the example at the end of a command's help."""
    lines = [line.strip() for line in (COMMANDS[words].help or "").strip().splitlines()]
    assert lines[-1].startswith(f"Example: hasfl {words}"), f"hasfl {words} -h must end with an example"
    return shlex.split(lines[-1].removeprefix("Example: hasfl "))


@pytest.mark.parametrize("words", COMMANDS)
def test_every_help_ends_with_an_example_that_the_parser_takes(hasfl: Hasfl, words: str) -> None:
    arguments = example(words)[len(words.split()) :]
    with COMMANDS[words].make_context(words, arguments) as context:
        assert context.params
    assert f"Example: hasfl {words}" in hasfl(*words.split(), "--help").out


def test_the_examples_do_what_they_say(hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one folder, one after the other, as a user tries them."""
    pytest.importorskip("tensorboardX")
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"stop.rounds": "2"}, name="scenario")
    for words in ("profile", "plan", "data", "train", "compare", "runs", "show", "export", "keys", "doctor"):
        done = hasfl(*example(words))
        assert done.code == 0, (words, done.err)
        assert done.out
    assert len(rounds(tmp_path / "runs" / "scenario-hasfl-seed0")) == 2
    assert (tmp_path / "samples" / "test.npz").exists()
    assert (tmp_path / "runs" / "scenario-hasfl-seed0" / "tensorboard").is_dir()


@pytest.mark.parametrize("words", COMMANDS)
def test_every_result_can_be_had_as_json(words: str) -> None:
    options = {option for parameter in COMMANDS[words].params for option in parameter.opts}
    assert ("--json" in options) == (words not in SERVING)


def test_json_of_exports_and_keys(hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scenario = write(tmp_path, {"training.strategy": '"sfl"', "stop.rounds": "2"})
    assert hasfl("train", scenario).code == 0
    run = Path("runs/small-sfl-seed0")
    printed = json.loads(hasfl("export", run, "--to", "state-dict", "--json").out)
    assert printed == {"format": "state-dict", "wrote": str(run / "model.pt")}
    servers = ("--fed", "127.0.0.1", "--edge", "127.0.0.1")
    made = json.loads(hasfl("keys", "keys", "--devices", 2, *servers, "--json").out)["folders"]
    assert [Path(each["folder"]) for each in made] == [
        Path("keys", part) for part in ("ca", "fed", "edge", "devices/device-0", "devices/device-1")
    ]
    assert all(Path(each["folder"]).is_dir() for each in made)
    added = json.loads(hasfl("keys", "keys", "--devices", 1, "--add", "--json").out)
    assert added == {"folders": [{"folder": "keys/devices/device-2", "owner": "to device 2"}]}


def completed(hasfl: Hasfl, monkeypatch: pytest.MonkeyPatch, words: str) -> list[str]:
    """What bash is offered for the last word."""
    monkeypatch.setenv("_HASFL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    offered = hasfl().out.split()
    monkeypatch.delenv("_HASFL_COMPLETE")
    return offered


def test_completion_of_names(hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert completed(hasfl, monkeypatch, "hasfl tr") == ["train"]
    assert completed(hasfl, monkeypatch, "hasfl train --dry") == ["--dry-run"]
    assert completed(hasfl, monkeypatch, "hasfl show sm") == []
    scenario = write(tmp_path, {"stop.rounds": "1"})
    for name in ("sfl", "fl"):
        assert hasfl("train", scenario, "--strategy", name).code == 0
    both = ["small-fl-seed0", "small-sfl-seed0"]
    assert completed(hasfl, monkeypatch, "hasfl show sm") == both
    assert completed(hasfl, monkeypatch, "hasfl export small-s") == both[1:]
    assert completed(hasfl, monkeypatch, "hasfl clock runs/small") == [f"runs/{name}" for name in both]
    assert completed(hasfl, monkeypatch, "hasfl train x.toml --strategy rbs+") == [
        "rbs+hams",
        "rbs+rms",
        "rbs+rms-alike",
        "rbs+rhams",
    ]
    assert completed(hasfl, monkeypatch, "hasfl submit x.toml --strategy hasfl-") == ["hasfl-bcd"]
    assert completed(hasfl, monkeypatch, "hasfl compare x.toml --strategies fl,hasfl-") == ["fl,hasfl-bcd"]


def test_completion_is_installed_for_the_shell_in_use(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("hasfl")
    if not program.exists():
        pytest.skip("hasfl is not installed as a program")
    done = subprocess.run(
        ["bash", "-c", f"{shlex.quote(str(program))} --install-completion; true"],
        env=os.environ | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "bash completion installed" in done.stdout, done.stderr
    assert "_HASFL_COMPLETE=complete_bash" in (tmp_path / ".bash_completions" / "hasfl.sh").read_text()
