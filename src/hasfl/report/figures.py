"""Figures of runs. Each function takes records and returns a matplotlib Figure, without global state."""

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hasfl.errors import InputError
from hasfl.fleet import kinds
from hasfl.replacing import replace_file
from hasfl.report.analysis import TEST_SET, Curve, Finish, Measure, Outcome, Records, finish, outcome
from hasfl.report.canvas import (
    ABOVE_LINES,
    ALL_SIDES,
    DARK,
    FIRST_LINE_WIDTH,
    GREY,
    GRID_WIDTH,
    HALF_CELL,
    LINE_WIDTH,
    LOGARITHMIC_FROM,
    MARK_SIZE,
    NORMAL,
    PALE,
    SMALL,
    TINY,
    TO_PERCENT,
    every,
    green_to_blue,
    heat_map,
    label,
    labels_in,
    levels,
    line_style,
    new_figure,
    require_matplotlib,
    time_unit,
    whole_ticks,
)
from hasfl.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Ticks of a logarithmic time axis, in seconds: about one for each factor of ten, with a round name.
LOG_TICKS = {
    "1 ms": 1e-3, "10 ms": 1e-2, "100 ms": 0.1, "1 s": 1.0, "10 s": 10.0, "1 min": 60.0, "10 min": 600.0,
    "1 h": 3600.0, "10 h": 36e3, "4 days": 345.6e3, "40 days": 3456e3, "400 days": 34.56e6,
}  # fmt: skip
FORMATS = (".png", ".svg")

# The numbers below are chosen by hand, by the look of the figures. Heights and widths are in inches, sizes of
# lines and marks in points.

# Accuracies over time.
LEAST_HEIGHT = 3.2
HEIGHT_PER_CURVE, HEIGHT_OF_MARKS = 0.45, 0.5  # the legend has one entry per curve, and explains the marks
LEGEND_SPACING = 0.9  # distance of entries, as a multiple of the font size
TICK_REACH = 2  # factor by which a tick may lie outside the data

# Times to the goal, above the accuracies.
RACE_BAR, RACE_CURVES, RACE_REST = 0.3, 2.2, 0.9  # heights: one bar with its gap, the curves, the rest
LEGEND_COLUMNS, LEGEND_ROW = 4, 0.2  # the legend lies below the curves, so that it hides none of them
BAR_SHARE = 0.7  # share of a bar's row that is filled
TEXT_SPACE, TEXT_DISTANCE = 0.45, 0.01  # room for text, and its distance from a bar, over the longest bar
SHOWN_TIME = 4.0  # end of the time axis of the curves, as a multiple of the fastest run's time
MINUTES_FROM = 600.0  # seconds from which an axis is in minutes
TOP = 101  # upper end of the axis of accuracies, in per cent
FEWEST_JUDGED = 3  # least number of evaluations on held-out samples that make a curve
BAR_TICKS = 4  # most ticks of the time axis below the bars
# The labels of the lower part's axis, and the names of the goal's line, by the kind of accuracy.
AXES = {"held_out_accuracy": "accuracy on held-out\nsamples (%)", "accuracy": "test accuracy (%)"}
GOALS = {"held_out_accuracy": "goal", "accuracy": "goal on held-out samples"}

# Samples of each class on each device.
MOST_COLUMNS = 100  # most columns; more devices are shown as groups
MOST_NUMBERS = 20  # largest number of devices, and of classes, for which cells show their numbers
CLASS_HEIGHT = 0.17  # height of a row of the matrix
LEAST_MATRIX, MOST_MATRIX = 1.6, 7.0  # the smallest and the largest height of the matrix
TOTALS_HEIGHT = 0.55  # height of the bars above the matrix
OTHER_HEIGHT = 1.2  # height of the bars, the labels and the margins together
BAR_WIDTH = 0.8  # share of a column's width that its bar fills
DEVICE_TICKS = 20  # most ticks of the axis of devices
DARK_FROM = 0.45  # cells above this share of the largest one are dark, so their numbers are white
SORTED_BY = 2  # number of a device's largest classes by which devices are sorted

