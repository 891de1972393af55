"""Draws the time to an accuracy as bars: alone (beyond the paper), or beside the accuracy (Fig. 6)."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hasfl.report.canvas import ABOVE_LINES, DARK, HALF_CELL, TO_PERCENT, label, new_figure
from reproduction.experiment import Experiment
from reproduction.look import Look
from reproduction.panels import (
    differ_widely,
    grid,
    grid_lines,
    head,
    legend,
    looks,
    not_reached,
    panel_grid,
    part_title,
    reference_marks,
    say_nothing_here,
    time_axis,
    time_label,
    trained_panels,
    write_right,
)
from reproduction.results import Results
from reproduction.trained import Reach, Runs, Trained

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

# Numbers are chosen by hand, by the look of the figures; heights are in inches.
BAR_HEIGHT, LEAST_ROWS, ROW_MARGIN, OTHER_HEIGHT = 0.21, 3, 0.75, 0.65
BAR_SHARE = 0.7  # share of a bar's row that is filled
MARGIN, LOG_MARGIN = 1.04, 1.3  # end of a linear and of a logarithmic axis, over the largest value
TICKS = 3  # most ticks of a time axis
SEED_MARK = 5.0  # size of the mark of one seed in points
# Rows and heights of the figure with accuracies beside times.
PAIR_LEAST_ROWS, PAIR_ROW_MARGIN, PAIR_OTHER_HEIGHT = 4, 0.85, 0.75
PAIR_WIDTHS = (0.75, 1.0)  # relative widths of the parts with accuracies and with times
CONVERGED: dict[str, Any] = {
    "marker": "d",
    "linestyle": "",
    "markerfacecolor": "white",
    "markersize": 4.5,
    "zorder": ABOVE_LINES + 1,
}
CONVERGED_MEANS = "converged by the paper's rule"


@dataclass(frozen=True, slots=True)
class Row:
    """One bar: a strategy at a point. `ours` is the reach of our strategy at the same point."""

    name: str
    look: Look
    reach: Reach
    ours: Reach | None


def draw_bars(experiment: Experiment, results: Results) -> "Figure":
    """Draw the virtual time of each strategy to an accuracy, in one part for each panel.

    A bar is the mean over seeds; small marks are single seeds. The factor is to the first strategy of the
    panel. An open bar is a training that ended before it reached the accuracy. A logarithmic axis has dots
    instead of bars, because it has no zero.
    """
    panels = trained_panels(experiment, results)
    rows, columns = grid(experiment)
    counts = [len(rows_of(trained)) for trained in panels]
    heights = [
        max([LEAST_ROWS, *counts[columns * k : columns * (k + 1)]]) * BAR_HEIGHT + ROW_MARGIN
        for k in range(rows)
    ]
    figure = panel_grid(experiment, panels, _draw_bar_panel, row_heights=heights, other_height=OTHER_HEIGHT)
    legend(figure, reference_marks(marks_of(experiment)))
    return figure


def _draw_bar_panel(axes: "Axes", trained: Trained) -> None:
    label(axes, x="virtual time")
    rows = rows_of(trained)
    if rows and trained.accuracy is not None:
        draw_times(axes, rows, trained.accuracy)
        axes.set_yticks(range(len(rows)), labels=[row.name for row in rows])


def marks_of(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """The marks of a figure with bars, by their meaning."""
    seeds = {"a single seed": {"marker": "|"}} if len(experiment.all_seeds) > 1 else {}
    open_mark = {"marker": "s", "markerfacecolor": "white"}
    return seeds | {f"{not_reached(experiment)}, so it takes longer than shown": open_mark}


def rows_of(trained: Trained) -> list[Row]:
    """The bars of a panel from top to bottom: point by point, with the strategies of each in their order."""
    accuracy, all_looks = trained.accuracy, looks(trained.experiment)
    if accuracy is None:
        return []
    rows = []
    for point in trained.panel.points:
        reaches = {name: Reach.of(runs, accuracy) for name, runs in trained.at(point).items()}
        ours = reaches.get(trained.panel.strategies[0])
        for name, reach in reaches.items():
            words = [all_looks[name].name] if len(trained.panel.strategies) > 1 or not point.label else []
            rows.append(Row(", ".join([*words, *filter(None, [point.label])]), all_looks[name], reach, ours))
    return rows


def draw_times(
    axes: "Axes", rows: Sequence[Row], accuracy: float, *, brief: bool = False, also: Sequence[float] = ()
) -> None:
    """Draw the times of rows as bars with their texts; as dots if texts are `brief` or times differ widely.

    The axis has room for the times in `also`, too.
    """
    times = [*also, *(second for row in rows for second in row.reach.seconds)]
    logarithmic = differ_widely(times)
    limits = (min(times) / LOG_MARGIN, max(times) * LOG_MARGIN) if logarithmic else (0.0, max(times) * MARGIN)
    for place, row in enumerate(rows):
        _draw_row(axes, place, row, limits[0], bar=not (brief or logarithmic), brief=brief)
    unit = time_axis(axes, "x", limits, logarithmic=logarithmic, most=TICKS)
    axes.set_ylim(len(rows) - HALF_CELL, -HALF_CELL)
    label(axes, x=time_label(unit, accuracy, time="time" if brief else "virtual time"))
    axes.tick_params(axis="y", length=0)
    grid_lines(axes, "x")


def _draw_row(axes: "Axes", place: int, row: Row, left: float, *, bar: bool, brief: bool) -> None:
    reach, colour = row.reach, row.look.colour
    if bar:
        face, style = (colour, "-") if reach.everywhere else ("white", (0, (2, 1.5)))
        axes.barh(
            place, reach.mean, color=face, edgecolor=colour, linestyle=style, linewidth=0.9, height=BAR_SHARE
        )
    else:
        axes.plot([left, reach.mean], [place, place], color=colour, lw=0.8, alpha=0.5)
        axes.plot(reach.mean, place, zorder=ABOVE_LINES, **row.look.mark(filled=reach.everywhere))
    if len(reach.seconds) > 1:
        colour, size = (DARK, SEED_MARK) if bar else (colour, 2 * SEED_MARK)
        axes.plot(reach.seconds, [place] * len(reach.seconds), "|", color=colour, ms=size, zorder=ABOVE_LINES)
    text = reach.briefly(row.ours) if brief else reach.in_words(row.ours)
    write_right(axes, text, place)


# ── accuracies beside times ──────────────────────────────────────────────────────────────────────────────


def draw_converged(experiment: Experiment, results: Results) -> "Figure":
    """Draw the best accuracy of each strategy, and its virtual time to one common accuracy.

    A panel has both side by side. Bars and dots are means over seeds. The paper says "converged" if accuracy
    gained less than 0.02 % over five evaluations (`hasfl.goal.plateau`). If every seed converged, a diamond
    marks accuracy and time at convergence. The diamond says little about which strategy is faster: a strategy
    that stops early at a low accuracy converges early.
    """
    panels = trained_panels(experiment, results)
    rows, columns = grid(experiment)
    most = max([PAIR_LEAST_ROWS, *(len(trained.at()) for trained in panels)])
    figure = new_figure((most * BAR_HEIGHT + PAIR_ROW_MARGIN) * rows + PAIR_OTHER_HEIGHT)
    head(figure, experiment)
    parts = figure.subfigures(rows, columns, squeeze=False).flat
    for part, trained in zip(parts, panels, strict=False):
        _draw_pair(part, trained)
    times = {"time to the accuracy": {"marker": "o"}}
    legend(figure, reference_marks(times | marks_of(experiment) | {CONVERGED_MEANS: CONVERGED}))
    return figure


def _draw_pair(part: "SubFigure", trained: Trained) -> None:
    left, right = part.subplots(1, 2, width_ratios=PAIR_WIDTHS)
    part_title(part, trained)
    label(left, x="best accuracy (%)")
    label(right, x="virtual time", frame=("bottom",))
    rows, all_looks = rows_of(trained), looks(trained.experiment)
    runs = trained.at()
    if not rows or trained.accuracy is None:
        say_nothing_here(left, "not trained yet")
        right.set_axis_off()
        return
    ends = {strategy: convergence(each) for strategy, each in runs.items()}
    times = [end.seconds for end in ends.values() if end]
    draw_times(right, rows, trained.accuracy, brief=True, also=times)
    right.spines["left"].set_visible(False)
    right.set_yticks([])
    for place, (strategy, each) in enumerate(runs.items()):
        _draw_accuracy(left, place, each, all_looks[strategy])
        if end := ends[strategy]:
            left.plot(TO_PERCENT * end.accuracy, place, color=DARK, **CONVERGED)
            right.plot(end.seconds, place, color=all_looks[strategy].colour, **CONVERGED)
    highest = max(run.best() for each in runs.values() for run in each)
    left.set_xlim(0, TO_PERCENT * highest * MARGIN)
    left.set_ylim(len(rows) - HALF_CELL, -HALF_CELL)
    left.set_yticks(range(len(rows)), labels=[row.look.name for row in rows])
    left.tick_params(axis="y", length=0)
    grid_lines(left, "x")


def _draw_accuracy(axes: "Axes", place: int, runs: Runs, look: Look) -> None:
    best = [run.best() for run in runs]
    mean = TO_PERCENT * fmean(best)
    axes.barh(place, mean, color=look.colour, height=BAR_SHARE)
    if len(best) > 1:
        values = [TO_PERCENT * each for each in best]
        axes.plot(values, [place] * len(best), "|", color=DARK, ms=6, zorder=ABOVE_LINES)
    write_right(axes, f"{mean:.1f} %", place)


class Convergence(NamedTuple):
    """Accuracy and time at which a strategy converged by the paper's rule, as means over seeds."""

    seconds: float
    accuracy: float


def convergence(runs: Runs) -> Convergence | None:
    """Accuracy and time at which a strategy converged; None if a seed did not converge."""
    known = [(run, end) for run in runs if (end := run.converged_at()) is not None]
    if len(known) < len(runs):
        return None
    return Convergence(
        fmean(float(run.clock[end]) for run, end in known),
        fmean(float(np.max(run.accuracy[: end + 1])) for run, end in known),
    )
