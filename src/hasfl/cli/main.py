"""The commands of `hasfl`. A wrong input ends in one sentence on standard error and exit code 2."""

import io
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import numpy as np
import typer

from hasfl import __version__
from hasfl.arrays import MOST, IntN
from hasfl.cli.training import AsJson, compare, data, train
from hasfl.errors import EXIT_INTERRUPTED, EXIT_WRONG_USAGE, HasflError, InputError

if TYPE_CHECKING:
    from hasfl.plan import Plan, PlanReport
    from hasfl.planning.advice.sensitivity import Mistake
    from hasfl.planning.advice.why import Upgrades
    from hasfl.problem import Problem

app = typer.Typer(
    name="hasfl",
    help="Split federated learning on fleets of unequal devices.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)

# Optional packages that commands need, and what installs them.
EXTRAS = dict.fromkeys(("torch", "matplotlib", "sklearn", "safetensors"), "hasfl[train]")


def main() -> NoReturn:
    """Run the command line; an error becomes one sentence on standard error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without Greek letters still gets the table
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
        if code == EXIT_INTERRUPTED:  # what the parser makes of Ctrl-C
            _fail("interrupted", EXIT_INTERRUPTED)
    except HasflError as error:
        _fail(str(error), error.exit_code)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        _fail(f"this command needs {error.name}: pip install '{EXTRAS[error.name]}'", EXIT_WRONG_USAGE)
    except BrokenPipeError:  # the reader of the output has gone, as with `hasfl … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        _fail(f"cannot write: {error.strerror}", 1)
    except Exception as error:
        if not hasattr(error, "format_message"):  # the parser's own errors have it, whatever their class
            raise
        _fail(error.format_message(), 2)
    sys.exit(code)


def _fail(sentence: str, code: int) -> NoReturn:
    sys.stderr.write(f"hasfl: {sentence}\n")
    sys.exit(code)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hasfl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def plan(
    question: Annotated[
        str,
        typer.Argument(
            help="A scenario (.toml), a problem in raw numbers (.json), or - for a problem on stdin.",
            metavar="FILE",
        ),
    ],
    batch: Annotated[
        str | None,
        typer.Option(help="Fix the batch sizes: one number for all devices, or one per device, as 8,16,4."),
    ] = None,
    cut: Annotated[
        str | None,
        typer.Option(
            help="Fix the cuts. A cut is the number of layers that a device holds. Give one number for all "
            "devices, or one per device, as 4,2,4."
        ),
    ] = None,
    solver: Annotated[
        str, typer.Option(help="exact for the exact planner, or bcd for the paper's Algorithm 2.")
    ] = "exact",
    gap: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Stop when it is proved that no plan saves more than this share of the training time.",
        ),
    ] = 1e-3,
    time_limit: Annotated[
        float, typer.Option(min=0.0, help="Stop after this many seconds with the best plan so far.")
    ] = 60.0,
    why: Annotated[
        bool,
        typer.Option("--why", help="Show which devices set the pace, and which upgrades would save most."),
    ] = False,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Show how much time a wrong constant would cost.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find the best batch size and cut of every device.

    The output also says how long training takes. With --batch, only the cuts are chosen. With --cut, only the
    batch sizes are chosen. With both, nothing is chosen, and the plan is only evaluated.
    """
    from hasfl.runner.questions import read_problem, solve

    if sensitivity and (batch is not None or cut is not None or solver != "exact"):
        raise InputError("--sensitivity compares the best plans: leave out --batch, --cut and --solver")
    problem = read_problem(question)
    devices = len(problem.fleet)
    ask = partial(
        solve,
        batch_sizes=None if batch is None else _per_device("--batch", batch, devices),
        cuts=None if cut is None else _per_device("--cut", cut, devices),
    )
    report = ask(problem, solver=solver, gap=gap, time_limit=time_limit)
    saved = _upgrades(report, problem, ask, time_limit) if why else None
    lost = _mistakes(report, problem, gap, time_limit) if sensitivity else []
    if as_json:
        extra = _advice(report, problem, saved) if saved is not None else {}
        robust = {"sensitivity": [asdict(mistake) for mistake in lost]} if sensitivity else {}
        typer.echo(json.dumps(report.as_json() | extra | robust))
    else:
        from hasfl.cli.plan_view import show_plan

        show_plan(report, problem, saved, lost)


def _upgrades(
    report: "PlanReport", problem: "Problem", solve: "Callable[..., PlanReport]", seconds: float
) -> "Upgrades":
    from hasfl.planning.advice.why import GAP, TIME_LIMIT, upgrades

    def ask(upgraded: "Problem", start: "Plan") -> "PlanReport":
        return solve(upgraded, gap=GAP, time_limit=min(TIME_LIMIT, seconds), start=start)

    return upgrades(report.plan, problem, ask, seconds=seconds)


def _advice(report: "PlanReport", problem: "Problem", saved: "Upgrades") -> dict[str, object]:
    from hasfl.planning.advice.why import pace_setters

    return {"set_by": pace_setters(report.plan, problem), "upgrades": [asdict(each) for each in saved.found]}


def _mistakes(report: "PlanReport", problem: "Problem", gap: float, time_limit: float) -> "list[Mistake]":
    from hasfl.planning.advice.sensitivity import mistakes

    return mistakes(report, problem, gap=gap, time_limit=time_limit)


def _per_device(option: str, text: str, devices: int) -> IntN:
    """One whole number for every device, from "16" or "8,16,4"."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"{option} must be a whole number, or one per device like 8,16,4; got {text!r}"
        ) from None
    if len(values) not in (1, devices):
        raise InputError(
            f"{option} has {len(values)} entries for {devices} devices: give one, or one per device"
        )
    if wrong := [value for value in values if not 1 <= value <= MOST]:
        raise InputError(f"{option} must be from 1 to {MOST:,}, got {str(wrong[0])[:20]}")
    return np.broadcast_to(values, devices)


@app.command()
def profile(
    model: Annotated[
        str,
        typer.Argument(
            help="vgg16, resnet18, small-cnn, or a model of your own as package.module:callable.",
            metavar="MODEL",
        ),
    ],
    classes: Annotated[
        int | None, typer.Option(min=1, help="Number of classes, for vgg16, resnet18 and small-cnn.")
    ] = None,
    norm: Annotated[
        str | None, typer.Option(help="batch, group or none, for vgg16, resnet18 and small-cnn.")
    ] = None,
    optimizer: Annotated[
        str, typer.Option(help="sgd, momentum or adam. The optimiser's slots are counted in the JSON.")
    ] = "sgd",
    shape: Annotated[
        str | None,
        typer.Option("--input", help="Shape of one sample, as 3x32x32, for small-cnn or your own model."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what each layer of a model costs for one sample."""
    from hasfl.documents.document import checked
    from hasfl.documents.profile_file import ProfileFile
    from hasfl.documents.scenario import ModelSection
    from hasfl.runner.questions import layers_of

    given = {"name": model, "classes": classes, "norm": norm, "input": _shape(shape)}
    options = {option: value for option, value in given.items() if value is not None}
    section = checked(options, ModelSection, source="hasfl profile")
    layers = layers_of(section, model, folder=Path())
    table = ProfileFile.of(model, layers, optimizer=optimizer, classes=classes, norm=norm)
    if as_json:
        typer.echo(table.model_dump_json())
    else:
        from hasfl.cli.profile_view import show_profile

        show_profile(table)


def _shape(text: str | None) -> list[int] | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,9}(x[0-9]{1,9})*", text):
        raise InputError(f"--input must be the shape of one sample like 3x32x32, got {text!r}")
    return [int(size) for size in text.split("x")]


for verb in (data, train, compare):
    app.command()(verb)