# Plans over the rounds.
PLAN_HEIGHT = 4.4
MOST_DEVICES = 200  # most devices that are shown; of more, every k-th
MOST_ROUNDS = 400  # most rounds that are shown; of more, every k-th
ROUND_TICKS, PLAN_TICKS = 10, 6  # most ticks of the axes of rounds and of devices
MOST_NAMES = 12  # most names at the rows; of more devices, kinds are named


def accuracy_against_time(curves: Mapping[str, Records], seed: int) -> "Figure":
    """Draw the test accuracy of each strategy over virtual time, with a mark where it converged."""
    if not curves:
        raise InputError("a picture of accuracies needs at least one run, got none: train first")
    outcomes = [outcome(strategy, records) for strategy, records in curves.items()]
    ends = [result.seconds for result in outcomes]
    unit, size = time_unit(max(ends), smallest="s")
    figure = new_figure(max(LEAST_HEIGHT, HEIGHT_PER_CURVE * len(curves) + HEIGHT_OF_MARKS))
    axes = figure.add_subplot()
    for k, result in enumerate(outcomes):
        _draw_curve(axes, k, result, curves[result.strategy], size)
    axes.set_title(f"Accuracy against time (seed {seed})", loc="left", fontsize=NORMAL)
    tested = all(result.measured_on == TEST_SET for result in outcomes)
    label(axes, x=f"virtual time ({unit})", y="test accuracy (%)" if tested else "accuracy (%)")
    if max(ends) > LOGARITHMIC_FROM * min(ends) > 0:
        _make_time_logarithmic(axes, size)
    axes.grid(color=PALE, linewidth=GRID_WIDTH)
    for converged, meaning in ((True, "converged"), (False, "ended before it converged")):
        if any(result.converged == converged for result in outcomes):  # an entry of the legend for the mark
            axes.plot([], [], label=meaning, **_mark(DARK, filled=converged))
    figure.legend(loc="outside right upper", fontsize=SMALL, frameon=False, labelspacing=LEGEND_SPACING)
    return figure


def _draw_curve(axes: "Axes", k: int, result: Outcome, records: Records, unit_seconds: float) -> None:
    """Draw the accuracies of one run as line k, with a mark where the run converged or ended."""
    curve = Curve.of(records)
    times, percent = curve.seconds / unit_seconds, TO_PERCENT * curve.accuracies
    name = f"{result.strategy}\n{result.reached_accuracy:.1%} in {format_seconds(result.converged_seconds)}"
    width = LINE_WIDTH if k else FIRST_LINE_WIDTH
    axes.plot(times, percent, lw=width, label=name, **line_style(k))
    end = int(np.searchsorted(curve.seconds, result.converged_seconds))
    mark = _mark(line_style(k)["color"], filled=result.converged)
    axes.plot(times[end], percent[end], zorder=ABOVE_LINES, **mark)


def _mark(colour: str, *, filled: bool) -> dict[str, Any]:
    face, edge = (colour, "white") if filled else ("white", colour)
    return {
        "marker": "o",
        "linestyle": "",
        "markersize": MARK_SIZE,
        "markerfacecolor": face,
        "markeredgecolor": edge,
    }


def _make_time_logarithmic(axes: "Axes", unit_seconds: float) -> None:
    """Make the time axis logarithmic, with the ticks of `LOG_TICKS`."""
    low, high = axes.dataLim.intervalx * unit_seconds
    axes.set_xscale("log")
    ticks = {
        name: seconds
        for name, seconds in LOG_TICKS.items()
        if low / TICK_REACH <= seconds <= high * TICK_REACH
    }
    axes.set_xticks([seconds / unit_seconds for seconds in ticks.values()], labels=list(ticks))
    axes.minorticks_off()
    label(axes, x="virtual time", y=axes.get_ylabel())


