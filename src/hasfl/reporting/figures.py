"""Pictures of runs: records in, a Figure out. No global state, so any number can be drawn at once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hasfl.errors import InputError
from hasfl.record import RoundRecord
from hasfl.reporting.canvas import (
    ALL_SIDES,
    DARK,
    GREY,
    PALE,
    SMALL,
    TINY,
    every,
    green_to_blue,
    heat_map,
    label,
    labels_in,
    levels,
    line_style,
    new_figure,
    whole_ticks,
)
from hasfl.reporting.metrics import Outcome, accuracy_curve, outcome
from hasfl.reporting.replacing import replace_file
from hasfl.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TIME_UNITS = {"days": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0}
LOG_TICKS = {
    "1 ms": 1e-3, "10 ms": 1e-2, "100 ms": 0.1, "1 s": 1.0, "10 s": 10.0, "1 min": 60.0, "10 min": 600.0,
    "1 h": 3600.0, "10 h": 36e3, "4 days": 345.6e3, "40 days": 3456e3, "400 days": 34.56e6,
}  # fmt: skip
FORMATS = (".png", ".svg")
MOST_COLUMNS = 100  # devices in the picture of a partition; beyond, groups of them
MOST_NUMBERS = 20  # devices and classes up to which its cells have numbers in them
MOST_DEVICES = 200  # in the picture of plans; beyond, one in k
MOST_ROUNDS = 400


def accuracy_against_time(curves: Mapping[str, Sequence[RoundRecord]]) -> "Figure":
    """Test accuracy of each strategy over virtual time, with a mark where it converged."""
    if not curves:
        raise InputError("a picture of accuracies needs at least one run, got none: train first")
    outcomes = [outcome(strategy, records) for strategy, records in curves.items()]
    ends = [each.seconds for each in outcomes]
    unit = next((unit for unit, size in TIME_UNITS.items() if max(ends) >= 2 * size), "s")
    figure = new_figure(max(3.2, 0.45 * len(curves) + 0.5))
    axes = figure.add_subplot()
    for k, each in enumerate(outcomes):
        _, clock, accuracies = accuracy_curve(curves[each.strategy])
        width = 1.3 if k else 2.6  # the first shows also where another lies on it
        seconds = clock / TIME_UNITS[unit]
        axes.plot(seconds, 100 * accuracies, lw=width, label=_in_words(each), **line_style(k))
        end = int(np.searchsorted(clock, each.converged_seconds))
        dot = _dot(line_style(k)["color"], full=each.converged)
        axes.plot(seconds[end], 100 * accuracies[end], zorder=3, **dot)
    label(axes, x=f"virtual time ({unit})", y="test accuracy (%)")
    if max(ends) > 10 * min(ends) > 0:
        _tell_time_by_factors(axes, TIME_UNITS[unit])
    axes.grid(color=PALE, linewidth=0.5)
    _explain_marks(axes, outcomes)
    figure.legend(loc="outside right upper", fontsize=SMALL, frameon=False, labelspacing=0.9)
    return figure


def _in_words(each: Outcome) -> str:
    return f"{each.strategy}\n{each.converged_accuracy:.1%} in {format_seconds(each.converged_seconds)}"


def _dot(colour: str, *, full: bool) -> dict[str, Any]:
    face, edge = (colour, "white") if full else ("white", colour)
    return {
        "marker": "o",
        "linestyle": "",
        "markersize": 6.5,
        "markerfacecolor": face,
        "markeredgecolor": edge,
    }


def _explain_marks(axes: "Axes", outcomes: Sequence[Outcome]) -> None:
    for full, meaning in ((True, "converged"), (False, "ended before it converged")):
        if any(each.converged == full for each in outcomes):
            axes.plot([], [], label=meaning, **_dot(DARK, full=full))


def _tell_time_by_factors(axes: "Axes", unit: float) -> None:
    """A logarithmic axis with a tick at about every factor of ten that has a round name."""
    low, high = axes.dataLim.intervalx * unit
    axes.set_xscale("log")
    ticks = {name: seconds for name, seconds in LOG_TICKS.items() if low / 2 <= seconds <= high * 2}
    axes.set_xticks([seconds / unit for seconds in ticks.values()], labels=list(ticks))
    axes.minorticks_off()
    label(axes, x="virtual time", y=axes.get_ylabel())


def who_holds_what(counts: NDArray[np.int64], class_names: Sequence[str]) -> "Figure":
    """How many samples of each class each device holds; of very many devices, what groups of them hold."""
    _require_one_column_per_class(counts, class_names)
    columns, devices = _columns(counts)
    height = min(max(0.17 * len(class_names), 1.6), 7.0)
    figure = new_figure(height + 1.2)
    totals, cells = figure.subplots(2, sharex=True, height_ratios=[0.55, height])
    totals.bar(np.arange(1, len(columns) + 1), columns.sum(axis=1), width=0.8, color=GREY)
    label(totals, y="samples")
    held = np.ma.masked_equal(columns.T, 0)
    most = max(1.0, columns.max())
    heat_map(cells, held, meaning="samples of the class", cmap=green_to_blue(), vmin=0, vmax=most)
    label(cells, x=devices, frame=ALL_SIDES)
    whole_ticks(cells, x=20)
    step = every(len(class_names), labels_in(height))
    cells.set_yticks(range(1, len(class_names) + 1, step), labels=class_names[::step])
    if max(columns.shape) <= MOST_NUMBERS:
        _write_numbers(cells, columns.astype(np.int64))
    return figure


def _require_one_column_per_class(counts: NDArray[np.int64], class_names: Sequence[str]) -> None:
    if counts.ndim != 2 or not counts.size or counts.shape[1] != len(class_names):
        raise InputError(
            f"counts must have a row per device and a column for each of {len(class_names)} classes, "
            f"got an array of shape {counts.shape}: give one number per device and class"
        )


def _columns(counts: NDArray[np.int64]) -> tuple[NDArray[np.float64], str]:
    """A column per device, or the means of equal groups, sorted by the two classes they hold most of."""
    if len(counts) <= MOST_COLUMNS:
        return counts.astype(np.float64), "device"
    by_size = np.argsort(-counts, axis=1, kind="stable")
    order = np.lexsort(by_size[:, 1::-1].T)
    groups = np.array_split(counts[order], MOST_COLUMNS)
    meaning = (
        f"means of {len(groups)} groups of the {len(counts):,} devices, sorted by what they hold most of"
    )
    return np.array([group.mean(axis=0) for group in groups]), meaning


def _write_numbers(axes: "Axes", columns: NDArray[np.int64]) -> None:
    dark = columns > 0.45 * columns.max()
    for i, j in zip(*np.nonzero(columns), strict=True):
        colour = "white" if dark[i, j] else "black"
        axes.text(i + 1, j + 1, f"{columns[i, j]}", ha="center", va="center", fontsize=TINY, color=colour)


def plan_over_time(records: Sequence[RoundRecord]) -> "Figure":
    """The batch size and the cut that each device had last, over the rounds; white before its first."""
    if not records:
        raise InputError("a picture of plans needs at least one round, got none: train first")
    fleet, first = 1 + max(int(each.devices.max()) for each in records), records[0].round
    steps = (every(fleet, MOST_DEVICES), every(len(records), MOST_ROUNDS))
    figure = new_figure(4.4)
    upper, lower = figure.subplots(2, sharex=True, sharey=True)
    batch_sizes = _last_given("batch_sizes", records, fleet, steps)
    heat_map(upper, batch_sizes, meaning="batch size", first=first, steps=steps, cmap="viridis")
    cuts = _last_given("cuts", records, fleet, steps)
    heat_map(lower, cuts, meaning="cut (layers on device)", first=first, steps=steps, **levels(cuts))
    device = "device" if steps[0] == 1 else f"device (one in {steps[0]})"
    label(upper, y=device, frame=ALL_SIDES)
    label(lower, x="round", y=device, frame=ALL_SIDES)
    lower.set(xlim=(first - 0.5, records[-1].round + 0.5), ylim=(fleet + 0.5, 0.5))
    whole_ticks(lower, x=10, y=6)
    return figure


def _last_given(
    what: str, records: Sequence[RoundRecord], fleet: int, steps: tuple[int, int]
) -> NDArray[np.float64]:
    """What each device was given last: a row for each or for one in k, a column likewise per round."""
    last, columns = np.full(fleet, np.nan), []
    for k, each in enumerate(records):
        last[each.devices] = getattr(each.plan, what)
        if k % steps[1] == 0:
            columns.append(last[:: steps[0]].copy())
    return np.array(columns).T


def require_drawable(path: Path) -> None:
    """Refuse a file that no picture can be written to; better before it is made than after."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"a figure is written as {' or '.join(FORMATS)}, got {path.name}: change its ending")
    if not path.parent.is_dir():
        raise InputError(f"the folder of {path} does not exist: make it, or choose another place")


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a picture, as PNG or SVG by the ending of its name; the same figure gives the same bytes."""
    require_drawable(path)
    import matplotlib as mpl

    metadata = {"Date": None} if path.suffix.lower() == ".svg" else {"Software": None}
    with mpl.rc_context({"svg.hashsalt": "hasfl"}):
        advice = "make room there, or choose another place"
        replace_file(path, lambda made: figure.savefig(made, metadata=metadata), advice=advice)
