"""Prints runs: all of a folder in a table, or one with all that is known of it."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hasfl.cli.plans.story import in_words
from hasfl.cli.tables import titled
from hasfl.cli.training_view import ending
from hasfl.reporting.metrics import Outcome
from hasfl.reporting.store import CHECKPOINT, ENVIRONMENT, MODEL, RESULT, ROUNDS, SCENARIO, SETTINGS, TIMING
from hasfl.runs.overview import RunDetails, RunSummary
from hasfl.units import BITS_PER_BYTE, format_seconds, format_size

STYLES = {"running": "bold green", "stopped": "yellow", "finished": "", "broken": "bold red"}
LEAST_WIDTH = 16  # characters of a run's name before it is broken
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


def show_runs(runs: Sequence[RunSummary], folder: Path) -> None:
    """Print one line for each run."""
    console = Console()
    if not runs:
        console.print(f"there are no runs in {escape(str(folder))}", highlight=False, soft_wrap=True)
        return
    table = titled(f"Runs in {escape(str(folder))}", padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold", min_width=LEAST_WIDTH)
    table.add_column("state", no_wrap=True)
    table.add_column("strategy", overflow="fold")
    for column in ("seed", "rounds", "accuracy", "virtual\ntime", "wall\ntime"):
        table.add_column(column, justify="right", no_wrap=True)
    for run in runs:
        style = STYLES[run.state]
        state = f"[{style}]{run.state}[/]" if style else run.state
        table.add_row(escape(run.run), state, *([] if run.fault else _cells(run)))
    console.print(table)
    for run in runs:
        if run.fault is not None:
            console.print(
                f"{escape(run.run)} is broken: {escape(run.fault)}", highlight=False, soft_wrap=True
            )


def _cells(run: RunSummary) -> tuple[str, ...]:
    return (
        escape(str(run.strategy)),
        str(run.seed),
        f"{run.rounds:,}",
        "" if run.accuracy is None else f"{run.accuracy:.2%}",
        format_seconds(run.seconds),
        format_seconds(run.elapsed_seconds),
    )


def show_run(run: RunDetails) -> None:
    """Print what a run is, how it ended, its last plan, its files, and the commands that go with it."""
    console = Console()

    def say(sentence: str) -> None:
        console.print(escape(sentence), highlight=False, soft_wrap=True)

    console.print(f"[bold]{escape(run.summary.run)}[/]", highlight=False, soft_wrap=True)
    say(f"  {_what_it_is(run)}")
    say(f"  {_how_it_stands(run)}")
    if run.last is not None:
        names = run.scenario.draw().only(run.last.devices).names
        say(f"  plan of round {run.last.round}: {in_words(run.last.plan, names)}")
    console.print(_files(run))
    for what, command in commands(run).items():
        say(f"  {what}: {command}")
    if not run.scenario_file.exists():
        say(f"  {run.scenario_file} is gone; {run.path / SCENARIO} is a copy of it")


def _what_it_is(run: RunDetails) -> str:
    scenario, training = run.scenario, run.scenario.training
    return (
        f"{run.summary.strategy} with seed {run.summary.seed}: {scenario.model_name} on "
        f"{scenario.data_name}, {len(scenario.draw())} devices, {training.optimizer} with learning rate "
        f"{training.learning_rate:g}, an aggregation every {training.interval} rounds"
    )


def _how_it_stands(run: RunDetails) -> str:
    summary = run.summary
    how: str = summary.state
    if run.result is not None:
        known = {field.name for field in fields(Outcome)}
        reached = Outcome(**{name: value for name, value in run.result.items() if name in known})
        how = ending(reached, run.scenario.stop.goal())
    accuracy = "" if summary.accuracy is None else f"; accuracy {summary.accuracy:.2%} on the test set"
    return (
        f"{how} after {summary.rounds:,} rounds, {format_seconds(summary.seconds)} of virtual time and "
        f"{format_seconds(summary.elapsed_seconds)} of wall time{accuracy}"
    )


def _files(run: RunDetails) -> Table:
    table = titled(f"Files in {escape(str(run.path))}")
    for file, size in run.files.items():
        if file in MEANING or file.startswith("model."):
            table.add_row(
                escape(file), format_size(BITS_PER_BYTE * size), MEANING.get(file, "an exported model")
            )
    table.show_header = False
    return table


def commands(run: RunDetails) -> Mapping[str, str]:
    """The commands that a person may want next, by what they do."""
    resume = ["hasfl", "train", str(run.scenario_file), "--out", str(run.path.parent)]
    resume += ["--run", run.path.name, "--resume", "--strategy", str(run.summary.strategy)]
    resume += ["--seed", str(run.summary.seed)]
    if run.summary.state == "finished":
        export = ["hasfl", "export", str(run.path), "--to", "onnx"]
        return {"export": shlex.join(export), "train longer, after raising [stop]": shlex.join(resume)}
    return {} if run.summary.state == "running" else {"resume": shlex.join(resume)}
