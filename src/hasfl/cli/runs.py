"""The commands `runs` and `show`: list all runs of a folder, or show one run in detail."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hasfl.cli.announcements import forecast_in_words, plan_in_words
from hasfl.cli.options import AsJson, Run
from hasfl.cli.tables import every, say, titled
from hasfl.cli.train import ending
from hasfl.record import RoundRecord
from hasfl.report.analysis import HELD_OUT, Outcome
from hasfl.runs.store import CHECKPOINT, ENVIRONMENT, MODEL, RESULT, ROUNDS, SCENARIO, SETTINGS, TIMING
from hasfl.units import BITS_PER_BYTE, format_seconds, format_size

if TYPE_CHECKING:
    from hasfl.runs.overview import RunDetails, RunSummary

STYLES = {"running": "bold green", "stopped": "yellow", "finished": "", "broken": "bold red"}
LEAST_WIDTH = 12  # least width of a column of names, in characters; longer names are broken
GAP, EDGE = 2, 1  # characters between columns, and at the left edge of the table
STATE, VIRTUAL, WALL = "state", "virtual\ntime", "wall\ntime"
FOLDED = ("run", "strategy")  # columns whose cells may have several lines
# Columns that a narrow terminal hides, in this order.
LEFT_OUT_FIRST = (WALL, VIRTUAL, "seed", "rounds", "accuracy")
MEANING = {
    SCENARIO: "the scenario",
    SETTINGS: "what the command chose",
    ENVIRONMENT: "versions and hardware",
    ROUNDS: "a record of every round",
    TIMING: "wall time of every round",
    CHECKPOINT: "what --resume goes on from",
    MODEL: "weights of the trained model",
    RESULT: "the result",
}


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


def show_runs(runs: Sequence["RunSummary"], folder: Path) -> None:
    """Print a table with a row for each run."""
    console = Console()
    if not runs:
        say(console, f"there are no runs in {folder}")
        return
    tables = (_table(runs, folder, LEFT_OUT_FIRST[:hidden]) for hidden in range(len(LEFT_OUT_FIRST) + 1))
    fitting = (table for table in tables if _least_width(table) <= console.width)
    console.print(next(fitting, None) or _table(runs, folder, LEFT_OUT_FIRST))
    if any(map(_mark, runs)):
        say(console, "* on held-out samples, because there was no test set")
    for run in runs:
        if run.fault is not None:
            say(console, f"{run.run} is broken: {run.fault}")


def _mark(run: "RunSummary") -> str:
    """The mark of an accuracy that was measured on held-out samples; else empty."""
    return "*" if run.measured_on == HELD_OUT and run.accuracy is not None else ""


def _table(runs: Sequence["RunSummary"], folder: Path, hidden: Sequence[str]) -> Table:
    """A table with a row for each run, without the hidden columns."""
    table = titled(f"Runs in {escape(str(folder))}", padding=(0, 1, 0, 0))
    rows = [_cells(run) for run in runs]
    for column in (each for each in rows[0] if each not in hidden):
        width = max(*(len(word) for word in column.split()), *(row[column].cell_len for row in rows))
        if column in FOLDED:
            table.add_column(column, overflow="fold", min_width=min(width, LEAST_WIDTH))
        else:
            justify: JustifyMethod = "left" if column == STATE else "right"
            table.add_column(column, justify=justify, no_wrap=True, min_width=width)
    for row in rows:
        table.add_row(*(cell for column, cell in row.items() if column not in hidden))
    return table


def _least_width(table: Table) -> int:
    """The least width of a table, in characters."""
    return EDGE + sum(GAP + (column.min_width or 0) for column in table.columns)


def _cells(run: "RunSummary") -> Mapping[str, Text]:
    """The cells of a run's row, by column; a broken run has only its name and state."""
    known = {
        "strategy": run.strategy or "",
        "seed": str(run.seed),
        "rounds": f"{run.rounds:,}",
        "accuracy": "" if run.accuracy is None else f"{run.accuracy:.2%}{_mark(run)}",
        VIRTUAL: format_seconds(run.seconds),
        WALL: format_seconds(run.elapsed_seconds),
    }
    cells = {name: Text(cell if run.fault is None else "") for name, cell in known.items()}
    return {"run": Text(run.run), STATE: Text(run.state, STYLES[run.state]), **cells}


