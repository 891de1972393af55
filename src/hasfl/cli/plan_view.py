"""Prints a plan: devices, the time of a round, guesses of the constants, advice, and intervals."""

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hasfl.arrays import FloatN
from hasfl.cli.tables import every, say, titled
from hasfl.constants import Guesses
from hasfl.plan import PlanReport
from hasfl.planning.advice.sensitivity import Mistake, in_words
from hasfl.planning.advice.why import EDGE_SERVER, Upgrades, pace_setters
from hasfl.planning.exact.guess_ratios import Ratio, mean_ratio, ratios
from hasfl.planning.intervals import FEWEST_INTERVALS, LONGEST_MEASURED, Intervals, Tried
from hasfl.problem import Problem
from hasfl.report.page.plan_page import Advice, GuessTable
from hasfl.runs.questions import Question
from hasfl.theory.latency import (
    AggregationLatency,
    SplitTrainingLatency,
    aggregation_latency,
    split_training_latency,
)
from hasfl.theory.objective import law_of, memory_needed
from hasfl.units import format_quantity, format_seconds, format_share

ROWS = 24  # most devices shown; of a larger fleet, the slowest. Chosen by hand
BAR = 16  # length of the bar of the longest phase, in characters
SHOWN_UPGRADES = 3  # most upgrades that are printed; chosen by hand
PARTS = {
    "T3": "is the last to send its activations",
    "T4": "is the last to be done with its gradients",
    "T5": "is the last to send its layers",
    "T6": "is the last to receive its layers",
}
WIDE = 100  # width of a terminal, in columns, with room for all columns of the table
COLUMNS = ("device", "batch", "cut", "compute", "uplink", "up (a1, a2)", "down (a4, a5)", "memory")


def show_plan(
    report: PlanReport,
    question: Question,
    intervals: Intervals | None,
    upgrades: Upgrades | None,
    mistakes: Sequence[Mistake],
) -> None:
    """Print the plan, the time of a round by step, the training time, and the advice that was asked for."""
    console, problem = Console(), question.problem
    split = split_training_latency(report.plan, problem.fleet, problem.profile)
    aggregation = aggregation_latency(report.plan, problem.fleet, problem.profile)
    console.print(_devices(report, problem, split, console.width))
    console.print(_phases(split, aggregation, problem.interval))
    planned_in = report.seconds if intervals is None else intervals.seconds
    console.print(_worth(report, question, planned_in))
    for remark in question.remarks:
        say(console, f"  {remark}")  # one line each: they contain commands to copy
    guesses = guess_table(report, question)
    if guesses is not None:
        _show_guesses(console, guesses)
    if intervals is not None:
        show_intervals(intervals, question)
    if upgrades is not None:
        console.print(_why(advice(report, question, upgrades, ())))
    if mistakes:
        show_mistakes(mistakes)


def _devices(report: PlanReport, problem: Problem, split: SplitTrainingLatency, width: int) -> Table:
    table = titled("What each device does")
    columns = [name for name in COLUMNS if width >= WIDE or name not in ("compute", "uplink")]
    for name in columns:
        table.add_column(name, justify="left" if name in ("device", "cut") else "right", no_wrap=True)
    taken = split.up + split.down
    shown = np.arange(len(taken)) if len(taken) <= ROWS else np.argsort(-taken, kind="stable")[:ROWS]
    for i in shown.tolist():
        row = _row(report, problem, split, i)
        table.add_row(*(row[name] for name in columns))
    number = f"the {len(shown)} of {len(problem.fleet)} devices that take longest; "
    table.caption = f"{number if len(shown) < len(problem.fleet) else ''}◀ slowest: everybody waits for it"
    return table


def _row(report: PlanReport, problem: Problem, split: SplitTrainingLatency, i: int) -> dict[str, Text]:
    """The cells of one device's row, by column."""
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
    """The time of device i in words, marked if it is the longest."""
    slowest = i == seconds.argmax()
    return Text(
        f"{format_seconds(seconds[i])} {'◀' if slowest else ' '}", style="bold yellow" if slowest else ""
    )


