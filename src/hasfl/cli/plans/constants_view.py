"""What nobody knows of the constants, as tables and in words: the guesses, and what mistakes cost."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from hasfl.cli.tables import titled
from hasfl.plan import PlanReport
from hasfl.planning.advice.sensitivity import Mistake, in_words
from hasfl.planning.guess_ratios import Ratio, mean_ratio, ratios
from hasfl.runs.questions import Question
from hasfl.units import format_seconds, format_share

GUESS, WEIGHT, TIME = "if this guess is right", "weight", "training takes"
COMPARED = "this plan takes, compared\nwith the best plan for it"
UNLIKE = "0: all devices have the same shares of labels, 1: they have no label in common"


def show_guesses(report: PlanReport, asked: Question) -> None:
    """Print what the plan costs by each guess of the constants; nothing without guesses."""
    found = ratios(report.plan, asked.problem)
    if not found:
        return
    console = Console()
    table = titled("The guesses of the constants")
    for name in guess_columns(asked):
        table.add_column(name, justify="left" if name == GUESS else "right", no_wrap=True)
    for row in guess_rows(report, asked, found):
        table.add_row(*map(Text, row))
    console.print(table)
    for sentence in guess_sentences(report, asked, found):
        console.print(Text(f"  {sentence}"))


def guess_columns(asked: Question) -> list[str]:
    """The heads of the columns of `guess_rows`."""
    return [GUESS, WEIGHT, *([TIME] if asked.rounds_known else []), COMPARED]


def guess_rows(report: PlanReport, asked: Question, found: Sequence[Ratio]) -> list[tuple[str, ...]]:
    """What the plan costs by each guess, by column."""
    return [
        (
            each.guess,
            format_share(each.weight),
            *([format_seconds(each.rounds * report.round_seconds)] if asked.rounds_known else []),
            f"{each.ratio:.2f} times as long",
        )
        for each in found
    ]


def guess_sentences(report: PlanReport, asked: Question, found: Sequence[Ratio]) -> list[str]:
    """The mean and the worst ratio, what is proved of the mean, and how unlike labels are."""
    worst = max(each.ratio for each in found)
    mean = (
        f"The mean ratio: with these weights, the plan takes {mean_ratio(found):.3f} times as long as the "
        f"best plan for the guess that is right. At worst, it takes {worst:.2f} times as long."
    )
    sentences = [mean]
    if report.gap is not None:
        sentences.append(f"No plan has a mean ratio that is smaller by more than {format_share(report.gap)}.")
    assert asked.scenario is not None, "only scenarios have guesses"
    own = asked.scenario.training.interval
    if asked.problem.interval != own:
        sentences.append(f"The plans that it is compared with have the interval of the file, {own}.")
    if asked.unlikeness is None:
        sentences.append("How unlike labels are is unknown, so they count as wholly unlike.")
    else:
        sentences.append(f"Labels are {asked.unlikeness:.2f} unlike ({UNLIKE}).")
    return sentences


def show_mistakes(found: Sequence[Mistake]) -> None:
    """Print what is planned, predicted and lost with every constant off by every factor."""
    console = Console()
    table = titled("If a constant is off")
    for name in ("constant", "off by", "median\nbatch", "cuts", "predicted", "loses"):
        table.add_column(name, justify="left" if name in ("constant", "loses") else "right")
    for mistake in found:
        table.add_row(*map(Text, _row(mistake)))
    console.print(table)
    for sentence in in_words(found):
        console.print(Text(f"  {sentence}"))


def _row(mistake: Mistake) -> tuple[str, ...]:
    return (
        mistake.constant,
        f"{mistake.factor:g} ×",
        "-" if mistake.median_batch is None else f"{mistake.median_batch:g}",
        "-" if mistake.cuts is None else "-".join(map(str, dict.fromkeys(mistake.cuts))),
        "-" if mistake.predicted_seconds is None else format_seconds(mistake.predicted_seconds),
        mistake.trouble or format_share(mistake.regret or 0.0),
    )
