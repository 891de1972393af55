"""Tables as all commands print them."""

from typing import Any

from rich import box
from rich.table import Table


def titled(title: str, **layout: Any) -> Table:
    """An empty table with a bold title at its left; `layout` goes to rich's `Table`."""
    return Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", **layout)
