"""The command `plan`."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from hasfl.arrays import MOST, IntN
from hasfl.cli.options import AsJson, require_page
from hasfl.errors import InputError

if TYPE_CHECKING:
    from hasfl.plan import Plan, PlanReport
    from hasfl.planning.advice.sensitivity import Mistake
    from hasfl.planning.advice.why import Upgrades
    from hasfl.planning.intervals import Intervals
    from hasfl.problem import Problem
    from hasfl.runs.questions import Question

BEST = "best"  # the value of --interval that asks for the best of all intervals


def plan(
    question: Annotated[
        str | None,
        typer.Argument(
            help="A scenario (.toml), a problem in raw numbers (.json), or - for a problem on stdin. With "
            "--from it may be left out; then the scenario is that of the run.",
            metavar="[FILE]",
            show_default=False,
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option("--from", help="Plan with the rounds that this run took.", metavar="RUN"),
    ] = None,
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
    interval: Annotated[
        str | None,
        typer.Option(
            help="Rounds between two aggregations, instead of those of the file. Give one number, several "
            "as 5,15,50 to compare them, or best to choose among those that the law of rounds is known for.",
            metavar="I",
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
    html: Annotated[
        Path | None,
        typer.Option(
            help="Also write the plan as a page (.html), with sliders whose stops are planned beforehand.",
            metavar="FILE",
        ),
    ] = None,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve", help="Show the plan in a browser on this machine, and plan anew as sliders move."
        ),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, help="The port of --serve. Default: a free one."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the best batch size and cut of every device.

    Without [constants], the plan is the best one for several guesses of the constants. The output also says
    how long training takes, if the scenario has [constants] or --from names a run. With --batch, only the
    cuts are chosen. With --cut, only the batch sizes are chosen. With both, nothing is chosen, and the plan
    is only evaluated. With --interval best, the interval is chosen too.

    Example: hasfl plan scenario.toml --why
    """
    from rich.console import Console

    from hasfl.runs.questions import read_question

    _require_page_options(html, port, serve=serve, as_json=as_json)
    if sensitivity and (batch is not None or cut is not None or solver != "exact"):
        raise InputError("--sensitivity compares the best plans: leave out --batch, --cut and --solver")
    asked = read_question(question, run=run)
    ask = partial(_solve, batch=batch, cut=cut)
    search = partial(ask, solver=solver, gap=gap)
    with Console(stderr=True).status("planning") as status:
        tell = status.update
        begun = monotonic()
        asked = asked.weighed()
        weighing = monotonic() - begun
        found = None if interval is None else _tried(interval, asked, search, gap, time_limit, tell)
        if found is None:
            report = search(asked.problem, time_limit=time_limit)
            report = replace(report, seconds=report.seconds + weighing)
        else:
            found = replace(found, seconds=found.seconds + weighing)
            report, asked = found.best, replace(asked, problem=asked.at(found.best_interval))
        saved = _upgrades(report, asked.problem, ask, time_limit, tell) if why else None
        lost = _mistakes(report, asked, gap, time_limit, tell) if sensitivity else None
        paged = None
        if html is not None or serve:
            from hasfl.cli.plan_page import PagedPlan

            paged = PagedPlan.of(
                asked, report, search, saved, lost, name=str(question or run), seconds=time_limit
            )
            paged = paged.with_sliders(served=serve, tell=tell)
    written = 0 if html is None or paged is None else paged.write(html)
    if as_json:
        typer.echo(json.dumps(_as_json(report, asked, found, saved, lost)))
        return
    from hasfl.cli.plan_view import show_plan

    show_plan(report, asked, found, saved, lost or [])
    if written:
        typer.echo(f"wrote {html} ({written / 1e6:.1f} MB)")
    if serve and paged is not None:
        paged.serve(port or 0)


def _require_page_options(html: Path | None, port: int | None, *, serve: bool, as_json: bool) -> None:
    """Raise InputError if options of pages contradict each other; called before planning."""
    if html is not None:
        require_page("--html", html)
    if serve and html is not None:
        raise InputError("give either --html for a file or --serve for a server, not both")
    if serve and as_json:
        raise InputError("--serve shows the plan in a browser and --json prints it: give one of them")
    if port is not None and not serve:
        raise InputError(f"--port belongs to --serve, got --port {port} alone: add --serve")


def _solve(problem: "Problem", *, batch: str | None, cut: str | None, **options: Any) -> "PlanReport":
    """The best plan for a problem; batch sizes and cuts that are given stay fixed."""
    from hasfl.runs.questions import solve

    devices = len(problem.fleet)
    return solve(
        problem,
        batch_sizes=None if batch is None else _per_device("--batch", batch, devices),
        cuts=None if cut is None else _per_device("--cut", cut, devices),
        **options,
    )


