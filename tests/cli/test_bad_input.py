"""Wrong inputs, as a user would give them: exit code 2, one line that says what to do, and no new file.

A case is a scenario with some keys changed, and a command. Where a case has no command, it is `hasfl train`.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Hasfl
from tests.runs.scenarios import CONSTANTS, PIS, files, write

AWAY = '[[absence]]\ndevice = "{}"\nfirst_round = {}\nlast_round = {}\n'
OWN = """
import torch
from torch import nn

def broken():
    raise ValueError("two\\nlines")

def number():
    return 7

def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""

# A key of the small scenario, another value, and what the line must say.
KEYS = [
    (
        "training.intervall",
        "3",
        "small.toml: training.intervall is not a known field: did you mean interval?",
    ),
    ("trainning.interval", "3", "trainning is not a known field"),
    ("fleet.devices", "{ number = 3 }", "fleet.devices must be"),
    ("training.interval", '"2"', "training.interval must be a valid integer"),
    ("stop.rounds", "2.5", "stop.rounds must be a valid integer"),
    ("training.learning_rate", "nan", "training.learning_rate must be a finite number"),
    ("training.learning_rate", "0.0", "training.learning_rate must be a finite number"),
    ("stop.rounds", "0", "stop.rounds must be a whole number from 1 to 1,000,000,000"),
    ("stop.accuracy", "90", "stop.accuracy must be above 0 and at most 1"),
    ("model.name", '""', "model.name must not be empty: leave it out, or give a value"),
    ("data.name", '""', "data.name must not be empty"),
    ("training.strategy", '""', "training.strategy must not be empty"),
    ("training.loss", '""', "training.loss must not be empty"),
    ("data.alpha", "0.1", 'data.alpha has no effect without partition = "dirichlet": leave it out'),
    ("data.shards_per_device", "3", 'data.shards_per_device has no effect without partition = "shards"'),
    ("world.step", "0.1", 'world.step has no effect without rates = "walk"'),
    ("world.come_back", "0.5", "world.come_back has no effect without leave"),
    ("world.trace", '"rates.csv"', "world.rates = "),
    ("world.rates", '"trace"', "belong together: give both"),
    ("data.folder", '"~nobody-here/data"', "names the home folder of a user whom this machine does not know"),
    ("data.name", '"digit"', "there is no data set 'digit'"),
    ("data.folder", '"none"', "none does not exist"),
    ("data.name", '"none.npz"', "none.npz"),
    ("data.name", '"text.npz"', "text.npz"),
    ("model.name", '"vgg19"', "unknown model 'vgg19'"),
    (
        "model.name",
        '"vgg16"',
        "takes samples of 3x32x32 in float32, but those of digits are 1x8x8 in float32",
    ),
    ("model.profile", '"costs.json"', "training needs the model: set model.name"),
    ("model.classes", "5", "model.classes must be at least 10"),
    ("model.name", '"nowhere:model"', "cannot find model 'nowhere:model'"),
    ("model.name", '"own:broken"', "failed: ValueError: two lines"),
    ("model.name", '"own:number"', "model 'own:number' must return a module"),
    ("training.strategy", '"hasfk"', "strategy 'hasfk' is not known: did you mean 'hasfl'"),
    ("training.strategy", '"own:nothing"', "cannot find strategy 'own:nothing'"),
    ("training.optimizer", '"adam2"', "training.optimizer must be one of"),
    ("training.device", '"tpu"', "training.device must be"),
    ("training.target", "0.0", "training.target must be a finite number above 0"),
    ("data.held_out", "0.9", "small.toml: data.held_out must be from 0 to 0.5"),
    ("fleet.memory", '"4 Mbps"', "fleet.memory"),
    ("fleet.memory", '"1 KiB"', "than its 1 KiB at batch size"),
    ("fleet.devices", "5000", "5000 devices cannot each hold one of 1438 samples"),
]
# Several changed keys, tables after them, and what the line must say.
SCENARIOS: dict[str, tuple[dict[str, str], str, str]] = {
    "no end": (
        {"stop.rounds": "", "stop.converged": "false"},
        "",
        "stop: training would never end: give rounds, seconds, accuracy or another condition",
    ),
    "too few samples in the budget": (
        {"stop.samples": "3", "training.strategy": '"sfl"'},
        "",
        "the budget allows no round",
    ),
    "a bound without a walk": (
        {"world.bound": "2.0", "world.rates": '"redrawn"'},
        "",
        'world.bound has no effect without rates = "walk"',
    ),
    "a trace that is not there": ({"world.rates": '"trace"', "world.trace": '"none.csv"'}, "", "cannot read"),
    "a trace of nobody": (
        {"world.rates": '"trace"', "world.trace": '"~nobody-here/rates.csv"'},
        "",
        "names the home folder of a user whom this machine does not know: write the whole path",
    ),
    "a norm for a model of one's own": (
        {"model.name": '"own:plain"', "model.norm": '"group"'},
        "",
        "takes no norm",
    ),
    "constants of unequal length": (
        {},
        CONSTANTS.replace("20, ", ""),
        "constants.moment_of has 5 entries but constants.variance_of",
    ),
    "constants of another model": (
        {},
        CONSTANTS.replace("20, ", "").replace("1, ", ""),
        "has 1 layers but small-cnn has 5",
    ),
    "constants of two kinds": (
        {},
        CONSTANTS + "noise = 3.0\n",
        "constants: give either the paper's constants",
    ),
    "an error without constants": ({}, "[constants]\nnoise_error = 0.1\n", "constants.rounds is missing"),
    "a target with measured constants": (
        {"training.target": "0.1", "training.constants": '"measured"'},
        "",
        "small.toml: the target ε belongs to the paper's constants",
    ),
    "nothing held out, but judged": (
        {"data.held_out": "0.0", "stop.accuracy": "0.9"},
        "",
        "small.toml: data.held_out must be above 0",
    ),
    "converged, but judged too often": (
        {"stop.converged": "true", "training.evaluate_every": "1"},
        "",
        "small.toml: training.evaluate_every must be at least the interval",
    ),
    "redrawn, but listed": (
        {"fleet.devices": "", "world.rates": '"redrawn"'},
        PIS,
        "but the devices are listed",
    ),
    "drawn and listed": ({}, PIS, "small.toml: give either [[device]] entries or fleet.devices"),
    "memory that is too small for a cut": (
        {"fleet.memory": '"1 KiB"', "training.strategy": '"sfl"'},
        "",
        "has 1 KiB of memory, but cut 1 needs",
    ),
    "a device twice": ({"fleet.devices": ""}, PIS + PIS, "fleet.names must differ"),
    "an absence of nobody": (
        {},
        AWAY.format(9, 2, 3),
        "absence of device '9': the fleet has no device of that name",
    ),
    "an absence backwards": (
        {},
        AWAY.format(1, 3, 2),
        "absence[0].last_round of device '1' must be at least its first_round, 3, got 2: swap the two",
    ),
    "nobody is left": (
        {},
        "".join(AWAY.format(k, 2, 4) for k in (1, 2, 3, 4)),
        "the schedule leaves no device in round 2",
    ),
    "absences by chance and by list": (
        {"world.leave": "0.1"},
        AWAY.format(1, 2, 3),
        "[[absence]] entries or",
    ),
    "more samples than a share": (
        {"data.partition": '"shards"', "data.samples": "800"},
        "",
        "samples must be at most",
    ),
    "not TOML": ({}, "[model\n", "small.toml is not valid TOML"),
    "a key twice": ({}, "seed = 1\nseed = 2\n", "small.toml is not valid TOML"),
}

