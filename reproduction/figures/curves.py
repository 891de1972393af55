"""Accuracy against virtual time (Figs. 5, 10 and 11 of the paper)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hasfl.arrays import FloatN
from hasfl.report.canvas import ABOVE_LINES, DARK, GRID_WIDTH, TO_PERCENT, label, new_figure
from reproduction.experiment import Experiment
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
    write_right,
)
from reproduction.figures.reaching import Reach, Runs, Trained
from reproduction.results import Results, RunResult, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Against = Literal["clock", "rounds"]
# Numbers are chosen by hand, by the look of the figures; heights are in inches.
ROW_HEIGHT, OTHER_HEIGHT = 2.35, 0.75
BAND_OPACITY, LONE_OPACITY = 0.16, 0.5
LONE_WIDTH = 0.7  # points, of a seed that trained longer than another
BEFORE_FIRST = 0.9  # a logarithmic axis begins at this share of the first evaluation's time
AFTER_LAST = 1.03


def draw_curves(experiment: Experiment, results: Results) -> "Figure":
    """The test accuracy of each strategy over virtual time, a panel each.

    A mark shows when a strategy first had the accuracy of the dotted line: the mean over its seeds. An open
    mark is the end of a strategy of which a seed did not reach it.
    """
    rows, columns = grid(experiment)
    figure = new_figure(ROW_HEIGHT * rows + OTHER_HEIGHT)
    panels = trained_panels(experiment, results)
    head(figure, experiment)
    places = list(figure.subplots(rows, columns, squeeze=False).flat)
    logarithmic = any(map(_differs_widely, panels))
    for axes, trained in zip(places, panels, strict=False):
        _draw_panel(axes, trained, logarithmic=logarithmic)
    for axes in places[len(panels) :]:
        axes.remove()
    marks: dict[str, dict[str, Any]] = {
        "reaches the accuracy of the dotted line": {"marker": "o"},
        f"its end: {not_reached(experiment)}": {"marker": "o", "markerfacecolor": "white"},
    }
    legend(figure, [*line_handles(experiment, panels), *reference_marks(marks)])
    return figure


def _differs_widely(trained: Trained) -> bool:
    """Whether strategies end, or reach the accuracy, at widely different times."""
    runs, accuracy = trained.at(trained.panel.points[0]), trained.accuracy
    if accuracy is None:
        return False
    ends = [max(run.seconds for run in each) for each in runs.values()]
    return differ_widely(ends) or differ_widely(Reach.of(each, accuracy).mean for each in runs.values())


def _draw_panel(axes: "Axes", trained: Trained, *, logarithmic: bool) -> None:
    title(axes, trained)
    label(axes, x="virtual time", y="test accuracy (%)")
    runs, accuracy = trained.at(trained.panel.points[0]), trained.accuracy
    if not runs or accuracy is None:
        return
    all_looks = looks(trained.experiment)
    for strategy, each in runs.items():  # ours is drawn first: it is wide, so it is seen below the others
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
    """A mark where a strategy first had an accuracy, or an open one at the end of its line."""
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
    """The accuracies of one strategy: the mean over its seeds as a line, the range of its seeds as a band.

    Seeds are evaluated at different times. So each seed is first a line through its own evaluations. Mean and
    range are those of these lines at every time at which any seed was evaluated, while all seeds train. What
    a seed trained longer than another is a thin line of its own, since a mean over fewer seeds would jump.
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
    """The times at which all seeds train and any is evaluated, and the accuracies of each seed there."""
    times = [getattr(run, against).astype(np.float64) for run in runs]
    begin, end = max(each[0] for each in times), min(each[-1] for each in times)
    at = np.unique(np.concatenate(times))
    at = at[(at >= begin) & (at <= end)]
    if not at.size:  # no time is common to all seeds
        at = np.array([end])
    return at, np.array([np.interp(at, x, run.accuracy) for x, run in zip(times, runs, strict=True)])