def race_picture(runs: Mapping[str, Records], goal: float, seed: int) -> "Figure":
    """Draw the time of every strategy to the goal, and below the accuracy over the first part of that time.

    Each part has its own linear time axis. The factor to the fastest strategy is written beside each bar.
    """
    finishes = [finish(strategy, records, goal) for strategy, records in runs.items()]
    bars_height = RACE_BAR * len(finishes)
    legend_height = LEGEND_ROW * math.ceil(len(finishes) / LEGEND_COLUMNS)
    figure = new_figure(bars_height + RACE_CURVES + RACE_REST + legend_height)
    bars, curves = figure.subplots(2, height_ratios=[bars_height, RACE_CURVES])
    _draw_bars(bars, finishes, goal, seed)
    _draw_race_curves(curves, runs, finishes, goal)
    figure.legend(loc="outside lower center", ncols=LEGEND_COLUMNS, fontsize=SMALL, frameon=False)
    return figure


def _fastest(finishes: Sequence[Finish]) -> Finish:
    """The run that reached the goal first; if none reached it, the shortest run."""
    return min([run for run in finishes if run.reached] or finishes, key=lambda run: run.seconds)


def _unit(longest: float) -> tuple[str, float]:
    """The unit of a time axis that ends at `longest` seconds, and the length of the unit in seconds."""
    return ("ms", 1e-3) if longest < 1 else ("s", 1.0) if longest < MINUTES_FROM else ("min", 60.0)


def _draw_bars(axes: "Axes", finishes: Sequence[Finish], goal: float, seed: int) -> None:
    from matplotlib.ticker import MaxNLocator

    unit, size = _unit(max(run.seconds for run in finishes))
    fastest, longest = _fastest(finishes), max(run.seconds for run in finishes) / size
    for row, run in enumerate(finishes):
        colour = line_style(row)["color"]
        face, hatch = (colour, "") if run.reached else ("white", "///")
        axes.barh(row, run.seconds / size, color=face, edgecolor=colour, hatch=hatch, height=BAR_SHARE)
        place = run.seconds / size + TEXT_DISTANCE * longest
        axes.text(place, row, _finish_in_words(run, fastest), va="center", fontsize=SMALL, color=DARK)
    axes.set_yticks(range(len(finishes)), labels=[run.strategy for run in finishes])
    axes.set_ylim(len(finishes) - HALF_CELL, -HALF_CELL)
    axes.set_xlim(0, (1 + TEXT_SPACE) * longest)
    axes.set_xticks([tick for tick in MaxNLocator(BAR_TICKS).tick_values(0, longest) if tick <= longest])
    label(axes, x=f"virtual time ({unit})")
    axes.spines["bottom"].set_bounds(0, longest)
    title = f"Virtual time until {TO_PERCENT * goal:g} % of the held-out samples are right (seed {seed})"
    axes.set_title(title, loc="left", fontsize=NORMAL)


def _finish_in_words(run: Finish, fastest: Finish) -> str:
    time = format_seconds(run.seconds)
    if not run.reached:
        return f"not reached after {time}: {run.held_out_accuracy:.1%}"
    if run.seconds == fastest.seconds:
        return time
    return f"{time}, {run.seconds / fastest.seconds:.3g} times as long as {fastest.strategy}"


