"""Arguments and options of several commands, and the shell's completions for them."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from hasfl.errors import InputError

PAGES = (".html", ".htm")
PLACES = (
    "Train several runs at the same time: local:N in N processes of this machine, slurm as jobs of a "
    "cluster, with options as slurm:partition=gpu,time=60,gpus=1."
)


def run_names(incomplete: str) -> list[str]:
    """The runs whose names begin with `incomplete`, in the folder `runs` or in the folder that it names."""
    from hasfl.runs.overview import RUNS, runs_in

    folder, slash, _ = incomplete.rpartition("/")
    place = Path(folder or "/") if slash else RUNS
    if not place.is_dir():
        return []
    return _beginning(incomplete, (f"{folder}{slash}{path.name}" for path in runs_in(place)))


def strategy_names(incomplete: str) -> list[str]:
    """The strategies whose names begin with `incomplete`; after a comma, completes the last of a list."""
    from hasfl.planning.strategies.catalogue import STRATEGIES

    before, comma, begun = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _beginning(begun, STRATEGIES)]


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


ScenarioFile = Annotated[Path, typer.Argument(help="A scenario (.toml).", metavar="SCENARIO")]
RunsFolder = Annotated[Path, typer.Option("--out", help="The folder that holds the folders of all runs.")]
Device = Annotated[
    str | None,
    typer.Option(
        help="The processor that trains, as cpu, cuda or cuda:1, instead of the scenario's training.device."
    ),
]
StrategyName = Annotated[
    str | None,
    typer.Option(
        help="A strategy instead of the scenario's training.strategy.", autocompletion=strategy_names
    ),
]
Seed = Annotated[int | None, typer.Option(min=0, help="A seed instead of the scenario's seed.")]
RunName = Annotated[
    str | None,
    typer.Option(help="The name of the run's folder. Default: made of scenario, strategy and seed."),
]
On = Annotated[
    str | None, typer.Option("--on", help=f"{PLACES} Default: one after the other.", metavar="PLACE")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Run = Annotated[
    Path,
    typer.Argument(
        help="The folder of a run, or the name of a run in runs.", metavar="RUN", autocompletion=run_names
    ),
]


def seeds_of(text: str) -> list[int]:
    """The seeds in a text with commas between them."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and len(part) <= 9 for part in parts):
        raise InputError(f"--seeds must be whole numbers with commas between, as 0,1,2; got {text!r}")
    return [int(part) for part in parts]


def wait_politely() -> None:
    """Let idle threads sleep instead of spin; must be called before torch is imported."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def require_page(option: str, file: Path) -> None:
    """Raise InputError unless `file` ends with .html, is no folder, and lies in a folder that exists."""
    if file.suffix.lower() not in PAGES:
        raise InputError(f"{option} must be a file that ends with .html, got {file}")
    if file.is_dir():
        raise InputError(f"{option} must be a file, got {file}, which is a folder: name a file in it")
    if not file.parent.is_dir():
        raise InputError(f"{option} must be in a folder that exists, got {file}: make {file.parent} first")


def require_folder(option: str, folder: Path) -> None:
    """Raise InputError if `folder` is a file; it need not exist."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{option} must be a folder, got {folder}, which is a file: name another folder")
