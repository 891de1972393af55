"""Who reaches a goal first: when each run reached an accuracy on held-out samples, and a picture of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hasfl.record import RoundRecord
from hasfl.report.canvas import (
    ABOVE_LINES,
    DARK,
    FIRST_LINE_WIDTH,
    GRID_WIDTH,
    HALF_CELL,
    LINE_WIDTH,
    MARK_SIZE,
    NORMAL,
    PALE,
    SMALL,
    TO_PERCENT,
    label,
    line_style,
    new_figure,
)
from hasfl.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Records = Sequence[RoundRecord]
# Numbers are chosen by hand, by the look of the figure; heights are in inches.
BAR_HEIGHT, CURVES_HEIGHT, OTHER_HEIGHT = 0.3, 2.2, 0.9  # of one bar with its gap, of the curves, of the rest
LEGEND_COLUMNS, LEGEND_ROW = 4, 0.2  # below the curves, so that it hides none of them
BAR_SHARE = 0.7  # of a bar's height that is filled
TEXT_SPACE, TEXT_DISTANCE = 0.45, 0.01  # right of the bars, as shares of the longest bar
SHOWN_TIME = 4.0  # times the winner's time that the curves show; slower runs leave the frame to the right
MINUTES_FROM = 600.0  # seconds: a longer axis is in minutes
TOP = 101  # percent
FEWEST_JUDGED = 3  # evaluations on held-out samples that make a curve
BAR_TICKS = 4  # at most, on the time axis below the bars
# What the lower part may show, and what the line of the goal is called there.
AXES = {"held_out_accuracy": "accuracy on held-out\nsamples (%)", "accuracy": "test accuracy (%)"}
GOALS = {"held_out_accuracy": "goal", "accuracy": "goal on held-out samples"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """When one run reached the goal; where it did not, its last evaluation."""

    strategy: str
    reached: bool
    seconds: float  # of virtual time
    rounds: int
    held_out_accuracy: float
    accuracy: float  # on the test set, at the same evaluation; without a test set, on held-out samples


def finish(strategy: str, records: Records, goal: float) -> Finish:
    """When the run of a strategy first had the accuracy `goal` on held-out samples."""
    evaluated = [record for record in records if record.held_out_accuracy is not None]
    good = [record for record in evaluated if (record.held_out_accuracy or 0.0) >= goal]
    record = good[0] if good else evaluated[-1]
    assert record.held_out_accuracy is not None
    assert record.shown_accuracy is not None
    return Finish(
        strategy=strategy,
        reached=bool(good),
        seconds=record.clock,
        rounds=record.round,
        held_out_accuracy=record.held_out_accuracy,
        accuracy=record.shown_accuracy,
    )


def race_picture(runs: Mapping[str, Records], goal: float, seed: int) -> "Figure":
    """Above, the time of every strategy to the goal; below, accuracy over the first part of that time.

    Each part has its own linear time axis. The factor to the fastest strategy is written beside each bar.
    """
    finishes = [finish(strategy, records, goal) for strategy, records in runs.items()]
    bars_height = BAR_HEIGHT * len(finishes)
    legend_height = LEGEND_ROW * math.ceil(len(finishes) / LEGEND_COLUMNS)
    figure = new_figure(bars_height + CURVES_HEIGHT + OTHER_HEIGHT + legend_height)
    bars, curves = figure.subplots(2, height_ratios=[bars_height, CURVES_HEIGHT])
    _draw_bars(bars, finishes, goal, seed)
    _draw_curves(curves, runs, finishes, goal)
    figure.legend(loc="outside lower center", ncols=LEGEND_COLUMNS, fontsize=SMALL, frameon=False)
    return figure


def _fastest(finishes: Sequence[Finish]) -> Finish:
    """The run that reached the goal first; the shortest run where none reached it."""
    return min([run for run in finishes if run.reached] or finishes, key=lambda run: run.seconds)


def _unit(longest: float) -> tuple[str, float]:
    """The unit of a time axis that ends at so many seconds, and the seconds of the unit."""
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
        axes.text(place, row, _in_words(run, fastest), va="center", fontsize=SMALL, color=DARK)
    axes.set_yticks(range(len(finishes)), labels=[run.strategy for run in finishes])
    axes.set_ylim(len(finishes) - HALF_CELL, -HALF_CELL)
    axes.set_xlim(0, (1 + TEXT_SPACE) * longest)
    axes.set_xticks([tick for tick in MaxNLocator(BAR_TICKS).tick_values(0, longest) if tick <= longest])
    label(axes, x=f"virtual time ({unit})")
    axes.spines["bottom"].set_bounds(0, longest)
    title = f"Virtual time until {TO_PERCENT * goal:g} % of the held-out samples are right (seed {seed})"
    axes.set_title(title, loc="left", fontsize=NORMAL)


def _in_words(run: Finish, fastest: Finish) -> str:
    time = format_seconds(run.seconds)
    if not run.reached:
        return f"not reached after {time}: {run.held_out_accuracy:.1%}"
    if run.seconds == fastest.seconds:
        return time
    return f"{time}, {run.seconds / fastest.seconds:.3g} times as long as {fastest.strategy}"


def _draw_curves(axes: "Axes", runs: Mapping[str, Records], finishes: Sequence[Finish], goal: float) -> None:
    """Accuracies on held-out samples; on the test set if a run has too few of the former for a curve."""
    edge = SHOWN_TIME * _fastest(finishes).seconds
    unit, size = _unit(edge)
    judged = [sum(record.held_out_accuracy is not None for record in records) for records in runs.values()]
    tested = all(any(record.accuracy is not None for record in records) for records in runs.values())
    measure = "held_out_accuracy" if min(judged) >= FEWEST_JUDGED or not tested else "accuracy"
    for k, (run, records) in enumerate(zip(finishes, runs.values(), strict=True)):
        evaluated = [record for record in records if getattr(record, measure) is not None]
        seconds = [record.clock / size for record in evaluated]
        accuracies = [TO_PERCENT * getattr(record, measure) for record in evaluated]
        name = f"{run.strategy} (later)" if evaluated[0].clock > edge else run.strategy
        width = LINE_WIDTH if k else FIRST_LINE_WIDTH
        axes.plot(seconds, accuracies, lw=width, label=name, **line_style(k))
        if run.reached and run.seconds <= edge:
            end = run.seconds / size, TO_PERCENT * getattr(run, measure)
            axes.plot(*end, "o", ms=MARK_SIZE, color=line_style(k)["color"], mec="white", zorder=ABOVE_LINES)
    axes.axhline(TO_PERCENT * goal, color=DARK, lw=GRID_WIDTH, ls=":")
    axes.text(
        edge / size,
        TO_PERCENT * goal,
        f"{GOALS[measure]} ",
        va="bottom",
        ha="right",
        fontsize=SMALL,
        color=DARK,
    )
    axes.set_xlim(0, edge / size)
    axes.set_ylim(top=TOP)
    label(axes, x=f"virtual time ({unit})", y=AXES[measure])
    axes.set_title(f"Accuracy in the first {format_seconds(edge)}", loc="left", fontsize=NORMAL)
    axes.grid(color=PALE, linewidth=GRID_WIDTH)
