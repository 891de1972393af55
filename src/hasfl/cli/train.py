"""The command `train`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hasfl.cli.options import (
    AsJson,
    Device,
    RunName,
    RunsFolder,
    ScenarioFile,
    Seed,
    StrategyName,
    wait_politely,
)
from hasfl.cli.tables import say, titled
from hasfl.errors import InputError
from hasfl.report.analysis import TEST_SET, Outcome
from hasfl.runs.store import CHECKPOINT, MODEL, RESULT, ROUNDS, TIMING, RunFolder
from hasfl.units import BITS_PER_BYTE, format_seconds, format_size

if TYPE_CHECKING:
    from hasfl.goal import Goal
    from hasfl.runs.dry_run import Forecast
    from hasfl.runs.request import RunRequest


def train(
    scenario: ScenarioFile,
    strategy: StrategyName = None,
    seed: Seed = None,
    run: RunName = None,
    out: RunsFolder = Path("runs"),
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue a stopped run from its last checkpoint, or a finished one with a higher budget in "
            "[stop].",
        ),
    ] = False,
    device: Device = None,
    picture: Annotated[
        Path | None, typer.Option(help="Save a picture of the plans over time in this file (.png or .svg).")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Do not train. Print how much memory training needs and how much is free."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model over a fleet in virtual time.

    A run is a folder with the scenario, a record of every round, a checkpoint, the model and the result.

    Example: hasfl train scenario.toml --strategy hasfl
    """
    wait_politely()
    from hasfl.cli.training_view import TrainingView
    from hasfl.report.figures import plan_over_time, require_drawable, save_figure
    from hasfl.runs.request import RunRequest

    if picture is not None:
        require_drawable(picture)
    request = RunRequest.of(scenario, out, strategy_name=strategy, seed=seed, name=run, device=device)
    if dry_run:
        _say_what_it_needs(request, as_json=as_json)
        return
    if resume and not request.path.exists():
        say_nothing_to_resume(request, named=run is not None)
    with TrainingView() as view:
        from hasfl.runs.run import carry_out  # imports torch, which takes seconds

        reached = carry_out(request, view, resume=resume)
    if picture is not None:
        names = request.scenario().draw().names
        save_figure(plan_over_time(RunFolder.open(request.path).records(), names), picture)
    if as_json:
        drawn = {} if picture is None else {"picture": str(picture)}
        result = RunFolder.open(request.path).result()
        typer.echo(json.dumps({"run": str(request.path), **drawn, **result}))
    else:
        show_outcome(reached, request.path, request.scenario().stop.goal(), picture)


def say_nothing_to_resume(request: "RunRequest", *, named: bool) -> None:
    """Raise InputError if a missing run was named; otherwise print that the run begins."""
    from hasfl.runs.overview import known_runs

    if named:
        raise InputError(f"there is no run {request.path} to resume: {known_runs(request.path.parent)}")
    typer.echo(f"there is no run {request.path} to resume, so it begins", err=True)


def _say_what_it_needs(request: "RunRequest", *, as_json: bool) -> None:
    from hasfl.runs.dry_run import forecast

    found = forecast(request)
    if not found.fits(found.first):
        needed, free = found.first.need.total / 2**30, found.available / 2**30
        raise InputError(
            f"training needs about {needed:.1f} GiB of memory, but {free:.1f} GiB are free: lower "
            "training.max_batch, cut earlier, or take fewer devices"
        )
    if as_json:
        typer.echo(json.dumps(asdict(found)))
    else:
        show_forecast(found)


def show_outcome(reached: Outcome, path: Path, goal: "Goal", picture: Path | None) -> None:
    """Print the outcome of a training: how it ended, the accuracy of the saved model, and the files."""
    say(
        Console(),
        f"{reached.strategy} {ending(reached, goal)} after {_many(reached.rounds, 'round')}, "
        f"{format_seconds(reached.seconds)} of virtual time and {_many(reached.samples, 'sample')}\n"
        f"{_how_good(reached)}\n{_by_device(reached)}"
        f"the run is in {path}: {MODEL} holds the model, {ROUNDS} a record of every round, "
        f"{RESULT} the result, {CHECKPOINT} what --resume goes on from, {TIMING} wall times"
        + ("" if picture is None else f"\nthe picture of the plans: {picture}"),
    )


def _how_good(reached: Outcome) -> str:
    """A sentence on the accuracy of the saved model."""
    model = f"the saved model, of round {reached.saved_round}, "
    if reached.accuracy is None or reached.best_accuracy is None:
        return f"{model}was not evaluated: there is no test set, and no samples are held out"
    without = "" if reached.measured_on == TEST_SET else " (there is no test set)"
    return (
        f"{model}has {reached.accuracy:.2%} on {reached.measured_on}{without}; the best evaluation had "
        f"{reached.best_accuracy:.2%}"
    )


def _by_device(reached: Outcome) -> str:
    """A line on the saved model's accuracy for single devices; empty without held-out samples."""
    if reached.mean_device_accuracy is None or reached.worst_device_accuracy is None:
        return ""
    return (
        f"on each device's own held-out samples, it has {reached.mean_device_accuracy:.2%} in the mean over "
        f"devices and {reached.worst_device_accuracy:.2%} on the worst device\n"
    )


def ending(reached: Outcome, goal: "Goal") -> str:
    """Words on why training ended."""
    held_out = reached.held_out_accuracy
    if goal.accuracy is not None and held_out is not None and held_out >= goal.accuracy:
        return f"reached {100 * goal.accuracy:g} % on held-out samples"
    lowest = reached.lowest_held_out_loss
    if goal.loss is not None and lowest is not None and lowest <= goal.loss:
        return f"reached the loss {goal.loss:.4g} on held-out samples"
    return "converged" if goal.converged and reached.converged else "used up its budget"


def _many(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def show_forecast(found: "Forecast") -> None:
    """Print the memory that a training would need, by purpose."""
    table = titled("Memory of a round")
    table.add_column("")
    rounds = {"the first round": found.first, "the largest that may follow": found.largest}
    for name in rounds:
        table.add_column(name, justify="right")
    table.add_row("samples", *(f"{each.samples:,}" for each in rounds.values()))
    table.add_row("private layers", *(str(each.depth) for each in rounds.values()))
    for part in asdict(found.first.need):
        sizes = [getattr(each.need, part) for each in rounds.values()]
        table.add_row(part, *(format_size(BITS_PER_BYTE * size) for size in sizes))
    table.add_row("in all", *(format_size(BITS_PER_BYTE * each.need.total) for each in rounds.values()))
    table.add_row("free", *[format_size(BITS_PER_BYTE * found.available)] * len(rounds))
    console = Console()
    console.print(table)
    if not found.fits(found.largest):
        say(
            console,
            "the first round fits, but the largest one that the strategy may choose does not: lower "
            "training.max_batch to be safe",
        )
