"""The command `report`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from hasfl.cli.options import AsJson, require_page, wait_politely


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of runs, names of runs in runs, or folders that hold runs.", metavar="RUN..."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file to write (.html). Default: named after the run, or report.html for several runs.",
            metavar="FILE",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a page about one run or several runs, as one HTML file.

    The page says who converged when, where the time went, what the planner decided and how good that was,
    what was sent, who holds which labels, and how to train again. It opens without a network.

    Example: hasfl report runs/scenario-hasfl-seed0 runs/scenario-fl-seed0 --out comparison.html
    """
    wait_politely()
    if out is not None:
        require_page("--out", out)
    from rich.console import Console

    from hasfl.replacing import replace_file, write_text

    with Console(stderr=True).status("reading") as status:
        from hasfl.runs.reports import report_of  # imports torch, which takes seconds

        found = report_of(runs, status.update)
        sections, text = found.sections(), found.html()
    name = "report.html" if len(found.runs) > 1 else f"{found.runs[0].name}-report.html"
    file = Path(name) if out is None else out
    replace_file(file, lambda opened: write_text(opened, text), advice="the runs themselves are unchanged")
    if as_json:
        answers = {section.title: section.answer for section in sections}
        written = {"report": str(file), "bytes": len(text.encode()), "runs": [run.name for run in found.runs]}
        typer.echo(json.dumps({**written, "answers": answers}))
        return
    for section in sections:
        typer.echo(f"{section.title}\n  {section.answer.replace(chr(10), chr(10) + '  ')}")
    typer.echo(f"wrote {file} ({len(text.encode()) / 1e6:.1f} MB)")
