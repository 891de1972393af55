"""Commands about runs that are kept in folders: `runs` and `show`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hasfl.cli.records.completion import run_names
from hasfl.cli.training import AsJson

Run = Annotated[
    Path,
    typer.Argument(
        help="The folder of a run, or the name of a run in runs.", metavar="RUN", autocompletion=run_names
    ),
]


def runs(
    folder: Annotated[
        Path, typer.Argument(help="The folder that holds the folders of all runs.", metavar="[FOLDER]")
    ] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List all runs of a folder.

    A run is running, stopped, finished or broken. A stopped run goes on with `hasfl train --resume`, or on
    machines with `hasfl submit --resume`.

    Example: hasfl runs runs
    """
    from hasfl.cli.records.runs_view import show_runs
    from hasfl.runs.overview import runs_in, summary

    found = [summary(path) for path in runs_in(folder)]
    if as_json:
        typer.echo(json.dumps({"runs": [asdict(run) for run in found]}))
    else:
        show_runs(found, folder)


def show(
    run: Run,
    as_json: AsJson = False,
) -> None:
    """Show one run: what it is, how it ended, its files.

    Its last plan is shown by kind of device, and the commands that resume or export it are printed.

    Example: hasfl show runs/scenario-hasfl-seed0
    """
    from hasfl.cli.records.runs_view import commands, show_run
    from hasfl.runs.overview import details, find_run

    found = details(find_run(run))
    if as_json:
        described = asdict(found.summary) | {
            "path": str(found.path),
            "scenario": str(found.scenario_file),
            "result": found.result,
            "last": None if found.last is None else found.last.as_json(),
            "files": found.files,
            "commands": commands(found),
        }
        typer.echo(json.dumps(described))
    else:
        show_run(found)
