"""Prints predicted beside measured seconds: of the whole, step by step, and device by device."""

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hasfl.cli.deployment.clock import EXCHANGE_STEPS, WHOLE, ClockReport, Compared
from hasfl.cli.tables import titled
from hasfl.record import SPLIT_STEPS
from hasfl.units import format_seconds, format_share

NUMBERS = ("predicted", "measured", "error", "90 % of\nerrors below")
IN_WORDS = {WHOLE: "whole round, mean", "split_training": "split training"}
MOST_DROPPED = 10  # drops that are named


def show_clock(report: ClockReport, run: str) -> None:
    """Print three tables and who was dropped."""
    console = Console()
    console.print(_table(f"Seconds of {escape(run)}, medians over {report.rounds:,} rounds", report.spans))
    console.print(_table("Each step, of the slowest in it", report.steps))
    console.print(_devices(report.devices))
    for round, device, reason in report.dropped[:MOST_DROPPED]:
        sentence = f"{device} was dropped in round {round}: {reason}"
        console.print(escape(sentence), highlight=False, soft_wrap=True)
    if (more := len(report.dropped) - MOST_DROPPED) > 0:
        console.print(f"{more:,} more were dropped", highlight=False, soft_wrap=True)
    console.print(escape(_verdict(report)), highlight=False, soft_wrap=True)
    if report.for_reports > 0:
        share = format_share(report.for_reports)
        sentence = f"evaluations that only reports need are left out; they took {share} of the time"
        console.print(sentence, highlight=False, soft_wrap=True)


def _verdict(report: ClockReport) -> str:
    """How good the forecast of a round was, in one sentence."""
    found = report.spans.get("split_training")
    if found is None:
        return "no round of split training was measured"
    return (
        f"the forecast of a round of split training is off by {format_share(found.error)} in the median, and "
        f"by at most {format_share(found.error_90)} in 90 % of the rounds"
    )


def _table(title: str, rows: Mapping[str, Compared]) -> Table:
    table = titled(title)
    table.add_column("")
    for column in NUMBERS:
        table.add_column(column, justify="right")
    for name, compared in rows.items():
        table.add_row(IN_WORDS.get(name, name.replace("_", " ")), *_cells(compared))
    return table


def _cells(compared: Compared) -> Iterable[str]:
    return (
        format_seconds(compared.predicted),
        format_seconds(compared.measured),
        format_share(compared.error),
        format_share(compared.error_90),
    )


def _devices(devices: Mapping[str, Mapping[str, Compared]]) -> Table:
    """For each party, the sum of its steps in a round, and of its exchanges at an aggregation."""
    table = titled("Each party, the sum of its steps")
    table.add_column("")
    for what in ("round", "aggregation"):
        for column in ("predicted", "measured"):
            table.add_column(f"{what}\n{column}", justify="right")
    for name, steps in devices.items():
        table.add_row(escape(name), *_sums(steps, SPLIT_STEPS), *_sums(steps, EXCHANGE_STEPS))
    return table


def _sums(steps: Mapping[str, Compared], chosen: Iterable[str]) -> Iterable[str]:
    found = [steps[step] for step in chosen if step in steps]
    if not found:
        return "", ""
    return tuple(
        format_seconds(sum(seconds))
        for seconds in ((each.predicted for each in found), (each.measured for each in found))
    )
