"""The command `data`: the samples of each device by class, as a table that fits the terminal."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from hasfl.cli.options import AsJson, ScenarioFile
from hasfl.cli.tables import say, titled
from hasfl.errors import InputError, naming

DEVICES_SHOWN = 40  # most devices in the table; chosen by hand
CLASSES_SHOWN = 10  # most classes that get a column; chosen by hand
ANY_WIDTH = 10_000  # width of a terminal, in columns, that has room for every table


def data(
    scenario: ScenarioFile,
    picture: Annotated[
        Path | None,
        typer.Option(
            help="Save a picture of the classes that each device holds in this file (.png or .svg)."
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--export",
            help="Write the samples of each device into a .npz file of this folder, and the test set into "
            "test.npz. hasfl serve device and hasfl serve edge take such files.",
            metavar="DIR",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how many samples of each class every device holds.

    If samples have several labels, or labels that are no classes, only the samples are counted.

    Example: hasfl data scenario.toml --export samples
    """
    from hasfl.data.partition import label_counts, sample_counts
    from hasfl.deployment.samples import export_samples
    from hasfl.report.figures import save_figure, who_holds_what
    from hasfl.runs.scenario import read_scenario
    from hasfl.runs.task import shared_data

    asked = read_scenario(scenario)
    with naming(str(scenario)):
        fleet = asked.draw()
        dataset, shares = shared_data(asked, fleet.names, folder=scenario.parent)
    names = dataset.class_names if dataset.one_class_each else ()
    counts = label_counts(shares, dataset.y_train.numpy(), len(names)) if names else sample_counts(shares)
    if picture is not None:
        if not names:
            raise InputError(
                f"a picture shows classes, but samples of {dataset.name} do not have one class each"
            )
        save_figure(who_holds_what(counts, names), picture)
    files = [] if to is None else export_samples(dataset, shares, fleet.names, to)
    if as_json:
        held = dict(zip(fleet.names, counts.tolist(), strict=True))
        drawn = {} if picture is None else {"picture": str(picture)}
        written = {"files": [str(file) for file in files]} if files else {}
        typer.echo(json.dumps({"classes": names, "samples": held, **drawn, **written}))
        return
    show_shares(dataset.name, fleet.names, counts, names, picture)
    if files:
        typer.echo(
            f"wrote the samples of {len(fleet)} devices into {to}, {files[0].name} to {files[-2].name}, and "
            f"{len(dataset.y_test):,} samples to test on into {files[-1].name}"
        )


def show_shares(
    name: str,
    devices: Sequence[str],
    counts: NDArray[np.int64],
    class_names: Sequence[str],
    picture: Path | None,
) -> None:
    """Print how many samples of each class each device holds; without classes, how many samples.

    If the names of classes are too long for the terminal, columns get numbers, and a line below the table
    explains them. If that is still too wide, columns move together. If that does not help either, or there
    are many classes, only the number of classes is shown.
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
        say(console, f"who holds what: {picture}")


def _table(
    name: str,
    devices: Sequence[str],
    cells: NDArray[np.int64],
    columns: Sequence[str],
    *,
    totals: NDArray[np.int64] | None = None,
    padding: int = 1,
) -> Table:
    """A table with a row for each device: its name, its samples, and a number for each column."""
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
    return table


def _width(console: Console, table: Table) -> int:
    """The width of a table in the terminal, in columns, if no cell is shortened."""
    room = console.options.update(width=ANY_WIDTH, max_width=ANY_WIDTH)
    return Measurement.get(console, room, table).maximum
