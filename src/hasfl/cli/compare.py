"""The command `compare`: which strategy reached the goal first, or where each converged."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hasfl.cli.options import (
    AsJson,
    Device,
    On,
    RunsFolder,
    ScenarioFile,
    seeds_of,
    strategy_names,
    wait_politely,
)
from hasfl.cli.tables import say, titled
from hasfl.errors import InputError
from hasfl.plan import Plan
from hasfl.report.analysis import Spread, finish, format_factor, outcome, speed_ups
from hasfl.theory.paradigms import SPLIT
from hasfl.units import format_quantity, format_seconds

if TYPE_CHECKING:
    from hasfl.runs.places.comparison import ChosenPlan, Contest

# A comma separates names, except before an option such as cut=2 that is not part of a pair (b=4+cut=2).
BETWEEN_NAMES = r";|,(?!\s*(?:b|cut)=[^+,;]*(?:[,;]|$))"
PAPER = "hasfl,rbs+hams,habs+rms,rbs+rms,rbs+rhams"
MOST_GROUPS = 12  # most groups of devices in the table; of more, the slowest. Chosen by hand
WORTH_SAYING = 1.05  # least factor that gets a sentence; chosen by hand


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
    from hasfl.report.figures import accuracy_against_time, race_picture, require_drawable, save_figure
    from hasfl.runs.scenario import read_scenario

    drawn = picture or out / f"{scenario.stem}-accuracy.png"
    require_matplotlib()
    if picture is not None:
        require_drawable(drawn)
    asked = read_scenario(scenario)
    names, chosen = _names(strategies), [asked.seed] if seeds is None else seeds_of(seeds)
    with TrainingView(runs=len(names) * len(chosen)) as view:
        from hasfl.runs.places.comparison import last_plan, train_all  # imports torch

        contests = train_all(scenario, out, names, chosen, view, device=device, on=on)
    first, goal = contests[0], asked.stop.accuracy
    if goal is None:
        converged, raced = convergence_rows(contests), None
        save_figure(accuracy_against_time(first.runs, first.seed), drawn)
    else:
        converged, raced = None, race_rows(contests, goal)
        save_figure(race_picture(first.runs, goal, first.seed), drawn)
    if as_json:
        summary = {"picture": str(drawn)} | ({} if goal is None else {"goal": goal})
        typer.echo(json.dumps(summary | {"strategies": [asdict(row) for row in converged or raced or ()]}))
        return
    if converged:
        show_convergence(converged, chosen, drawn)
    elif raced and goal is not None:
        show_race(raced, goal, last_plan(first), drawn)
    typer.echo(f"the runs are in {out}; `hasfl runs {out}` lists them")


def _names(text: str) -> Sequence[str]:
    """Strategies separated by commas or semicolons; a comma before an option belongs to the name."""
    names = [name.strip() for name in re.split(BETWEEN_NAMES, text.rstrip("; "))]
    if not all(names):
        raise InputError(f"--strategies must be names with commas between, as {PAPER}; got {text!r}")
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceRow:
    """The times at which one strategy reached the goal, over its seeds."""

    strategy: str
    reached: int  # number of seeds that reached the goal
    seeds: int
    seconds: Spread  # time to the goal, or to the run's end if the goal was not reached
    slower: Spread | None  # time over that of the first strategy; None if a run missed the goal
    rounds: Spread
    held_out_accuracy: Spread
    accuracy: Spread  # accuracy on the test set at that time


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvergenceRow:
    """Accuracy and time at which one strategy converged, compared with the first strategy, over seeds."""

    strategy: str
    converged: bool  # whether every seed converged
    converged_accuracy: Spread
    converged_seconds: Spread
    slower: Spread  # converged time over that of the first strategy
    common_accuracy: Spread
    common_seconds: Spread  # time to the accuracy that all strategies reach
    common_slower: Spread


def race_rows(contests: Sequence["Contest"], goal: float) -> list[RaceRow]:
    """The rows of a race: when each strategy reached an accuracy on held-out samples."""
    finishes = {
        name: [finish(name, contest.runs[name], goal) for contest in contests] for name in contests[0].runs
    }
    first = next(iter(finishes.values()))
    rows = []
    for name, own in finishes.items():
        both = all(run.reached for run in (*own, *first))
        ratios = [run.seconds / base.seconds for run, base in zip(own, first, strict=True)] if both else []
        rows.append(
            RaceRow(
                strategy=name,
                reached=sum(run.reached for run in own),
                seeds=len(own),
                seconds=Spread.of([run.seconds for run in own]),
                slower=Spread.of(ratios) if ratios else None,
                rounds=Spread.of([float(run.rounds) for run in own]),
                held_out_accuracy=Spread.of([run.held_out_accuracy for run in own]),
                accuracy=Spread.of([run.accuracy for run in own]),
            )
        )
    return rows


def convergence_rows(contests: Sequence["Contest"]) -> list[ConvergenceRow]:
    """The numbers of the paper's Fig. 6, and the times to one common accuracy, which are comparable."""
    first = next(iter(contests[0].runs))
    ratios = [{each.strategy: each for each in speed_ups(contest.runs, first)} for contest in contests]
    rows = []
    for name in contests[0].runs:
        outcomes = [outcome(name, contest.runs[name]) for contest in contests]
        own = [by_name[name] for by_name in ratios]
        rows.append(
            ConvergenceRow(
                strategy=name,
                converged=all(each.converged for each in outcomes),
                converged_accuracy=Spread.of([each.reached_accuracy for each in outcomes]),
                converged_seconds=Spread.of([each.converged_seconds for each in outcomes]),
                slower=Spread.of([each.converged for each in own]),
                common_accuracy=Spread.of([each.common_accuracy for each in own]),
                common_seconds=Spread.of([each.common_seconds for each in own]),
                common_slower=Spread.of([each.common for each in own]),
            )
        )
    return rows


