"""The commands `train`, `compare` and `data`."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hasfl.cli.records.completion import strategy_names
from hasfl.errors import InputError, naming

if TYPE_CHECKING:
    from hasfl.arrays import IntN
    from hasfl.data.dataset import Dataset
    from hasfl.runs.comparison import Contest
    from hasfl.runs.request import RunRequest

ScenarioFile = Annotated[Path, typer.Argument(help="A scenario (.toml).", metavar="SCENARIO")]
RunsFolder = Annotated[Path, typer.Option("--out", help="The folder that holds the folders of all runs.")]
Device = Annotated[
    str | None,
    typer.Option(
        help="The processor that trains, as cpu, cuda or cuda:1, instead of the scenario's training.device."
    ),
]
PLACES = (
    "Train several runs at the same time: local:N in N processes of this machine, slurm as jobs of a "
    "cluster, with options as slurm:partition=gpu,time=60,gpus=1."
)
On = Annotated[
    str | None, typer.Option("--on", help=f"{PLACES} Default: one after the other.", metavar="PLACE")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
# A comma is inside a name if an option such as cut=2 follows, but not a pair such as b=4+cut=2.
BETWEEN_NAMES = r";|,(?!\s*(?:b|cut)=[^+,;]*(?:[,;]|$))"
PAPER = "hasfl,rbs+hams,habs+rms,rbs+rms,rbs+rhams"


def train(
    scenario: ScenarioFile,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="A strategy instead of the scenario's training.strategy.", autocompletion=strategy_names
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="A seed instead of the scenario's seed.")] = None,
    run: Annotated[
        str | None,
        typer.Option(help="The name of the run's folder. Default: made of scenario, strategy and seed."),
    ] = None,
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
    from hasfl.cli.training_view import TrainingView, show_outcome
    from hasfl.report.figures import require_drawable
    from hasfl.runs.request import RunRequest
    from hasfl.runs.scenario import read_scenario
    from hasfl.runs.store import RunFolder

    if picture is not None:
        require_drawable(picture)
    asked = read_scenario(scenario)
    request = RunRequest.of(
        scenario,
        out,
        strategy_name=asked.training.strategy if strategy is None else strategy,
        seed=asked.seed if seed is None else seed,
        name=run,
        device=device,
    )
    if dry_run:
        _say_what_it_needs(request, as_json=as_json)
        return
    if resume and not request.path.exists():
        say_nothing_to_resume(request, named=run is not None)
    with TrainingView() as view:
        from hasfl.runs.run import carry_out  # brings torch, which takes seconds to import

        reached = carry_out(request, view, resume=resume)
    drawn = {} if picture is None else {"picture": str(_draw_plans(request, picture))}
    if as_json:
        result = RunFolder.open(request.path).result()
        typer.echo(json.dumps({"run": str(request.path), **drawn, **result}))
    else:
        show_outcome(reached, request.path, asked.stop.goal(), picture)


def say_nothing_to_resume(request: "RunRequest", *, named: bool) -> None:
    """A run that was named must be there; any other begins."""
    from hasfl.runs.overview import known_runs

    if named:
        raise InputError(f"there is no run {request.path} to resume: {known_runs(request.path.parent)}")
    typer.echo(f"there is no run {request.path} to resume, so it begins", err=True)


def _draw_plans(request: "RunRequest", picture: Path) -> Path:
    from hasfl.report.figures import plan_over_time, save_figure
    from hasfl.runs.store import RunFolder

    names = request.scenario().draw().names
    save_figure(plan_over_time(RunFolder.open(request.path).records(), names), picture)
    return picture


def compare(
    scenario: ScenarioFile,
    strategies: Annotated[
        str,
        typer.Option(
            help="Names of strategies, with commas or semicolons between them, as hasfl,sfl:b=16,cut=2,fl. "
            "A comma before b= or cut= belongs to the name.",
            autocompletion=strategy_names,
        ),
    ] = PAPER,
    seeds: Annotated[str | None, typer.Option(help="Seeds, as 0,1,2. Default: the scenario's seed.")] = None,
    out: RunsFolder = Path("runs"),
    picture: Annotated[
        Path | None,
        typer.Option(
            help="Save the picture of accuracy against time in this file (.png or .svg). Default: a .png "
            "file in the folder of --out, named after the scenario."
        ),
    ] = None,
    device: Device = None,
    on: On = None,
    as_json: AsJson = False,
) -> None:
    """Train several strategies and compare accuracies and times.

    If the scenario has a stop.accuracy, the times to this accuracy are compared. Otherwise the converged
    accuracies and times are compared. Finished runs are used again, and stopped runs are resumed.

    Example: hasfl compare scenario.toml --strategies hasfl,sfl,fl
    """
    wait_politely()
    from hasfl.cli.training_view import TrainingView
    from hasfl.report.canvas import require_matplotlib
    from hasfl.report.figures import require_drawable
    from hasfl.runs.scenario import read_scenario

    drawn = picture or out / f"{scenario.stem}-accuracy.png"
    require_matplotlib()
    if picture is not None:
        require_drawable(drawn)
    asked = read_scenario(scenario)
    names, chosen = _names(strategies), [asked.seed] if seeds is None else seeds_of(seeds)
    with TrainingView(runs=len(names) * len(chosen)) as view:
        from hasfl.runs.comparison import compare as contests_of  # brings torch

        contests = contests_of(scenario, out, names, chosen, view, device=device, on=on)
    if asked.stop.accuracy is None:
        _tell_convergence(contests, drawn, as_json=as_json)
    else:
        _tell_race(contests, asked.stop.accuracy, drawn, as_json=as_json)
    if not as_json:
        typer.echo(f"the runs are in {out}; `hasfl runs {out}` lists them")


def _tell_convergence(contests: "Sequence[Contest]", drawn: Path, *, as_json: bool) -> None:
    """Draw and print where each strategy converged."""
    from hasfl.cli.comparison_view import convergence_rows, show_convergence
    from hasfl.report.figures import accuracy_against_time, save_figure

    save_figure(accuracy_against_time(contests[0].runs, contests[0].seed), drawn)
    rows = convergence_rows(contests)
    if as_json:
        typer.echo(json.dumps({"picture": str(drawn), "strategies": [asdict(row) for row in rows]}))
    else:
        show_convergence(rows, [contest.seed for contest in contests], drawn)


def _tell_race(contests: "Sequence[Contest]", goal: float, drawn: Path, *, as_json: bool) -> None:
    """Draw and print when each strategy reached the goal."""
    from hasfl.cli.comparison_view import race_rows, show_race
    from hasfl.report.figures import race_picture, save_figure
    from hasfl.runs.comparison import last_plan

    save_figure(race_picture(contests[0].runs, goal, contests[0].seed), drawn)
    rows = race_rows(contests, goal)
    if as_json:
        summary = {"picture": str(drawn), "goal": goal, "strategies": [asdict(row) for row in rows]}
        typer.echo(json.dumps(summary))
    else:
        show_race(rows, goal, last_plan(contests[0]), drawn)


def data(
    scenario: ScenarioFile,
    picture: Annotated[
        Path | None,
        typer.Option(
            help="Save a picture of the classes that each device holds in this file (.png or .svg)."
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--export",
            help="Write the samples of each device into a .npz file of this folder, and the test set into "
            "test.npz. hasfl serve device and hasfl serve edge take such files.",
            metavar="DIR",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how many samples of each class every device holds.

    If samples have several labels, or labels that are no classes, only the samples are counted.

    Example: hasfl data scenario.toml --export samples
    """
    from hasfl.cli.shares_view import show_shares
    from hasfl.data.partition import label_counts, sample_counts
    from hasfl.report.figures import save_figure, who_holds_what
    from hasfl.runs.scenario import read_scenario
    from hasfl.runs.task import shared_data

    asked = read_scenario(scenario)
    with naming(str(scenario)):
        fleet = asked.draw()
        dataset, shares = shared_data(asked, fleet.names, folder=scenario.parent)
    names = dataset.class_names if dataset.one_class_each else ()
    counts = label_counts(shares, dataset.y_train.numpy(), len(names)) if names else sample_counts(shares)
    if picture is not None:
        if not names:
            raise InputError(
                f"a picture shows classes, but samples of {dataset.name} do not have one class each"
            )
        save_figure(who_holds_what(counts, names), picture)
    files = [] if to is None else _export(dataset, shares, fleet.names, to)
    if as_json:
        held = dict(zip(fleet.names, counts.tolist(), strict=True))
        drawn = {} if picture is None else {"picture": str(picture)}
        written = {"files": [str(file) for file in files]} if files else {}
        typer.echo(json.dumps({"classes": names, "samples": held, **drawn, **written}))
        return
    show_shares(dataset.name, fleet.names, counts, names, picture)
    if files:
        typer.echo(
            f"wrote the samples of {len(fleet)} devices into {to}, {files[0].name} to {files[-2].name}, and "
            f"{len(dataset.y_test):,} samples to test on into {files[-1].name}"
        )


def _export(dataset: "Dataset", shares: "Sequence[IntN]", names: Sequence[str], folder: Path) -> list[Path]:
    from hasfl.deployment.samples import export_samples

    return export_samples(dataset, shares, names, folder)


def _say_what_it_needs(request: "RunRequest", *, as_json: bool) -> None:
    from hasfl.cli.training_view import show_forecast
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


def _names(text: str) -> Sequence[str]:
    """Strategies separated by commas or semicolons; a comma before an option belongs to the name."""
    names = [name.strip() for name in re.split(BETWEEN_NAMES, text.rstrip("; "))]
    if not all(names):
        raise InputError(f"--strategies must be names with commas between, as {PAPER}; got {text!r}")
    return names


def seeds_of(text: str) -> list[int]:
    """Seeds with commas between."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and len(part) <= 9 for part in parts):
        raise InputError(f"--seeds must be whole numbers with commas between, as 0,1,2; got {text!r}")
    return [int(part) for part in parts]


def wait_politely() -> None:
    """Let idle threads sleep instead of spin; this must be set before torch is imported."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
