"""A plan as a person wants to see it: what each device does, who is slowest, where a round's time goes."""

from collections.abc import Sequence

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hasfl.arrays import FloatN, IntN
from hasfl.cli.sensitivity_view import show_mistakes
from hasfl.plan import PlanReport
from hasfl.planning.robustness import Mistake
from hasfl.planning.sensitivity import Upgrade
from hasfl.problem import Problem
from hasfl.profile import GradientStats, MeasuredStats
from hasfl.theory.bound import bound_floor
from hasfl.theory.latency import (
    AggregationLatency,
    SplitTrainingLatency,
    aggregation_latency,
    split_training_latency,
)
from hasfl.theory.objective import memory_needed
from hasfl.units import format_quantity, format_seconds

ROWS = 24  # devices shown; of a larger fleet, those that take longest
BAR = 16  # characters for the longest phase
WIDE = 100  # columns of a terminal that has room for everything
COLUMNS = ("device", "batch", "cut", "compute", "uplink", "up (a1, a2)", "down (a4, a5)", "memory")


def show_plan(
    report: PlanReport, problem: Problem, upgrades: Sequence[Upgrade], mistakes: Sequence[Mistake]
) -> None:
    """Print the plan, the breakdown of a round, its worth, what would make it better, and how sure it is."""
    console = Console()
    split = split_training_latency(report.plan, problem.fleet, problem.profile)
    aggregation = aggregation_latency(report.plan, problem.fleet, problem.profile)
    console.print(_devices(report, problem, split, console.width))
    console.print(_phases(split, aggregation, problem.interval))
    console.print(_worth(report, problem))
    if upgrades:
        console.print(_why(split, problem, upgrades))
    if mistakes:
        show_mistakes(mistakes)


def _devices(report: PlanReport, problem: Problem, split: SplitTrainingLatency, width: int) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, title="What each device does", title_justify="left", title_style="bold"
    )
    columns = [name for name in COLUMNS if width >= WIDE or name not in ("compute", "uplink")]
    for name in columns:
        table.add_column(name, justify="left" if name in ("device", "cut") else "right", no_wrap=True)
    shown = _shown(split)
    for i in shown.tolist():
        row = _row(report, problem, split, i)
        table.add_row(*(row[name] for name in columns))
    number = f"the {len(shown)} of {len(problem.fleet)} devices that take longest; "
    table.caption = f"{number if len(shown) < len(problem.fleet) else ''}◀ slowest: everybody waits for it"
    table.caption_justify = "left"
    return table


def _titled(title: str) -> Table:
    return Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")


def _row(report: PlanReport, problem: Problem, split: SplitTrainingLatency, i: int) -> dict[str, Text]:
    """What one device does, by column."""
    device, j = problem.fleet[i], int(report.plan.cut_index[i])
    used = float(memory_needed(report.plan, problem.profile)[i]) / device.memory
    return {
        "device": Text(device.name),
        "batch": Text(str(report.plan.batch_sizes[i])),
        "cut": Text(f"{j + 1} · {problem.profile.names[j]}"),
        "compute": Text(format_quantity(device.flops, "FLOPS")),
        "uplink": Text(format_quantity(device.up_rate, "bps")),
        "up (a1, a2)": _marked(split.up, i),
        "down (a4, a5)": _marked(split.down, i),
        "memory": Text(f"{used:.1%}", style="bold red" if used > 1 else ""),
    }


def _marked(seconds: FloatN, i: int) -> Text:
    """A device's time, marked if it is the longest."""
    slowest = i == seconds.argmax()
    return Text(
        f"{format_seconds(seconds[i])} {'◀' if slowest else ' '}", style="bold yellow" if slowest else ""
    )


def _shown(split: SplitTrainingLatency) -> IntN:
    """All devices of a small fleet; of a large one those that take longest, slowest first."""
    taken = split.up + split.down
    if len(taken) <= ROWS:
        return np.arange(len(taken))
    return np.argsort(-taken, kind="stable")[:ROWS]