def _as_json(
    report: "PlanReport",
    asked: "Question",
    found: "Intervals | None",
    saved: "Upgrades | None",
    lost: "list[Mistake] | None",
) -> dict[str, object]:
    """The values that --json prints: the plan, and the advice that was asked for."""
    from hasfl.planning.advice.why import pace_setters

    known = asked.rounds_known
    printed = {"constants": asked.constants} | report.as_json(rounds_known=known) | _guesses(report, asked)
    if found is not None:
        printed |= found.as_json(rounds_known=known)
    if saved is not None:
        printed["set_by"] = pace_setters(report.plan, asked.problem)
        printed["upgrades"] = [each.as_json(report.objective, rounds_known=known) for each in saved.found]
    if lost is not None:
        printed["sensitivity"] = [asdict(mistake) for mistake in lost]
    return printed


def _guesses(report: "PlanReport", asked: "Question") -> dict[str, object]:
    """The guesses, and the plan's ratio by each of them, for --json; empty without guesses."""
    from hasfl.constants import Guesses
    from hasfl.planning.exact.guess_ratios import mean_ratio, ratios

    constants = asked.problem.constants
    if not isinstance(constants, Guesses):
        return {}
    found = ratios(report.plan, asked.problem)
    mean = mean_ratio(found)
    return {
        "guesses": [
            {
                "says": guess.says,
                "weight": guess.weight,
                "constants": guess.constants.as_json(),
                "ratio": each.ratio,
                "at_most": each.at_most if isfinite(each.at_most) else None,
                "rounds": each.rounds,
            }
            for guess, each in zip(constants.each, found, strict=True)
        ],
        "mean_ratio": mean,
        "mean_ratio_bound": None if report.gap is None else mean * (1 - report.gap),
        "worst_ratio": max(each.ratio for each in found),
        "unlikeness": asked.unlikeness,
    }


def _tried(
    written: str,
    asked: "Question",
    search: "Callable[..., PlanReport]",
    gap: float,
    seconds: float,
    tell: Callable[[str], None],
) -> "Intervals":
    """The best plan for every interval that --interval asks for."""
    from hasfl.cli.tables import every
    from hasfl.planning.intervals import best_interval, try_intervals

    def ask(problem: "Problem", start: "Plan | None", share: float) -> "PlanReport":
        tell(f"planning with an aggregation {every(problem.interval)}")
        return search(problem, time_limit=share, start=start)

    own, known = asked.problem.interval, asked.rounds_known
    if written == BEST:
        return best_interval(asked.at, own, ask, gap=gap, seconds=seconds, rounds_known=known)
    values = _whole_numbers("--interval", written, f", several like 5,15,50, or {BEST};")
    _require_counts("--interval", values)
    return try_intervals(asked.at, list(dict.fromkeys(values)), ask, seconds=seconds, rounds_known=known)


def _upgrades(
    report: "PlanReport",
    problem: "Problem",
    solve: "Callable[..., PlanReport]",
    seconds: float,
    tell: Callable[[str], None],
) -> "Upgrades":
    from hasfl.planning.advice.why import GAP, TIME_LIMIT, resources, upgrades

    plans, number = 1 + resources(problem), count(1)  # the first plan is without an upgrade

    def ask(upgraded: "Problem", start: "Plan") -> "PlanReport":
        tell(
            f"looking for the best upgrade: plan {next(number):,} of {plans:,}, at most {seconds:g} s in all"
        )
        return solve(upgraded, gap=GAP, time_limit=min(TIME_LIMIT, seconds), start=start)

    return upgrades(report.plan, problem, ask, seconds=seconds)


def _mistakes(
    report: "PlanReport", asked: "Question", gap: float, time_limit: float, tell: Callable[[str], None]
) -> "list[Mistake]":
    from hasfl.planning.advice.sensitivity import mistakes, without_rounds

    tell("planning with wrong constants")
    found = mistakes(report, asked.problem, gap=gap, time_limit=time_limit)
    return found if asked.rounds_known else without_rounds(found)


def _per_device(option: str, text: str, devices: int) -> IntN:
    """One whole number for every device, read from a text such as "16" or "8,16,4"."""
    values = _whole_numbers(option, text, ", or one per device like 8,16,4;")
    if len(values) not in (1, devices):
        raise InputError(
            f"{option} has {len(values)} entries for {devices} devices: give one, or one per device"
        )
    _require_counts(option, values)
    return np.broadcast_to(values, devices)


def _whole_numbers(option: str, text: str, others: str) -> list[int]:
    """The whole numbers in a text such as "8,16,4"; `others` is the part of the message on other values."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} must be a whole number{others} got {text!r}") from None


def _require_counts(option: str, values: list[int]) -> None:
    if wrong := [value for value in values if not 1 <= value <= MOST]:
        raise InputError(f"{option} must be from 1 to {MOST:,}, got {str(wrong[0])[:20]}")
