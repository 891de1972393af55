"""Tables and sentences as all commands print them."""

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def titled(title: str, **layout: Any) -> Table:
    """An empty table with a bold title at its left; `layout` goes to rich's `Table`."""
    return Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", **layout)


def say(console: Console, sentence: str, style: str = "") -> None:
    """Print a sentence as it is, in one line however long it is, so that names in it can be copied."""
    console.print(Text(sentence, style), soft_wrap=True)