def _phases(split: SplitTrainingLatency, aggregation: AggregationLatency, interval: int) -> Table:
    """Where the time of a round goes: the two stragglers, the server, and a share of the aggregation."""
    up, down = int(split.up.argmax()), int(split.down.argmax())
    phases = {
        "a1 forward on the slowest device": split.device_forward[up],
        "a2 its activations up": split.activation_upload[up],
        "a3 forward on the server": split.server_forward,
        "a3 backward on the server": split.server_backward,
        "a4 gradients down to the slowest": split.gradient_download[down],
        "a5 backward on it": split.device_backward[down],
        f"b1 sub-models up, every {interval} rounds": aggregation.up / interval,
        f"b3 sub-models down, every {interval} rounds": aggregation.down / interval,
    }
    longest, total = max(phases.values()) or 1.0, sum(phases.values()) or 1.0
    table = _titled("Where a round's time goes")
    table.add_column("step")
    table.add_column("time", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")
    for name, seconds in phases.items():
        bar = "█" * round(BAR * seconds / longest)
        table.add_row(name, format_seconds(seconds), f"{seconds / total:.0%}", Text(bar, style="cyan"))
    return table


def _worth(report: PlanReport, problem: Problem) -> Text:
    text = Text()
    text.append(f"  {format_seconds(report.objective)} of training", style="bold green")
    text.append(f" = {report.rounds:,.1f} rounds × {format_seconds(report.round_seconds)} a round\n")
    text.append(f"  a round: {format_seconds(report.split_seconds)} of split training; an aggregation every ")
    text.append(f"{problem.interval}: {format_seconds(report.aggregation_seconds)}\n")
    text.append(f"  {_what_rounds_depend_on(report, problem)}\n")
    if report.status != "evaluated":
        text.append(f"  {_certificate(report)}\n  planned in {format_seconds(report.seconds)}\n")
    for line in _warnings(report, problem):
        text.append(f"  {line}\n", style="bold red")
    return text


def _what_rounds_depend_on(report: PlanReport, problem: Problem) -> str:
    """What is left of the target beside the floor of the bound, or what noise adds to measured rounds."""
    plan, stats = report.plan, problem.stats
    if isinstance(stats, MeasuredStats):
        sampling = stats.noise * float((1 / plan.batch_sizes).mean())
        private = report.rounds / stats.rounds - 1 - sampling
        return (
            f"rounds {report.rounds:,.4g} = {stats.rounds:,.4g} with endless batches "
            f"+ {sampling:.1%} for their noise + {max(private, 0.0):.1%} for layers that are private"
        )
    stats, target = problem.bound_constants()
    floor = bound_floor(plan, stats, learning_rate=problem.learning_rate, interval=problem.interval)
    return (
        f"target {target:.4g} = sampling {floor.sampling:.3g} + drift {floor.drift:.3g} "
        f"+ {report.margins.target:.3g} left to descend"
    )


def _certificate(report: PlanReport) -> str:
    """How good the plan is known to be."""
    if report.lower_bound is None or report.gap is None:
        return f"{report.status} after {report.iterations} iterations; a heuristic, nothing is proved"
    return (
        f"{report.status}: no plan takes less than {format_seconds(report.lower_bound)}, "
        f"so at most {100 * report.gap:.3g} % could be saved"
    )


def _why(split: SplitTrainingLatency, problem: Problem, upgrades: Sequence[Upgrade]) -> Text:
    """Who sets the pace, and which upgrades save most."""
    names = problem.fleet.names
    text = Text("  Why not faster?\n", style="bold")
    text.append(f"  device {names[split.up.argmax()]} sets T₃ (up), ", style="not bold")
    text.append(f"device {names[split.down.argmax()]} sets T₄ (down)\n", style="not bold")
    if not upgrades[0].saved_seconds:
        text.append("  10 % more of any one resource would save nothing\n", style="not bold")
    for upgrade in [upgrade for upgrade in upgrades[:3] if upgrade.saved_seconds]:
        saved = format_seconds(upgrade.saved_seconds)
        text.append(f"  10 % more {upgrade.resource} would save {saved}\n", style="not bold")
    return text


def _warnings(report: PlanReport, problem: Problem) -> list[str]:
    too_full = np.flatnonzero(report.margins.memory < 0)
    too_large = np.flatnonzero(report.margins.max_batch < 0)
    stats = problem.stats
    steepness = problem.learning_rate * stats.smoothness if isinstance(stats, GradientStats) else 0.0
    return [
        *(f"not feasible: device {problem.fleet.names[i]} lacks memory (C4)" for i in too_full[:3]),
        *(
            f"not feasible: device {problem.fleet.names[i]} exceeds max_batch {problem.max_batch}"
            for i in too_large[:3]
        ),
        *([f"the bound does not hold: γβ = {steepness:.3g} is above 1 (Theorem 1)"] if steepness > 1 else []),
    ]
