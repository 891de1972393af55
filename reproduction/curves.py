"""Draws accuracy over virtual time (Figs. 5, 10, 11), and time to an accuracy over a resource (7 to 9)."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hasfl.arrays import FloatN
from hasfl.report.canvas import ABOVE_LINES, DARK, GRID_WIDTH, TO_PERCENT, label
from reproduction.experiment import Experiment, Point
from reproduction.look import Look
from reproduction.panels import (
    differ_widely,
    grid,
    grid_lines,
    legend,
    line_handles,
    looks,
    not_reached,
    panel_grid,
    reference_marks,
    thinned,
    time_axis,
    time_label,
    trained_panels,
    write_right,
)
from reproduction.results import Results, RunResult, percent
from reproduction.trained import Reach, Runs, Trained

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Against = Literal["clock", "rounds"]
# Numbers are chosen by hand, by the look of the figures; heights are in inches.
ROW_HEIGHT, RESOURCE_ROW_HEIGHT, OTHER_HEIGHT = 2.35, 2.55, 0.75
BAND_OPACITY, LONE_OPACITY = 0.16, 0.5  # opacity of the range over seeds, and of a lone seed's line
LONE_WIDTH = 0.7  # points: width of the line of a seed that trained longer than others
BEFORE_FIRST = 0.9  # a logarithmic axis begins at this share of the first evaluation's time
AFTER_LAST = 1.03  # a time axis ends at this multiple of the last evaluation's time
MARGIN = 1.3  # end of a logarithmic time axis, over the largest time
LINEAR_MARGIN = 1.08  # end of a linear time axis, over the largest time
ARROW = 9  # points: length of the arrow at a training that ended before it reached the accuracy
FAINT = 0.7  # points: width of the line to a point that a seed did not reach
SIDE_MARGIN = 0.07  # room left and right of the points, as a share of their range


def draw_curves(experiment: Experiment, results: Results) -> "Figure":
    """Draw the test accuracy of each strategy over virtual time, in one part for each panel.

    A mark shows when a strategy first had the accuracy of the dotted line, as the mean over its seeds. An
    open mark is the end of a strategy that did not reach this accuracy with every seed.
    """
    panels = trained_panels(experiment, results)
    logarithmic = any(map(_differs_widely, panels))
    figure = panel_grid(
        experiment,
        panels,
        lambda axes, trained: _draw_curves(axes, trained, logarithmic=logarithmic),
        row_heights=[ROW_HEIGHT] * grid(experiment)[0],
        other_height=OTHER_HEIGHT,
    )
    marks: dict[str, dict[str, Any]] = {
        "reaches the accuracy of the dotted line": {"marker": "o"},
        f"its end: {not_reached(experiment)}": {"marker": "o", "markerfacecolor": "white"},
    }
    legend(figure, [*line_handles(experiment, panels), *reference_marks(marks)])
    return figure


def _differs_widely(trained: Trained) -> bool:
    """Whether strategies end, or reach the accuracy, at widely different times."""
    runs, accuracy = trained.at(), trained.accuracy
    if accuracy is None:
        return False
    ends = [max(run.seconds for run in each) for each in runs.values()]
    return differ_widely(ends) or differ_widely(Reach.of(each, accuracy).mean for each in runs.values())


def _draw_curves(axes: "Axes", trained: Trained, *, logarithmic: bool) -> None:
    label(axes, x="virtual time", y="test accuracy (%)")
    runs, accuracy = trained.at(), trained.accuracy
    if not runs or accuracy is None:
        return
    all_looks = looks(trained.experiment)
    for strategy, each in runs.items():  # our wide line is first: it is visible below the others
        draw_accuracy(axes, each, all_looks[strategy], strategy, trained.experiment)
        _mark_reach(axes, each, all_looks[strategy], accuracy)
    axes.axhline(TO_PERCENT * accuracy, color=DARK, lw=GRID_WIDTH, ls=":", zorder=1)
    write_right(axes, percent(accuracy), TO_PERCENT * accuracy)
    first = min(float(run.clock[0]) for each in runs.values() for run in each)
    last = max(run.seconds for each in runs.values() for run in each)
    limits = (BEFORE_FIRST * first if logarithmic else 0.0, AFTER_LAST * last)
    unit = time_axis(axes, "x", limits, logarithmic=logarithmic)
    label(axes, x=time_label(unit), y="test accuracy (%)")
    grid_lines(axes)


def _mark_reach(axes: "Axes", runs: Runs, look: Look, accuracy: float) -> None:
    """Draw a mark where a strategy first had an accuracy, or else an open mark at the end of its line."""
    reach = Reach.of(runs, accuracy)
    if reach.everywhere:
        axes.plot(reach.mean, TO_PERCENT * accuracy, zorder=ABOVE_LINES, **look.mark())
        return
    at, lines = seed_lines(runs, "clock")
    axes.plot(at[-1], TO_PERCENT * lines[:, -1].mean(), zorder=ABOVE_LINES, **look.mark(filled=False))


def draw_accuracy(
    axes: "Axes",
    runs: Runs,
    look: Look,
    strategy: str,
    experiment: Experiment,
    against: Against = "clock",
) -> None:
    """Draw the accuracies of one strategy: the mean over its seeds as a line, their range as a band.

    Seeds are evaluated at different times. So the evaluations of each seed are joined by lines first. The
    mean and the range of these lines are taken at all times at which any seed was evaluated, while all seeds
    train. A seed that trained longer goes on as a thin line, because a mean over fewer seeds would jump.
    """
    at, lines = seed_lines(runs, against)
    style = thinned(look, strategy, experiment)
    axes.plot(at, TO_PERCENT * lines.mean(axis=0), **style)
    if len(runs) == 1:
        return
    low, high = TO_PERCENT * lines.min(axis=0), TO_PERCENT * lines.max(axis=0)
    axes.fill_between(at, low, high, color=look.colour, alpha=BAND_OPACITY, linewidth=0)
    for run in runs:
        times = getattr(run, against)
        later = times >= at[-1]
        if later.sum() > 1:
            rest = style | {"linewidth": LONE_WIDTH, "alpha": LONE_OPACITY}
            axes.plot(times[later], TO_PERCENT * run.accuracy[later], **rest)


def seed_lines(runs: Sequence[RunResult], against: Against) -> tuple[FloatN, FloatN]:
    """The times of all evaluations while all seeds train, and the accuracies of each seed at these times."""
    times = [getattr(run, against).astype(np.float64) for run in runs]
    begin, end = max(each[0] for each in times), min(each[-1] for each in times)
    at = np.unique(np.concatenate(times))
    at = at[(at >= begin) & (at <= end)]
    if not at.size:  # no time is common to all seeds
        at = np.array([end])
    return at, np.array([np.interp(at, x, run.accuracy) for x, run in zip(times, runs, strict=True)])


# ── the time to an accuracy over the quantity of the axis ────────────────────────────────────────────────


def draw_against(experiment: Experiment, results: Results) -> "Figure":
    """Draw the virtual time to an accuracy over the quantity of the axis, with a line for each strategy.

    A mark is the mean over seeds. The thin bar through it reaches from the fastest to the slowest seed. An
    open mark with an arrow is a training that ended before it reached the accuracy: it needs more time.
    """
    panels = trained_panels(experiment, results)
    heights = [RESOURCE_ROW_HEIGHT] * grid(experiment)[0]
    figure = panel_grid(experiment, panels, _draw_times, row_heights=heights, other_height=OTHER_HEIGHT)
    marks = {f"{not_reached(experiment)}, so it takes longer than shown": {"marker": "$\\uparrow$"}}
    legend(figure, [*line_handles(experiment, panels), *reference_marks(marks)])
    return figure


def _draw_times(axes: "Axes", trained: Trained) -> None:
    panel, accuracy = trained.panel, trained.accuracy
    label(axes, x=panel.axis or "", y="virtual time")
    if trained.is_empty or accuracy is None:
        return
    reaches = {
        strategy: {
            point: Reach.of(trained.runs[point, strategy], accuracy)
            for point in panel.points
            if trained.runs[point, strategy]
        }
        for strategy in panel.strategies
    }
    all_looks = looks(trained.experiment)
    for strategy in panel.strategies:
        _draw_strategy_times(axes, reaches[strategy], all_looks[strategy], strategy, trained)
    times = [second for each in reaches.values() for reach in each.values() for second in reach.seconds]
    logarithmic = differ_widely(times)
    margin = MARGIN if logarithmic else LINEAR_MARGIN
    limits = (min(times) / margin if logarithmic else 0.0, max(times) * margin)
    unit = time_axis(axes, "y", limits, logarithmic=logarithmic, most=6)
    label(axes, x=panel.axis or "", y=time_label(unit, accuracy))
    _name_points(axes, panel.points)
    grid_lines(axes)


def _draw_strategy_times(
    axes: "Axes", reaches: dict[Point, Reach], look: Look, strategy: str, trained: Trained
) -> None:
    """Draw a line through points at which all seeds reached the accuracy, and faint lines to other points."""
    points = sorted(trained.panel.points, key=place)
    means = [reaches[point].mean if point in reaches else math.nan for point in points]
    known = [point in reaches and reaches[point].everywhere for point in points]
    style = thinned(look, strategy, trained.experiment)
    axes.plot([place(point) for point in points], np.where(known, means, math.nan), **style)
    for (one, other), ends, both in zip(pairwise(points), pairwise(means), pairwise(known), strict=True):
        if not all(both):
            faint = style | {"linewidth": FAINT, "alpha": 0.6}
            axes.plot([place(one), place(other)], ends, **faint)
    for point, reach in reaches.items():
        x = place(point)
        axes.plot([x, x], [min(reach.seconds), max(reach.seconds)], color=look.colour, lw=0.8)
        axes.plot(x, reach.mean, zorder=ABOVE_LINES, **look.mark(filled=reach.everywhere))
        if not reach.everywhere:
            axes.annotate(
                "",
                xy=(x, reach.mean),
                xytext=(0, ARROW),
                textcoords="offset points",
                arrowprops={"arrowstyle": "<-", "color": look.colour, "lw": 0.9, "shrinkA": 0, "shrinkB": 2},
            )


def place(point: Point) -> float:
    """The position of a point on the axis."""
    return 0.0 if point.value is None else point.value


def _name_points(axes: "Axes", points: tuple[Point, ...]) -> None:
    """Put a tick at every point; the axis is logarithmic if factors between points are about equal."""
    places = np.array(sorted({place(point) for point in points}))
    labels = {place(point): point.label for point in points}
    if _evenly_multiplied(places):
        axes.set_xscale("log")
        reach = (places[-1] / places[0]) ** SIDE_MARGIN
        axes.set_xlim(places[0] / reach, places[-1] * reach)
    else:
        reach = SIDE_MARGIN * (np.ptp(places) or 1.0)
        axes.set_xlim(places[0] - reach, places[-1] + reach)
    axes.set_xticks(places, labels=[labels[each] for each in places])
    axes.set_xticks([], minor=True)


def _evenly_multiplied(places: np.ndarray) -> bool:
    """Whether the points are closer to a geometric sequence than to an arithmetic one."""
    if len(places) < 3 or places[0] <= 0:
        return False
    steps, factors = np.diff(places), np.diff(np.log(places))
    return bool(np.ptp(factors) / factors.mean() < np.ptp(steps) / steps.mean())
