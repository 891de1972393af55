"""The best plans for several intervals, as a table and in words."""

import numpy as np
from rich.console import Console
from rich.text import Text

from hasfl.arrays import MOST
from hasfl.cli.tables import titled
from hasfl.constants import MeasuredConstants
from hasfl.planning.intervals import FEWEST_INTERVALS, Intervals, Tried
from hasfl.runner.questions import Question
from hasfl.units import format_seconds, format_share

NO_PLAN = "no plan reaches the target"
LAW_ENDS = f"The law is known for trainings of at least {FEWEST_INTERVALS} intervals."
# Measured in docs/constants.md, "How the constants go with N and I".
LEFT_OUT = (
    "R∞ counts as the same for every interval. In trainings of 20 devices it rose by 4 to 20 % from 15 to 50 "
    "rounds, so long intervals take a little longer than the table says."
)


def show_intervals(found: Intervals, asked: Question) -> None:
    """Print the plan of every interval that was tried, and what the others could save; one is no choice."""
    if len(found.tried) == 1:
        return
    console, known = Console(), asked.rounds_known
    table = titled("The best plan for each interval")
    last = ("rounds", "a round", "training") if known else ("a round", "training, over the best")
    for name in ("interval", "batch", "cuts", *last, "gap"):
        table.add_column(name, justify="right")
    table.add_column("")
    for each in found.tried:
        table.add_row(*map(Text, _row(each, found, rounds_known=known)))
    console.print(table)
    for sentence in _sentences(found, asked):
        console.print(Text(f"  {sentence}"))


def _row(each: Tried, found: Intervals, *, rounds_known: bool) -> list[str]:
    """One interval, by column; the last column marks the best one, or says why there is no plan."""
    report, interval = each.report, f"{each.interval:,}"
    if report is None:
        return [interval, *["-"] * (6 if rounds_known else 5), NO_PLAN]
    cuts = dict.fromkeys((int(report.plan.cuts.min()), int(report.plan.cuts.max())))
    relative = each.seconds / found.best.objective if found.best.objective > 0 else 1.0
    time = [f"{report.rounds:,.1f}", format_seconds(report.round_seconds), format_seconds(each.seconds)]
    return [
        interval,
        f"{np.median(report.plan.batch_sizes):g}",
        "-".join(map(str, cuts)),
        *(time if rounds_known else [format_seconds(report.round_seconds), f"{relative:.3f} ×"]),
        "-" if report.gap is None else f"{100 * report.gap:.2g} %",
        "◀ best" if each.interval == found.best_interval else "",
    ]


def _sentences(found: Intervals, asked: Question) -> list[str]:
    """What intervals that are not in the table could save, and what the law does not know."""
    sentences = []
    if found.others_save is not None:
        upto = "" if found.longest == MOST else f" up to {found.longest:,}"
        share = format_share(found.others_save)
        sentences.append(f"No other interval{upto} saves more than {share} of the time.")
    if isinstance(asked.problem.constants, MeasuredConstants):
        sentences += [LAW_ENDS, LEFT_OUT]
    return sentences