def show_race(rows: Sequence[RaceRow], goal: float, plan: "ChosenPlan", picture: Path) -> None:
    """Print when each strategy reached the goal, the last plan of the first strategy, and the winner."""
    first = rows[0].strategy
    table = titled(f"Who has {100 * goal:g} % of the held-out samples right first")
    table.add_column("strategy", no_wrap=True)
    columns = ("virtual time", f"times as long\nas {escape(first)}", "rounds", "test accuracy\nat that time")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            escape(row.strategy),
            _time_or_failure(row),
            "" if row.slower is None else _shown(row.slower, _times),
            _shown(row.rounds, lambda value: f"{value:.0f}"),
            _shown(row.accuracy, _percent),
        )
    console = Console()
    console.print(table)
    if plan.paradigm is SPLIT:
        console.print(_plan_table(plan))
        say(console, _why(plan))
    say(console, f"\n{_winner(rows, goal)}", "bold green")
    _show_picture(console, picture, f" with seed {plan.seed}" if rows[0].seeds > 1 else "")


def show_convergence(rows: Sequence[ConvergenceRow], seeds: Sequence[int], picture: Path) -> None:
    """Print where each strategy converged, and where the picture is.

    A star marks strategies that ended before they converged. If no strategy converged, there are no stars.
    """
    first, common = rows[0].strategy, rows[0].common_accuracy
    some = any(row.converged for row in rows)
    table = titled("Who learns more, and sooner")
    table.add_column("strategy", no_wrap=True)
    for column in (
        "converged\naccuracy" if some else "best\naccuracy",
        "converged\ntime" if some else "last\nevaluation",
        f"times as long\nas {escape(first)}",
        f"time to\n{_shown(common, _percent)}",
        f"times as long\nas {escape(first)}",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            escape(row.strategy) + (" *" if some and not row.converged else ""),
            _shown(row.converged_accuracy, _percent),
            _shown(row.converged_seconds, format_seconds),
            _shown(row.slower, _times),
            _shown(row.common_seconds, format_seconds),
            _shown(row.common_slower, _times),
        )
    if some and not all(row.converged for row in rows):
        table.caption = (
            "* was still learning when it ended: its best accuracy, and the time of its last evaluation"
        )
    console = Console()
    console.print(table)
    _show_picture(console, picture, f" with seed {seeds[0]}" if len(seeds) > 1 else "")


def _winner(rows: Sequence[RaceRow], goal: float) -> str:
    """A sentence on the first strategies, their time, and how much longer the others took."""
    arrived = sorted((row for row in rows if row.reached == row.seeds), key=lambda row: row.seconds.mean)
    if not arrived:
        return f"No strategy reached {100 * goal:g} % with every seed: give more rounds or a lower accuracy."
    best = arrived[0]
    first = [row.strategy for row in arrived if row.seconds.mean == best.seconds.mean]
    others = arrived[len(first) :]
    who = f"{first[0]} is" if len(first) == 1 else f"{', '.join(first[:-1])} and {first[-1]} are"
    sentence = f"{who} first, after {format_seconds(best.seconds.mean)} of virtual time"
    factors = [format_factor(row.seconds.mean / best.seconds.mean) for row in others]
    if len(others) == 1:
        sentence += f"; {others[0].strategy} takes {factors[0]} times as long"
    elif others:
        nearest, farthest = (f"{factors[k]} ({others[k].strategy})" for k in (0, -1))
        sentence += f"; the others take {nearest} to {farthest} times as long"
    late = [row.strategy for row in rows if row.reached < row.seeds]
    which = "with every seed " if best.seeds > 1 else ""
    return f"{sentence}." + (f" Not reached {which}by {', '.join(late)}." if late else "")