def _draw_race_curves(
    axes: "Axes", runs: Mapping[str, Records], finishes: Sequence[Finish], goal: float
) -> None:
    """Draw accuracies on held-out samples, or on the test set if a run has too few of the former."""
    edge = SHOWN_TIME * _fastest(finishes).seconds
    unit, size = _unit(edge)
    judged = [sum(record.held_out_accuracy is not None for record in records) for records in runs.values()]
    tested = all(any(record.accuracy is not None for record in records) for records in runs.values())
    measure: Measure = "held_out_accuracy" if min(judged) >= FEWEST_JUDGED or not tested else "accuracy"
    for k, (run, records) in enumerate(zip(finishes, runs.values(), strict=True)):
        curve = Curve.of(records, measure)
        name = f"{run.strategy} (later)" if curve.seconds[0] > edge else run.strategy
        width = LINE_WIDTH if k else FIRST_LINE_WIDTH
        times, percent = curve.seconds / size, TO_PERCENT * curve.accuracies
        axes.plot(times, percent, lw=width, label=name, **line_style(k))
        if run.reached and run.seconds <= edge:
            end = run.seconds / size, TO_PERCENT * getattr(run, measure)
            axes.plot(*end, "o", ms=MARK_SIZE, color=line_style(k)["color"], mec="white", zorder=ABOVE_LINES)
    axes.axhline(TO_PERCENT * goal, color=DARK, lw=GRID_WIDTH, ls=":")
    name = f"{GOALS[measure]} "
    axes.text(edge / size, TO_PERCENT * goal, name, va="bottom", ha="right", fontsize=SMALL, color=DARK)
    axes.set_xlim(0, edge / size)
    axes.set_ylim(top=TOP)
    label(axes, x=f"virtual time ({unit})", y=AXES[measure])
    axes.set_title(f"Accuracy in the first {format_seconds(edge)}", loc="left", fontsize=NORMAL)
    axes.grid(color=PALE, linewidth=GRID_WIDTH)


def who_holds_what(counts: NDArray[np.int64], class_names: Sequence[str]) -> "Figure":
    """Draw the number of samples that each device holds of each class; many devices are shown as groups."""
    if counts.ndim != 2 or not counts.size or counts.shape[1] != len(class_names):
        raise InputError(
            f"counts must have a row per device and a column for each of {len(class_names)} classes, "
            f"got an array of shape {counts.shape}: give one number per device and class"
        )
    columns, meaning = _columns(counts)
    height = min(max(CLASS_HEIGHT * len(class_names), LEAST_MATRIX), MOST_MATRIX)
    figure = new_figure(height + OTHER_HEIGHT)
    totals, cells = figure.subplots(2, sharex=True, height_ratios=[TOTALS_HEIGHT, height])
    totals.bar(np.arange(1, len(columns) + 1), columns.sum(axis=1), width=BAR_WIDTH, color=GREY)
    label(totals, y="samples")
    samples = np.ma.masked_equal(columns.T, 0)  # a cell without samples stays white
    most = max(1.0, columns.max())
    heat_map(cells, samples, meaning="samples of the class", cmap=green_to_blue(), vmin=0, vmax=most)
    label(cells, x=meaning, y="class", frame=ALL_SIDES)
    whole_ticks(cells, x=DEVICE_TICKS)
    step = every(len(class_names), labels_in(height))
    cells.set_yticks(range(1, len(class_names) + 1, step), labels=class_names[::step])
    if max(columns.shape) <= MOST_NUMBERS:
        _write_numbers(cells, columns.astype(np.int64))
    return figure


def _columns(counts: NDArray[np.int64]) -> tuple[NDArray[np.float64], str]:
    """The columns of the matrix, and their meaning: one per device, or the means of equal groups of devices.

    The groups are sorted by the two classes of which their devices hold the most samples.
    """
    if len(counts) <= MOST_COLUMNS:
        return counts.astype(np.float64), "device"
    by_size = np.argsort(-counts, axis=1, kind="stable")
    order = np.lexsort(by_size[:, SORTED_BY - 1 :: -1].T)  # lexsort takes the most important key last
    groups = np.array_split(counts[order], MOST_COLUMNS)
    meaning = f"means of {len(groups)} groups of the {len(counts):,} devices, sorted by their largest classes"
    return np.array([group.mean(axis=0) for group in groups]), meaning


def _write_numbers(axes: "Axes", columns: NDArray[np.int64]) -> None:
    """Write the number of samples into every cell that has any."""
    dark = columns > DARK_FROM * columns.max()
    for i, j in zip(*np.nonzero(columns), strict=True):
        colour = "white" if dark[i, j] else "black"
        axes.text(i + 1, j + 1, f"{columns[i, j]}", ha="center", va="center", fontsize=TINY, color=colour)