def _phases(split: SplitTrainingLatency, aggregation: AggregationLatency, interval: int) -> Table:
    """A table of the seconds of a round: the slowest devices, the edge server, a share of the aggregation."""
    up, down = int(split.up.argmax()), int(split.down.argmax())
    phases = {
        "a1 forward on the slowest device": split.device_forward[up],
        "a2 its activations up": split.activation_upload[up],
        "a3 forward on the server": split.server_forward,
        "a3 backward on the server": split.server_backward,
        "a4 gradients down to the slowest": split.gradient_download[down],
        "a5 backward on it": split.device_backward[down],
        f"b1 sub-models up, {every(interval)}": aggregation.up / interval,
        f"b3 sub-models down, {every(interval)}": aggregation.down / interval,
    }
    longest, total = max(phases.values()) or 1.0, sum(phases.values()) or 1.0
    table = titled("Where a round's time goes")
    table.add_column("step")
    table.add_column("time", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")
    for name, seconds in phases.items():
        bar = "█" * round(BAR * seconds / longest)
        table.add_row(name, format_seconds(seconds), f"{seconds / total:.0%}", Text(bar, style="cyan"))
    return table


def _worth(report: PlanReport, question: Question, planned_in: float) -> Text:
    problem, text, known = question.problem, Text(), question.rounds_known
    is_mean = isinstance(problem.constants, Guesses)
    if known:
        mean = ", in the mean over the guesses," if is_mean else ""
        text.append(f"  {format_seconds(report.objective)} of training{mean}", style="bold green")
        text.append(f" = {report.rounds:,.1f} rounds × {format_seconds(report.round_seconds)} a round\n")
    else:
        text.append(f"  {format_seconds(report.round_seconds)} a round\n", style="bold green")
    text.append(f"  a round: {format_seconds(report.split_seconds)} of split training; an aggregation ")
    text.append(f"{every(problem.interval)}: {format_seconds(report.aggregation_seconds)}\n")
    if known and not is_mean:
        text.append(f"  {law_of(problem).explain(report.plan)}\n")
    if report.status != "evaluated":
        proof = certificate(report, problem, rounds_known=known)
        text.append(f"  {proof}\n  planned in {format_seconds(planned_in)}\n")
    for line in warnings(report, problem):
        text.append(f"  {line}\n", style="bold red")
    return text


def certificate(report: PlanReport, problem: Problem, *, rounds_known: bool) -> str:
    """A sentence on the gap of the plan: of its training time or, with guesses, of its mean ratio."""
    if report.lower_bound is None or report.gap is None:
        return f"{report.status} after {report.iterations} iterations; a heuristic, nothing is proved"
    proof = f"at most {100 * report.gap:.3g} % could be saved"
    if isinstance(problem.constants, Guesses):
        proof = f"at most {100 * report.gap:.3g} % of the mean ratio (below) could be saved"
    elif rounds_known:
        proof = f"no plan takes less than {format_seconds(report.lower_bound)}, so {proof}"
    if report.status == "limit":
        return f"stopped at the time limit: {proof} (a larger --time-limit goes on)"
    return f"{report.status}: {proof}"


def advice(
    report: PlanReport, question: Question, upgrades: Upgrades | None, mistakes: Sequence[Mistake]
) -> Advice:
    """The advice that was asked for: who sets the pace, the best upgrades, the cost of wrong constants."""
    told: list[str] = in_words(mistakes) if mistakes else []
    if upgrades is None:
        return Advice(mistakes=told)
    known, found = question.rounds_known, [upgrade for upgrade in upgrades.found if upgrade.tells]
    limits = [] if found else ["10 % more of any one resource would save too little to tell"]
    if (tried := len(upgrades.found)) < upgrades.resources:
        limits.append(
            f"the time was enough to try {tried} of {upgrades.resources} resources: --time-limit sets it"
        )

    def amount(seconds: float) -> str:
        return format_seconds(seconds) if known else format_share(seconds / report.objective)

    return Advice(
        pace=[
            f"{who if who == EDGE_SERVER else f'device {who}'} {PARTS[part]}"
            for part, who in pace_setters(report.plan, question.problem).items()
        ],
        upgrades=[(each.resource, amount(each.saved_seconds), amount(each.error_seconds)) for each in found],
        limits=limits,
        mistakes=told,
    )


def _why(found: Advice) -> Text:
    """Sentences on who sets the pace, and which upgrades save most."""
    sentences = [
        *found.pace,
        *(
            f"10 % more {resource} would save {saved} of training; this is off by at most {error}"
            for resource, saved, error in found.upgrades[:SHOWN_UPGRADES]
        ),
        *found.limits,
    ]
    return Text("  Why not faster?\n", style="bold").append(
        "".join(f"  {sentence}\n" for sentence in sentences), style="not bold"
    )


def warnings(report: PlanReport, problem: Problem) -> list[str]:
    """Sentences on constraints that a plan breaks, and on doubts about the law of rounds."""
    too_full = np.flatnonzero(report.margins.memory < 0)
    too_large = np.flatnonzero(report.margins.max_batch < 0)
    too_small = np.flatnonzero(report.margins.min_batch < 0)
    fewest = problem.smallest_batch_upto[report.plan.deepest_cut - 1]
    return [
        *(f"not feasible: device {problem.fleet.names[i]} lacks memory" for i in too_full[:3]),
        *(
            f"not feasible: device {problem.fleet.names[i]} exceeds max_batch {problem.max_batch}"
            for i in too_large[:3]
        ),
        *(
            f"not feasible: device {problem.fleet.names[i]} has fewer than {fewest} samples, which layers on "
            "devices need to train on (batch norm)"
            for i in too_small[:3]
        ),
        *law_of(problem).doubts(),
    ]


# ── guesses of the constants, and mistakes in them ───────────────────────────────────────────────────────


GUESS, WEIGHT, TIME = "if this guess is right", "weight", "training takes"
COMPARED = "this plan takes, compared\nwith the best plan for it"
UNLIKE = "0: all devices have the same shares of labels, 1: they have no label in common"


def guess_table(report: PlanReport, question: Question) -> GuessTable | None:
    """The table of the plan's ratio by each guess of the constants; None without guesses."""
    found, known = ratios(report.plan, question.problem), question.rounds_known
    if not found:
        return None
    rows = [
        (
            each.guess,
            format_share(each.weight),
            *([format_seconds(each.rounds * report.round_seconds)] if known else []),
            f"{each.ratio:.2f} times as long",
        )
        for each in found
    ]
    columns = [GUESS, WEIGHT, *([TIME] if known else []), COMPARED]
    return GuessTable(columns=columns, rows=rows, sentences=_guess_sentences(report, question, found))


def _guess_sentences(report: PlanReport, question: Question, found: Sequence[Ratio]) -> list[str]:
    """Sentences on the mean and the worst ratio, the bound of the mean, and how unlike labels are."""
    worst = max(each.ratio for each in found)
    mean = (
        f"The mean ratio: with these weights, the plan takes {mean_ratio(found):.3f} times as long as the "
        f"best plan for the guess that is right. At worst, it takes {worst:.2f} times as long."
    )
    sentences = [mean]
    if report.gap is not None:
        sentences.append(f"No plan has a mean ratio that is smaller by more than {format_share(report.gap)}.")
    assert question.scenario is not None, "only scenarios have guesses"
    own = question.scenario.training.interval
    if question.problem.interval != own:
        sentences.append(f"The plans that it is compared with have the interval of the file, {own}.")
    if question.unlikeness is None:
        sentences.append("How unlike labels are is unknown, so they count as wholly unlike.")
    else:
        sentences.append(f"Labels are {question.unlikeness:.2f} unlike ({UNLIKE}).")
    return sentences


def _show_guesses(console: Console, guesses: GuessTable) -> None:
    table = titled("The guesses of the constants")
    for name in guesses.columns:
        table.add_column(name, justify="left" if name == GUESS else "right", no_wrap=True)
    for row in guesses.rows:
        table.add_row(*map(Text, row))
    console.print(table)
    for sentence in guesses.sentences:
        console.print(Text(f"  {sentence}"))


def show_mistakes(found: Sequence[Mistake]) -> None:
    """Print the plan, the prediction and the loss for each constant multiplied by each wrong factor."""
    console = Console()
    table = titled("If a constant is off")
    for name in ("constant", "off by", "median\nbatch", "cuts", "predicted", "loses"):
        table.add_column(name, justify="left" if name in ("constant", "loses") else "right")
    for mistake in found:
        table.add_row(*map(Text, _mistake_row(mistake)))
    console.print(table)
    for sentence in in_words(found):
        console.print(Text(f"  {sentence}"))


def _mistake_row(mistake: Mistake) -> tuple[str, ...]:
    return (
        mistake.constant,
        f"{mistake.factor:g} ×",
        "-" if mistake.median_batch is None else f"{mistake.median_batch:g}",
        "-" if mistake.cuts is None else "-".join(map(str, dict.fromkeys(mistake.cuts))),
        "-" if mistake.predicted_seconds is None else format_seconds(mistake.predicted_seconds),
        mistake.trouble or format_share(mistake.regret or 0.0),
    )


# ── several intervals ────────────────────────────────────────────────────────────────────────────────────


NO_PLAN = "no plan reaches the target"
DOUBTFUL = "*"  # marks plans outside the range in which the law was measured
LOOSE = 0.2  # largest bound on the saving of other intervals that is printed; chosen by hand
UNKNOWN = "How much other intervals could save is not known."
LAW_ENDS = (
    f"The law was measured for intervals up to {LONGEST_MEASURED} rounds and for trainings of at least "
    f"{FEWEST_INTERVALS} intervals."
)
# The numbers are from docs/constants.md, "How the constants go with N and I".
LEFT_OUT = (
    "The rounds that infinitely large batches would need count as the same for every interval. In trainings "
    "of 20 devices they rose by 4 to 20 % from 15 to 50 rounds, so long intervals take a little longer than "
    "the table says."
)


def show_intervals(found: Intervals, question: Question) -> None:
    """Print the plan of every interval that was tried; nothing if only one was."""
    if len(found.tried) == 1:
        return
    console, known = Console(), question.rounds_known
    table = titled("The best plan for each interval")
    last = ("rounds", "a round", "training") if known else ("a round", "training, compared\nwith the best")
    for name in ("interval", "median\nbatch", "cuts", *last, "gap"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for each in found.tried:
        table.add_row(*map(Text, _interval_row(each, found, rounds_known=known)))
    console.print(table)
    for sentence in _interval_sentences(found, question):
        console.print(Text(f"  {sentence}"))


def _interval_row(each: Tried, found: Intervals, *, rounds_known: bool) -> list[str]:
    """The cells of one interval; the last cell marks the best interval, and doubts about this one."""
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
        *(time if rounds_known else [format_seconds(report.round_seconds), f"{relative:.3f} times as long"]),
        "-" if report.gap is None else f"{100 * report.gap:.2g} %",
        f"{'◀ best' if each.interval == found.best_interval else ''}{DOUBTFUL if each.doubt else ''}",
    ]


def _interval_sentences(found: Intervals, question: Question) -> list[str]:
    """Sentences on the saving of intervals outside the table, and on the limits of the law."""
    sentences = []
    if found.others_save is not None:
        upto = "" if found.longest is None else f" up to {found.longest:,}"
        share = format_share(found.others_save)
        bound = f"No other interval{upto} saves more than {share} of the time."
        sentences.append(bound if found.others_save <= LOOSE else UNKNOWN)
    if question.problem.constants.kind == "measured":
        marked = (
            f"{DOUBTFUL} The law is not known for this plan. " if any(t.doubt for t in found.tried) else ""
        )
        sentences += [f"{marked}{LAW_ENDS}{_recommended_limit(found, question)}", LEFT_OUT]
    return sentences


def _recommended_limit(found: Intervals, question: Question) -> str:
    """A sentence on the limits of the law for the best interval; empty unless the search chose it."""
    if found.longest is None:
        return ""
    limit = f" So intervals above {found.longest:,} are not recommended."
    if question.rounds_known:
        return limit
    rounds = FEWEST_INTERVALS * found.best_interval
    return f"{limit} How many rounds training takes is unknown; the best interval needs {rounds:,} or more."
