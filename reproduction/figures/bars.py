"""Time to an accuracy as bars: hindsight, what parts are worth, and learning rates (beyond the paper)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hasfl.report.canvas import ABOVE_LINES, DARK, HALF_CELL, label, new_figure
from reproduction.experiment import Experiment
from reproduction.figures.look import Look
from reproduction.figures.panels import (
    differ_widely,
    grid,
    grid_lines,
    head,
    legend,
    looks,
    not_reached,
    reference_marks,
    time_axis,
    time_label,
    title,
    trained_panels,
    write_right,
)
from reproduction.figures.reaching import Reach, Trained
from reproduction.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Numbers are chosen by hand, by the look of the figures; heights are in inches.
BAR_HEIGHT, LEAST_ROWS, ROW_MARGIN, OTHER_HEIGHT = 0.21, 3, 0.75, 0.65
BAR_SHARE = 0.7  # of a bar's height that is filled
MARGIN, LOG_MARGIN = 1.04, 1.3  # the time axis reaches so many times beyond the times
TICKS = 3
SEED_MARK = 5.0  # points


@dataclass(frozen=True, slots=True)
class Row:
    """One bar: a strategy at a point. Its factor is to ours at the same point."""

    name: str
    look: Look
    reach: Reach
    ours: Reach | None


def draw_bars(experiment: Experiment, results: Results) -> "Figure":
    """The virtual time of each strategy to an accuracy, a panel each.

    A bar is the mean over seeds; small marks are single seeds. The factor is to the first strategy of the
    panel. An open bar is a training that ended before. On a logarithmic axis, where a bar has no beginning,
    there are dots.
    """
    panels = trained_panels(experiment, results)
    rows, columns = grid(experiment)
    contents = [rows_of(trained) for trained in panels]
    heights = [
        max([LEAST_ROWS, *map(len, contents[columns * k : columns * (k + 1)])]) * BAR_HEIGHT + ROW_MARGIN
        for k in range(rows)
    ]
    figure = new_figure(sum(heights) + OTHER_HEIGHT)
    head(figure, experiment)
    places = list(figure.subplots(rows, columns, squeeze=False, height_ratios=heights).flat)
    for axes, trained, content in zip(places, panels, contents, strict=False):
        title(axes, trained)
        label(axes, x="virtual time")
        if content and trained.accuracy is not None:
            draw_times(axes, content, trained.accuracy)
            axes.set_yticks(range(len(content)), labels=[row.name for row in content])
    for axes in places[len(panels) :]:
        axes.remove()
    legend(figure, reference_marks(marks_of(experiment)))
    return figure


def marks_of(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """What the marks of bars mean."""
    seeds = {"a single seed": {"marker": "|"}} if len(experiment.all_seeds) > 1 else {}
    open_mark = {"marker": "s", "markerfacecolor": "white"}
    return seeds | {f"{not_reached(experiment)}, so it takes longer than shown": open_mark}


def rows_of(trained: Trained) -> list[Row]:
    """The bars of a panel from above: point by point, and at each point the strategies in their order."""
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
    """The times of rows as bars with their texts; as dots if the texts are `brief` or times differ widely.

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
