"""What wrong constants would cost, as a table and in words."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from hasfl.cli.tables import titled
from hasfl.planning.advice.sensitivity import Mistake, in_words
from hasfl.units import format_seconds, format_share


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
