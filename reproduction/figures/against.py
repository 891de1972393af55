"""Time to an accuracy against a resource or the number of devices (Figs. 7, 8 and 9 of the paper)."""

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from hasfl.report.canvas import ABOVE_LINES, label, new_figure
from reproduction.experiment import Experiment, Point
from reproduction.figures.look import Look
from reproduction.figures.panels import (
    differ_widely,
    grid,
    grid_lines,
    head,
    legend,
    line_handles,
    looks,
    not_reached,
    reference_marks,
    thinned,
    time_axis,
    time_label,
    title,
    trained_panels,
)
from reproduction.figures.reaching import Reach, Trained
from reproduction.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Numbers are chosen by hand, by the look of the figures; heights are in inches.
ROW_HEIGHT, OTHER_HEIGHT = 2.55, 0.75
MARGIN = 1.3  # a logarithmic time axis reaches so many times beyond the times, a linear one a part of that
LINEAR_MARGIN = 1.08
ARROW = 9  # points: the length of the arrow at a training that ended too early
FAINT = 0.7  # points
SIDE_MARGIN = 0.07  # left and right of the points, as a share of the axis


def draw_against(experiment: Experiment, results: Results) -> "Figure":
    """The virtual time to an accuracy, over what changes from point to point, with a line for each strategy.

    A mark is the mean over seeds. The thin bar through it reaches from the fastest to the slowest seed. An
    open mark with an arrow is a training that ended before it reached the accuracy: it needs more time.
    """
    rows, columns = grid(experiment)
    figure = new_figure(ROW_HEIGHT * rows + OTHER_HEIGHT)
    panels = trained_panels(experiment, results)
    head(figure, experiment)
    places = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, trained in zip(places, panels, strict=False):
        _draw_panel(axes, trained)
    for axes in places[len(panels) :]:
        axes.remove()
    marks = {f"{not_reached(experiment)}, so it takes longer than shown": {"marker": "$\\uparrow$"}}
    legend(figure, [*line_handles(experiment, panels), *reference_marks(marks)])
    return figure


def _draw_panel(axes: "Axes", trained: Trained) -> None:
    panel, accuracy = trained.panel, trained.accuracy
    title(axes, trained)
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
        _draw_strategy(axes, reaches[strategy], all_looks[strategy], strategy, trained)
    times = [second for each in reaches.values() for reach in each.values() for second in reach.seconds]
    logarithmic = differ_widely(times)
    margin = MARGIN if logarithmic else LINEAR_MARGIN
    limits = (min(times) / margin if logarithmic else 0.0, max(times) * margin)
    unit = time_axis(axes, "y", limits, logarithmic=logarithmic, most=6)
    label(axes, x=panel.axis or "", y=time_label(unit, accuracy))
    _name_points(axes, panel.points)
    grid_lines(axes)


def _draw_strategy(
    axes: "Axes", reaches: dict[Point, Reach], look: Look, strategy: str, trained: Trained
) -> None:
    """A line through points that all seeds reached the accuracy at; a faint one to other points."""
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
    """Where a point lies on the axis."""
    return 0.0 if point.value is None else point.value


def _name_points(axes: "Axes", points: tuple[Point, ...]) -> None:
    """Put a tick at every point; the axis is logarithmic where the points are."""
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
    """Whether the points are closer to a geometric row than to an arithmetic one."""
    if len(places) < 3 or places[0] <= 0:
        return False
    steps, factors = np.diff(places), np.diff(np.log(places))
    return bool(np.ptp(factors) / factors.mean() < np.ptp(steps) / steps.mean())
