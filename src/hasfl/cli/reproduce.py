"""The command `reproduce`."""

import json
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import hasfl
from hasfl.cli.options import PLACES, AsJson, Device, require_folder, seeds_of, wait_politely
from hasfl.errors import InputError

if TYPE_CHECKING:
    from reproduction.experiment import Experiment

# The default folder of results, by whether --quick is given.
OUT = {False: Path("runs/reproduced"), True: Path("runs/reproduced-quick")}


def reproduce(
    figures: Annotated[
        list[str],
        typer.Argument(help="all, or figures by name, as fig05 fig10.", metavar="FIGURE..."),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="Train a small model on digits instead, in minutes on two cores.")
    ] = False,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds, as 0,1,2, instead of those of the experiments.")
    ] = None,
    device: Device = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            help=f"{PLACES} Default: a process for each core, or one run after the other on a GPU.",
            metavar="PLACE",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The folder for results, figures and claims.md. Default: runs/reproduced, or "
            "runs/reproduced-quick."
        ),
    ] = None,
    only_draw: Annotated[
        bool, typer.Option("--only-draw", help="Do not train. Draw what the results in --out allow.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train what a figure of the paper compares, draw the figure, and judge the paper's claims.

    A finished training leaves a small file of results, and is not trained again. After an interruption, the
    same command goes on. The files in the folder experiments say what is trained.

    Example: hasfl reproduce fig05 --quick
    """
    wait_politely()
    _find_the_reproduction()
    from hasfl.report.canvas import require_matplotlib
    from reproduction.experiment import experiments_folder, read_experiments

    require_matplotlib()
    if only_draw and (on is not None or device is not None):
        raise InputError("--only-draw does not train, so --on and --device have no effect: leave them out")
    folder, place = experiments_folder(), out or OUT[quick]
    require_folder("--out", place)
    chosen = None if seeds is None else seeds_of(seeds)
    asked = read_experiments(figures, folder, quick=quick, seeds=chosen)
    if not only_draw:
        _train(asked, place, device, on)
    drawn = _draw(asked, folder, place, chosen)
    if as_json:
        typer.echo(json.dumps({"out": str(place), "files": [str(path) for path in drawn]}))
    else:
        typer.echo("\n".join(f"wrote {path}" for path in drawn))


def _find_the_reproduction() -> None:
    """Make the package `reproduction` importable, here and in processes that this one starts.

    The package is part of a clone of the repository, and is not installed.
    """
    found = find_spec("reproduction")
    clones = [Path.cwd(), Path(hasfl.__file__).parents[2]]
    if found is not None and found.origin is not None:
        clones = [Path(found.origin).parents[1]]
    clone = next((str(each) for each in clones if (each / "reproduction" / "__init__.py").is_file()), None)
    if clone is None:
        raise InputError(
            "hasfl reproduce needs the folder reproduction, which is not installed with hasfl: run it in a "
            "clone of the repository"
        )
    if clone not in sys.path:
        sys.path.append(clone)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*filter(None, paths), clone]))


def _train(experiments: "Sequence[Experiment]", out: Path, device: str | None, on: str | None) -> None:
    """Train the cases of the experiments that have no result yet."""
    from hasfl.cli.training_view import TrainingView
    from reproduction.training import cases_of, train_all, untrained

    cases = cases_of(experiments)
    left = untrained(cases, out)
    typer.echo(f"{len(cases)} trainings, {len(cases) - len(left)} of them are done", err=True)
    cores = len(os.sched_getaffinity(0))
    all_cores = f"local:{cores}" if device in (None, "cpu") and cores > 1 else None  # one by one on a GPU
    with TrainingView(runs=len(left)) as view:
        train_all(left, out, view, device=device, on=on or all_cores)


def _draw(
    experiments: "Sequence[Experiment]", folder: Path, out: Path, seeds: Sequence[int] | None
) -> list[Path]:
    """Draw the figures, and write the page of claims about all results in the folder."""
    from reproduction.claims import write_claims
    from reproduction.figures import write_figure
    from reproduction.results import Results
    from reproduction.training import TRAININGS

    results = Results.read(out / TRAININGS)
    pictures = [path for each in experiments for path in write_figure(each, results, out)]
    return [*pictures, write_claims(folder, results, out, quick=experiments[0].quick, seeds=seeds)]
