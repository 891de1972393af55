"""Accuracy and time of each strategy (Fig. 6 of the paper)."""

from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hasfl.goal import plateau
from hasfl.report.canvas import ABOVE_LINES, DARK, HALF_CELL, TO_PERCENT, label, new_figure
from reproduction.experiment import Experiment
from reproduction.figures.bars import BAR_HEIGHT, BAR_SHARE, draw_times, marks_of, rows_of
from reproduction.figures.look import Look
from reproduction.figures.panels import (
    grid,
    grid_lines,
    head,
    legend,
    looks,
    part_title,
    reference_marks,
    say_nothing_here,
    trained_panels,
    write_right,
)
from reproduction.figures.reaching import Runs, Trained
from reproduction.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

# Numbers are chosen by hand, by the look of the figures; heights are in inches.
LEAST_ROWS, ROW_MARGIN, OTHER_HEIGHT = 4, 0.85, 0.75
WIDTHS = (0.75, 1.0)  # of the accuracies and of the times
MARGIN = 1.04  # the axis of accuracies over the highest accuracy
CONVERGED: dict[str, Any] = {
    "marker": "d",
    "linestyle": "",
    "markerfacecolor": "white",
    "markersize": 4.5,
    "zorder": ABOVE_LINES + 1,
}
CONVERGED_MEANS = "converged by the paper's rule"


def draw_converged(experiment: Experiment, results: Results) -> "Figure":
    """For each strategy its best accuracy, and its virtual time to one accuracy that all are compared at.

    A panel has both side by side. Bars and dots are means over seeds. The paper says "converged" where
    accuracy gained less than 0.02 % over five evaluations (`hasfl.goal.plateau`). A diamond marks the
    accuracy and the time there, where every seed came so far. It says little of who is faster: a strategy
    that stops early and low converges early.
    """
    panels = trained_panels(experiment, results)
    rows, columns = grid(experiment)
    most = max([LEAST_ROWS, *(len(trained.at(trained.panel.points[0])) for trained in panels)])
    figure = new_figure((most * BAR_HEIGHT + ROW_MARGIN) * rows + OTHER_HEIGHT)
    head(figure, experiment)
    parts = figure.subfigures(rows, columns, squeeze=False).flat
    for part, trained in zip(parts, panels, strict=False):
        _draw_panel(part, trained)
    times = {"time to the accuracy": {"marker": "o"}}
    legend(figure, reference_marks(times | marks_of(experiment) | {CONVERGED_MEANS: CONVERGED}))
    return figure


def _draw_panel(part: "SubFigure", trained: Trained) -> None:
    left, right = part.subplots(1, 2, width_ratios=WIDTHS)
    part_title(part, trained)
    label(left, x="best accuracy (%)")
    label(right, x="virtual time", frame=("bottom",))
    rows, all_looks = rows_of(trained), looks(trained.experiment)
    runs = trained.at(trained.panel.points[0])
    if not rows or trained.accuracy is None:
        say_nothing_here(left, "not trained yet")
        right.set_axis_off()
        return
    ends = [end for each in runs.values() if (end := convergence(each))]
    draw_times(right, rows, trained.accuracy, brief=True, also=[end.seconds for end in ends])
    right.spines["left"].set_visible(False)
    right.set_yticks([])
    for place, (strategy, each) in enumerate(runs.items()):
        _draw_accuracy(left, place, each, all_looks[strategy])
        if end := convergence(each):
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
    axes.barh(place, TO_PERCENT * fmean(best), color=look.colour, height=BAR_SHARE)
    if len(best) > 1:
        values = [TO_PERCENT * each for each in best]
        axes.plot(values, [place] * len(best), "|", color=DARK, ms=6, zorder=ABOVE_LINES)
    write_right(axes, f"{TO_PERCENT * fmean(best):.1f} %", place)


class Convergence(NamedTuple):
    """Where a strategy converged by the paper's rule: means over seeds."""

    seconds: float
    accuracy: float


def convergence(runs: Runs) -> Convergence | None:
    """Where a strategy converged; None if a seed did not."""
    ends = [plateau(run.accuracy.tolist()) for run in runs]
    known = [(run, end) for run, end in zip(runs, ends, strict=True) if end is not None]
    if len(known) < len(runs):
        return None
    return Convergence(
        fmean(float(run.clock[end]) for run, end in known),
        fmean(float(np.max(run.accuracy[: end + 1])) for run, end in known),
    )
