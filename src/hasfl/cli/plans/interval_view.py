"""The best plans for several intervals, as a table and in words."""

import numpy as np
from rich.console import Console
from rich.text import Text

from hasfl.cli.tables import titled
from hasfl.planning.intervals import FEWEST_INTERVALS, LONGEST_MEASURED, Intervals, Tried
from hasfl.runs.questions import Question
from hasfl.units import format_seconds, format_share

NO_PLAN = "no plan reaches the target"
DOUBTFUL = "*"  # marks plans for which the law is not known
LOOSE = 0.2  # a bound on what other intervals save that is above this says nothing; chosen by hand
UNKNOWN = "How much other intervals could save is not known."
LAW_ENDS = (
    f"The law was measured for intervals up to {LONGEST_MEASURED} rounds and for trainings of at least "
    f"{FEWEST_INTERVALS} intervals."
)
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
    last = ("rounds", "a round", "training") if known else ("a round", "training,\nover the best")
    for name in ("interval", "median\nbatch", "cuts", *last, "gap"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for each in found.tried:
        table.add_row(*map(Text, _row(each, found, rounds_known=known)))
    console.print(table)
    for sentence in _sentences(found, asked):
        console.print(Text(f"  {sentence}"))


def _row(each: Tried, found: Intervals, *, rounds_known: bool) -> list[str]:
    """One interval, by column; the last one marks the best interval, or says what is wrong with this one."""
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
        f"{'◀ best' if each.interval == found.best_interval else ''}{DOUBTFUL if each.doubt else ''}",
    ]


def _sentences(found: Intervals, asked: Question) -> list[str]:
    """What intervals that are not in the table could save, and what the law does not know."""
    sentences = []
    if found.others_save is not None:
        upto = "" if found.longest is None else f" up to {found.longest:,}"
        share = format_share(found.others_save)
        bound = f"No other interval{upto} saves more than {share} of the time."
        sentences.append(bound if found.others_save <= LOOSE else UNKNOWN)
    if asked.problem.constants.kind == "measured":
        marked = (
            f"{DOUBTFUL} The law is not known for this plan. " if any(t.doubt for t in found.tried) else ""
        )
        sentences += [f"{marked}{LAW_ENDS}{_limit(found, asked)}", LEFT_OUT]
    return sentences


def _limit(found: Intervals, asked: Question) -> str:
    """What the limits of the law mean for the best interval, where the search chose it."""
    if found.longest is None:
        return ""
    limit = f" So intervals above {found.longest:,} are not recommended."
    if asked.rounds_known:
        return limit
    rounds = FEWEST_INTERVALS * found.best_interval
    return f"{limit} How many rounds training takes is unknown; the best interval needs {rounds:,} or more."