def plan_over_time(records: Records, names: Sequence[str]) -> "Figure":
    """Draw the batch size and the cut of each device over the rounds; white if a device did not take part.

    `names` are the names of all devices of the fleet.
    """
    if not records:
        raise InputError("a picture of plans needs at least one round, got none: train first")
    devices, first = len(names), records[0].round
    if (most := max(int(record.devices.max()) for record in records)) >= devices:
        raise InputError(
            f"a picture of plans needs the name of every device, got {devices} names and device {most + 1}: "
            "give the names of the fleet that was trained"
        )
    steps = (every(devices, MOST_DEVICES), every(len(records), MOST_ROUNDS))
    figure = new_figure(PLAN_HEIGHT)
    upper, lower = figure.subplots(2, sharex=True, sharey=True)
    batch_sizes = _over_time("batch_sizes", records, devices, steps)
    heat_map(upper, batch_sizes, meaning="batch size", first=first, steps=steps, cmap="viridis")
    cuts = _over_time("cuts", records, devices, steps)
    heat_map(lower, cuts, meaning="cut (layers on device)", first=first, steps=steps, **levels(cuts))
    rows = "device" if steps[0] == 1 else f"device (one in {steps[0]})"
    gaps = " (white: the device did not take part)" if np.isnan(cuts).any() else ""
    label(upper, y=rows, frame=ALL_SIDES)
    label(lower, x=f"round{gaps}", y=rows, frame=ALL_SIDES)
    rounds = (first - HALF_CELL, records[-1].round + HALF_CELL)
    lower.set(xlim=rounds, ylim=(devices + HALF_CELL, HALF_CELL))
    whole_ticks(lower, x=ROUND_TICKS)
    for axes in (upper, lower):
        _name_rows(axes, names)
    return figure


def _over_time(field: str, records: Records, devices: int, steps: tuple[int, int]) -> NDArray[np.float64]:
    """A field of the plan for every `steps[0]`-th device and every `steps[1]`-th round.

    The rows are devices, the columns rounds. A device that did not take part in a round has NaN.
    """
    columns = []
    for record in records[:: steps[1]]:
        column = np.full(devices, np.nan)
        column[record.devices] = getattr(record.plan, field)
        columns.append(column[:: steps[0]])
    return np.array(columns).T


def _name_rows(axes: "Axes", names: Sequence[str]) -> None:
    """Write the names of devices at their rows; of many devices, write the kinds, with lines between them."""
    if "" in kinds(names):
        whole_ticks(axes, y=PLAN_TICKS)
    elif len(names) <= MOST_NAMES:
        axes.set_yticks(range(1, len(names) + 1), labels=names, parse_math=False)
    else:
        blocks = {f"{kind} ({len(rows)})": np.array(rows) + 1 for kind, rows in kinds(names).items()}
        shown = dict(islice(blocks.items(), 0, None, every(len(blocks), MOST_NAMES)))
        axes.set_yticks([rows.mean() for rows in shown.values()], labels=list(shown), parse_math=False)
        for rows in [*blocks.values()][:-1]:
            axes.axhline(rows[-1] + HALF_CELL, color="white", linewidth=GRID_WIDTH)


def require_drawable(path: Path) -> None:
    """Raise InputError if no figure can be written to `path`; called before the figure is drawn."""
    require_matplotlib()
    if path.suffix.lower() not in FORMATS:
        raise InputError(
            f"a picture is written as {' or '.join(FORMATS)}, got {path.name}: change its ending"
        )
    if not path.parent.is_dir():
        raise InputError(f"the folder of {path} does not exist: make it, or choose another place")


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG or SVG, by the ending of `path`. The same figure gives the same bytes."""
    require_drawable(path)
    import matplotlib as mpl

    # Without the date, matplotlib's version and a random salt, the bytes do not change from run to run.
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else {"Software": None}
    with mpl.rc_context({"svg.hashsalt": "hasfl"}):
        advice = "free some space, or choose another place"
        replace_file(path, lambda file: figure.savefig(file, metadata=metadata), advice=advice)