# A command, and words that its error must have. {s} stands for the scenario file, {o} for a folder.
COMMANDS: dict[str, tuple[str, str]] = {
    "no command's name": ("trian {s}", "No such command 'trian'"),
    "no scenario": ("train --out {o}", "Missing argument 'SCENARIO'"),
    "no such scenario": ("train none.toml --out {o}", "cannot read none.toml: No such file or directory"),
    "a folder as scenario": ("train . --out {o}", "cannot read .: Is a directory"),
    "a scenario in bytes": ("train text.bin --out {o}", "it is not text in UTF-8"),
    "no such option": ("train {s} --sed 1", "No such option"),
    "a slash": ("train {s} --out {o} --run a/b", "--run must be a folder's name without slashes, got 'a/b'"),
    "the folder above": ("train {s} --out {o} --run ..", "--run must be a folder's name"),
    "a hidden folder": ("train {s} --out {o} --run .a", "without a dot at its beginning, got '.a'"),
    "an empty name": ("train {s} --out {o} --run=", "--run must be the name of a folder, got an empty name"),
    "a name of two lines": ("train {s} --out {o} --run a\nb", "without control characters, got 'a\\nb'"),
    "a bell in a name": ("train {s} --out {o} --run a\x07", "without control characters, got 'a\\x07'"),
    "a long name": (
        "train {s} --out {o} --run " + 300 * "x",
        "at most 200 bytes, got 300: give a shorter one",
    ),
    "a negative seed": ("train {s} --seed -1", "--seed"),
    "a seed in words": ("train {s} --seed one", "--seed"),
    "an unknown strategy": ("train {s} --out {o} --strategy sfll", "did you mean 'sfl'?"),
    "a cut too far": ("train {s} --out {o} --strategy sfl:cut=9", "cut must be at most 5"),
    "a batch too large": ("train {s} --out {o} --strategy b=1000+cut=2", "is above max_batch, which is 8"),
    "an option twice": ("train {s} --strategy fl:b=2,b=3", "takes the options b, each once"),
    "a processor": ("train {s} --out {o} --device tpu", "device must be"),
    "a run that is not there": ("train {s} --out {o} --run typo --resume", "there is no run"),
    "a picture in PDF": ("train {s} --out {o} --picture a.pdf", "is written as .png or .svg"),
    "a picture nowhere": (
        "train {s} --out {o} --picture none/a.png",
        "the folder of none/a.png does not exist",
    ),
    "seeds in words": (
        "compare {s} --out {o} --seeds one",
        "--seeds must be whole numbers with commas between",
    ),
    "negative seeds": ("compare {s} --out {o} --seeds 0,-1", "--seeds must be whole numbers"),
    "no seeds": ("compare {s} --out {o} --seeds=", "--seeds must be whole numbers"),
    "a seed twice": ("compare {s} --out {o} --seeds 0,0", "every strategy and every seed must be given once"),
    "no strategies": (
        "compare {s} --out {o} --strategies=",
        "--strategies must be names with commas between",
    ),
    "a comma at the end": (
        "compare {s} --out {o} --strategies fl,",
        "--strategies must be names with commas",
    ),
    "an unknown one of two": ("compare {s} --out {o} --strategies fl,xyz", "strategy 'xyz' is not known"),
    "a strategy twice": (
        "compare {s} --out {o} --strategies fl,fl",
        "every strategy and every seed must be given once, got fl, fl with seeds 0",
    ),
    "a comparison in PDF": (
        "compare {s} --out {o} --strategies fl --picture a.pdf",
        "written as .png or .svg",
    ),
    "a comparison of runs elsewhere": (
        "compare {s} --out text.bin",
        "text.bin must be a folder, but is a file",
    ),
    "no folder of runs": ("runs none", "none must be a folder with runs, but does not exist"),
    "no run": ("show none", "none must be the folder of a run, but is not there"),
    "a folder that is no run": ("show .", ". must be the folder of a run, but has none of a run's files"),
    "an export of nothing": ("export none --to onnx", "none"),
    "a plan of nothing": ("plan none.toml", "cannot read none.toml"),
    "a plan of a picture": ("plan a.png", "expected a scenario (.toml), a problem (.json) or -"),
    "a profile of nothing": ("profile nothing", "unknown model 'nothing'"),
    "a shape in words": ("profile small-cnn --input big", "--input must be the shape of one sample"),
    "too many classes": ("profile vgg16 --classes 99999999999", "classes"),
    "data of no scenario": ("data none.toml", "cannot read none.toml"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a module of the user's, and files that are not what they seem."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "text.npz").write_text("not an archive")
    (tmp_path / "text.bin").write_bytes(np.arange(256, dtype=np.uint8).tobytes())
    return tmp_path


def require_one_line(hasfl: Hasfl, folder: Path, arguments: list[str], expected: str) -> str:
    """The line that says what is wrong; before it, only steps of the preparation are told."""
    before = files(folder)
    done = hasfl(*arguments)
    assert (done.code, done.out) == (2, ""), done
    *steps, said = done.err.splitlines()
    assert said.startswith("hasfl: "), done.err
    assert all(step.startswith(("loading ", "cutting ", "planning")) for step in steps), done.err
    assert expected in said
    assert files(folder) == before
    return said


@pytest.mark.parametrize(
    ("changes", "tables", "expected"),
    [pytest.param({key: value}, "", said, id=f"{key}={value}") for key, value, said in KEYS]
    + [pytest.param(*values, id=case) for case, values in SCENARIOS.items()],
)
def test_a_wrong_scenario(
    hasfl: Hasfl, folder: Path, changes: dict[str, str], tables: str, expected: str
) -> None:
    scenario = write(folder, changes, tables)
    said = require_one_line(hasfl, folder, ["train", str(scenario), "--out", str(folder / "runs")], expected)
    assert str(scenario) in said or [*changes] == ["training.strategy"]


@pytest.mark.parametrize("case", COMMANDS)
def test_a_wrong_command(hasfl: Hasfl, folder: Path, case: str) -> None:
    command, expected = COMMANDS[case]
    names = {"s": str(write(folder)), "o": str(folder / "runs")}
    arguments = [word.format(**names) for word in command.split(" ")]
    require_one_line(hasfl, folder, arguments, expected)
