"""Who holds what: how many samples of each class every device has, as a table that fits the terminal."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from hasfl.cli.tables import titled

DEVICES_SHOWN = 40
CLASSES_SHOWN = 10
ANY_WIDTH = 10_000  # columns of a terminal that is wide enough for every table


def show_shares(
    name: str,
    devices: Sequence[str],
    counts: NDArray[np.int64],
    class_names: Sequence[str],
    picture: Path | None,
) -> None:
    """Print how many samples of each class each device holds; without classes, how many samples.

    Where the names of the classes are too long for the terminal, the columns have numbers, and a line below
    the table explains them. Then columns move together. Where there is still no room, or there are many
    classes, only the number of classes is shown.
    """
    console = Console()
    numbers = [str(j) for j in range(len(class_names))]
    for columns, padding in ((class_names, 1), (numbers, 1), (numbers, 0)):
        table = _table(name, devices, counts, columns, padding=padding)
        if len(class_names) <= CLASSES_SHOWN and _width(console, table) <= console.width:
            break
    else:
        columns, classes = class_names, np.count_nonzero(counts, axis=1)[:, None]
        table = _table(name, devices, classes, ["classes"], totals=counts.sum(axis=1))
    console.print(table)
    if list(columns) != list(class_names):
        legend = " · ".join(f"{number} {each}" for number, each in zip(numbers, class_names, strict=True))
        console.print(f"  classes: {escape(legend)}", highlight=False)
    if picture is not None:
        console.print(f"who holds what: {escape(str(picture))}", highlight=False, soft_wrap=True)


def _table(
    name: str,
    devices: Sequence[str],
    cells: NDArray[np.int64],
    columns: Sequence[str],
    *,
    totals: NDArray[np.int64] | None = None,
    padding: int = 1,
) -> Table:
    """A row for each device: its name, its samples, and a number for each column."""
    table = titled(f"Who holds what of {escape(name)}", padding=(0, padding))
    table.add_column("device", no_wrap=True)
    table.add_column("samples", justify="right", no_wrap=True)
    for column in columns:
        table.add_column(escape(column), justify="right", no_wrap=True)
    samples = cells.sum(axis=1) if totals is None else totals
    for device, total, row in list(zip(devices, samples, cells, strict=True))[:DEVICES_SHOWN]:
        numbers = [str(n) if n else "·" for n in row[: len(columns)]]
        table.add_row(escape(device), f"{total:,}", *numbers)
    if len(devices) > DEVICES_SHOWN:
        table.caption = f"the first {DEVICES_SHOWN} of {len(devices):,} devices"
        table.caption_justify = "left"
    return table


def _width(console: Console, table: Table) -> int:
    """The columns that a table takes if nothing is shortened."""
    room = console.options.update(width=ANY_WIDTH, max_width=ANY_WIDTH)
    return Measurement.get(console, room, table).maximum