def _plan_table(plan: "ChosenPlan") -> Table:
    """A table with the batch size, the cut, and the times up and down of every group of devices."""
    latency = plan.latency(plan.plan)
    when = f"round {plan.round}, seed {plan.seed}"
    devices, of = len(plan.fleet), plan.all_devices
    some = f"the one device of {of}" if devices == 1 else f"the {devices} of {of} devices"
    whom = "each device" if devices == of else f"{some} that took part"
    table = titled(f"What {escape(plan.strategy)} gave {whom} ({when})")
    table.add_column("devices", no_wrap=True)
    for column in ("compute", "uplink", "batch", "cut", "before the\nserver", "after the\nserver"):
        table.add_column(column, justify="right")
    groups = _groups(plan)
    if len(groups) > MOST_GROUPS:
        table.caption = f"the {MOST_GROUPS} slowest of {len(groups)} groups of devices, slowest first"
        groups.sort(key=lambda group: -(latency.up[group[1]] + latency.down[group[1]]))
    for name, i in groups[:MOST_GROUPS]:
        device = plan.fleet[i]
        table.add_row(
            escape(name),
            format_quantity(device.flops, "FLOPS"),
            format_quantity(device.up_rate, "bps"),
            str(plan.plan.batch_sizes[i]),
            str(plan.plan.cuts[i]),
            format_seconds(latency.up[i]),
            format_seconds(latency.down[i]),
        )
    return table


def _groups(plan: "ChosenPlan") -> list[tuple[str, int]]:
    """Groups of neighbouring devices with the same batch size, cut and speed: their name, and a device."""
    fleet, own = plan.fleet, plan.plan
    keys = [
        (int(own.batch_sizes[i]), int(own.cuts[i]), float(fleet.flops[i]), float(fleet.up_rate[i]))
        for i in range(len(fleet))
    ]
    starts = [i for i in range(len(keys)) if i == 0 or keys[i] != keys[i - 1]]
    ends = [*starts[1:], len(keys)]
    return [(_name_of(fleet.names[i:j]), i) for i, j in zip(starts, ends, strict=True)]


def _name_of(names: Sequence[str]) -> str:
    """One name for several devices: "pi × 8" for pi-1 to pi-8."""
    kinds = {name.rpartition("-")[0] for name in names}
    if len(names) > 1 and len(kinds) == 1 and "" not in kinds:
        return f"{kinds.pop()} × {len(names)}"
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _why(plan: "ChosenPlan") -> str:
    """Sentences on the time of a round with equal batch sizes and cuts; empty if it is hardly longer."""
    devices, samples = len(plan.fleet), int(plan.plan.batch_sizes.sum())
    cut = int(np.bincount(plan.plan.cuts).argmax())
    one_each = plan.latency(Plan.uniform(devices, batch_size=1, cut=cut)).total
    own, equal = plan.latency(plan.plan).total, one_each * samples / devices  # T_S is linear in b
    if equal < WORTH_SAYING * own:
        return ""
    return (
        "  A round waits for the slowest device, so slow devices get fewer samples or another cut.\n"
        f"  This round uses {samples} samples and takes {format_seconds(own)}.\n"
        f"  With an equal share of these samples and cut {cut} for every device it would take "
        f"{format_seconds(equal)}, {format_factor(equal / own)} times as long."
    )


def _show_picture(console: Console, picture: Path, which: str) -> None:
    say(console, f"accuracy against time{which}: {picture}")


def _time_or_failure(row: RaceRow) -> str:
    if row.reached == row.seeds:
        return _shown(row.seconds, format_seconds)
    if row.reached:
        return f"reached with {row.reached} of {row.seeds} seeds"
    return f"not reached ({_percent(row.held_out_accuracy.mean)})"


def _percent(value: float) -> str:
    return f"{value:.2%}"


def _times(value: float) -> str:
    return f"{value:.2f}"


def _shown(spread: Spread, write: Callable[[float], str]) -> str:
    """The mean in words, and below it the range unless it is empty."""
    low, high = write(spread.low), write(spread.high)
    return write(spread.mean) if low == high else f"{write(spread.mean)}\n{low} to\n{high}"