def show_run(run: "RunDetails") -> None:
    """Print the facts about a run: settings, state, last plan, files, and commands for it."""
    console = Console()
    say(console, run.summary.run, "bold")
    say(console, f"  {_what_it_is(run)}")
    say(console, f"  {_how_it_stands(run)}")
    if run.last is not None:
        say(console, f"  plan of round {run.last.round}: {_plan(run, run.last)}")
    if run.forecast is not None:
        say(console, f"  {forecast_in_words(run.forecast)}")
    console.print(_files(run))
    for what, command in commands(run).items():
        say(console, f"  {what}: {command}")
    if not run.scenario_file.exists():
        say(console, f"  {run.scenario_file} is gone; {run.path / SCENARIO} is a copy of it")


def _plan(run: "RunDetails", last: RoundRecord) -> str:
    """The plan of the last round in words; devices of a run on machines are numbered."""
    if last.measured is not None:
        return plan_in_words(last.plan, [f"device {i}" for i in last.devices], of=len(last.devices))
    fleet = run.scenario.draw()
    return plan_in_words(last.plan, fleet.only(last.devices).names, of=len(fleet))


def _on_machines(run: "RunDetails") -> bool:
    return run.last is not None and run.last.measured is not None


def _what_it_is(run: "RunDetails") -> str:
    scenario, training = run.scenario, run.scenario.training
    devices = "a fleet of machines" if _on_machines(run) else f"{len(scenario.draw())} devices"
    return (
        f"{run.summary.strategy} with seed {run.summary.seed}: {scenario.model_name} on "
        f"{scenario.data_name}, {devices}, {training.optimizer} with learning rate "
        f"{training.learning_rate:g}, an aggregation {every(training.interval)}"
    )


def _how_it_stands(run: "RunDetails") -> str:
    summary = run.summary
    how: str = summary.state
    if run.result is not None:
        known = {field.name for field in fields(Outcome)}
        reached = Outcome(**{name: value for name, value in run.result.items() if name in known})
        how = ending(reached, run.scenario.stop.goal())
    accuracy = (
        "" if summary.accuracy is None else f"; accuracy {summary.accuracy:.2%} on {summary.measured_on}"
    )
    return (
        f"{how} after {summary.rounds:,} rounds, {format_seconds(summary.seconds)} of virtual time and "
        f"{format_seconds(summary.elapsed_seconds)} of wall time{accuracy}"
    )


def _files(run: "RunDetails") -> Table:
    table = titled(f"Files in {escape(str(run.path))}")
    for file, size in run.files.items():
        if file in MEANING or file.startswith("model."):
            table.add_row(
                escape(file), format_size(BITS_PER_BYTE * size), MEANING.get(file, "an exported model")
            )
    table.show_header = False
    return table


def commands(run: "RunDetails") -> Mapping[str, str]:
    """The commands that resume, export or lengthen a run, by purpose; only those that can succeed."""
    if run.summary.state == "running":
        return {}
    resume = [
        "hasfl",
        "submit" if _on_machines(run) else "train",
        str(run.scenario_file),
        "--out",
        str(run.path.parent),
    ]
    resume += ["--run", run.path.name, "--resume", "--strategy", str(run.summary.strategy)]
    resume += ["--seed", str(run.summary.seed)]
    has_checkpoint = CHECKPOINT in run.files or run.summary.rounds == 0
    can_go_on = has_checkpoint and run.scenario_file.exists()
    if run.summary.state == "finished":
        export = {"export": shlex.join(["hasfl", "export", str(run.path), "--to", "state-dict"])}
        return export | ({"train longer, after raising [stop]": shlex.join(resume)} if can_go_on else {})
    return {"resume": shlex.join(resume)} if can_go_on else {}
