"""What users see and get, written down, so that a change of structure is told from a change of behaviour.

    python -m tests.golden FOLDER          # write all of it, to compare two versions on one machine
    python -m tests.golden tests/golden    # write what `tests/test_golden.py` compares with; review the diff

Records of small trainings, `--help` of every command, `--json` outputs, and the text of pages.
"""

import contextlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tomli_w
import torch
from typer.main import get_command

from hasfl.cli.main import app, main
from hasfl.deployment.keys import make_keys
from hasfl.runs.files import parse_toml
from hasfl.runs.scenario import Scenario
from tests.deployment.fleets import fleet_of
from tests.deployment.test_equality import SCENARIO as SCENARIO_OF_A_FLEET
from tests.deployment.test_equality import stock_of

ROOT = Path(__file__).parents[1]
STORED = Path(__file__).parent / "golden"
SCENARIO: Mapping[str, Any] = {
    "seed": 3,
    "data": {"name": "digits", "partition": "shards"},
    "training": {"strategy": "hasfl", "learning_rate": 0.05, "interval": 5, "evaluate_every": 10},
    "stop": {"rounds": 30},
    "fleet": {"devices": 6, "up_rate": ["10 Mbps", "80 Mbps"]},
}
# What each training changes in the scenario.
TRAININGS: Mapping[str, Mapping[str, Any]] = {
    "hasfl-sgd": {},
    "hasfl-bcd-momentum": {"training": {"strategy": "hasfl-bcd", "optimizer": "momentum"}},
    "rbs+rms-adam": {"training": {"strategy": "rbs+rms", "optimizer": "adam", "learning_rate": 0.003}},
    "fl-schedule": {
        "training": {
            "strategy": "fl",
            "weight_decay": 0.001,
            "clip": 1.0,
            "schedule": "cosine",
            "serve": "last",
        }
    },
    "reference": {"training": {"engine": "reference", "strategy": "b=3+hams", "optimizer": "adamw"}},
    "resumed": {
        "training": {"strategy": "habs+rms", "participation": 0.5},
        "world": {"rates": "walk", "step": 0.3, "bound": 4.0},
    },
}
FIRST_ROUNDS = 13  # of the training that is resumed: within an interval
PLANS = ("table1.toml", "measured.toml", "demo.toml", "wide.toml")


def hasfl(*words: object) -> str:
    """What the command line prints."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with (
            patch.object(sys, "argv", ["hasfl", *map(str, words)]),
            patch.dict(os.environ, {"COLUMNS": "100"}),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            main()
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(err.getvalue()) from None
    return out.getvalue()


def merged(given: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A scenario with other values in its sections."""
    return {**given, **{name: {**given.get(name, {}), **section} for name, section in changes.items()}}


def trained(name: str) -> Path:
    """The run folder of a training, in the working folder."""
    scenario, path = merged(SCENARIO, TRAININGS[name]), Path(f"{name}.toml")
    if name == "resumed":
        path.write_text(tomli_w.dumps(merged(scenario, {"stop": {"rounds": FIRST_ROUNDS}})))
        hasfl("train", path, "--run", name)
    path.write_text(tomli_w.dumps(scenario))
    hasfl("train", path, "--run", name, *(["--resume"] if name == "resumed" else []))
    return Path("runs", name)


def records(name: str) -> str:
    """The records of a training."""
    return (trained(name) / "rounds.jsonl").read_text()


# What the records of a fleet say without the seconds that machines took.
LEARNT_ON_A_FLEET = (
    "round", "devices", "batch_sizes", "cuts", "loss", "accuracy", "held_out_accuracy", "held_out_loss",
)  # fmt: skip


def over_loopback() -> str:
    """What devices, an edge server and a fed server learn over TLS on this machine."""
    text = SCENARIO_OF_A_FLEET.format(rounds=9, participation=1.0)
    Path("scenario.toml").write_text(text)
    stock = stock_of(parse_toml(text, Scenario, "scenario"), torch.float32, Path())
    make_keys(Path("keys"), devices=[f"box{i}" for i in range(4)], fed=["127.0.0.1"], edge=["127.0.0.1"])
    with fleet_of(Path("keys"), Path(), stock) as fleet:
        fleet.train(Path("scenario.toml"), Path("fleet"))
    lines = [json.loads(line) for line in Path("fleet", "rounds.jsonl").read_text().splitlines()]
    return "".join(json.dumps({key: line[key] for key in LEARNT_ON_A_FLEET}) + "\n" for line in lines)


def helps() -> str:
    """`--help` of every command."""

    def commands(group: Any, *path: str) -> Iterator[tuple[str, ...]]:
        yield path
        for word, command in getattr(group, "commands", {}).items():
            yield from commands(command, *path, word)

    return "\n".join(hasfl(*path, "--help") for path in commands(get_command(app)))


def planned(scenario: str) -> str:
    """`hasfl plan --json` of an example."""
    return json.dumps(
        {**json.loads(hasfl("plan", ROOT / "examples" / scenario, "--json")), "seconds": None}, indent=1
    )


def page_text(page: str) -> str:
    """The text of a page without its scripts and styles, and the names of the data that its scripts draw."""
    text = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text)).strip() + "\n"


def plan_page() -> str:
    hasfl("plan", ROOT / "examples" / "demo.toml", "--html", "plan.html")
    return page_text(Path("plan.html").read_text())


def report_page() -> str:
    run = trained("hasfl-sgd")
    hasfl("report", run, "--out", "report.html")
    return page_text(Path("report.html").read_text())


THINGS: Mapping[str, Callable[[], str]] = {
    **{f"records/{name}.jsonl": partial(records, name) for name in TRAININGS},
    "records/over-loopback.jsonl": over_loopback,
    **{f"plans/{name}.json": partial(planned, name) for name in PLANS},
    "help.txt": helps,
    "pages/plan.txt": plan_page,
    "pages/report.txt": report_page,
}


def written(thing: str) -> str:
    """One of the things, made in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return THINGS[thing]()


if __name__ == "__main__":
    target = Path(sys.argv[1]).resolve()
    shutil.rmtree(target, ignore_errors=True)
    for thing in THINGS:
        (target / thing).parent.mkdir(parents=True, exist_ok=True)
        (target / thing).write_text(written(thing), encoding="utf-8")
