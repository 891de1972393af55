"""Tables and sentences in the form that all commands print."""

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def titled(title: str, **layout: Any) -> Table:
    """An empty table with a bold title, title and caption at the left; `layout` goes to rich's `Table`."""
    return Table(
        box=box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        **layout,
    )


def say(console: Console, sentence: str, style: str = "") -> None:
    """Print a sentence in one line, however long it is, so that names and commands can be copied."""
    console.print(Text(sentence, style), soft_wrap=True)


def every(interval: int) -> str:
    """How often aggregations happen: "every round", "every 15 rounds"."""
    return "every round" if interval == 1 else f"every {interval:,} rounds"
