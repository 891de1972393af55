"""The parts that all figures share: a grid of panels, titles and notes, time axes, a legend below."""

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hasfl.report.canvas import (
    DARK,
    GREY,
    GRID_WIDTH,
    LINE_HEIGHT,
    LOGARITHMIC_FROM,
    NORMAL,
    PALE,
    ROUND_STEPS,
    SMALL,
    TIME_UNITS,
    new_figure,
    time_unit,
)
from reproduction.experiment import Experiment
from reproduction.look import THIN, Look, look
from reproduction.results import Results, percent
from reproduction.trained import Trained

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

# Numbers without another source are chosen by hand, by the look of the figures.
COLUMNS = 2  # columns of panels, as in the paper
NOTE_SIZE = 7.0  # font size of notes in points
NOTE_WIDTH = 62  # characters that fit above a panel of half the width
TITLE_PAD = 4.0  # points between a panel and its title or note
NOTE_COLOUR = "#777777"
LEGEND_WIDTH, PART_LEGEND_WIDTH = 105, 66  # characters in a row of a legend: below all panels, below a part
LEGEND_GAP = 8  # characters that have room in an entry's mark and its distance to the next entry
BELOW_AXIS = 27  # points from an axis to the legend below the axis's label
TIME_TICKS = 5  # most ticks of a time axis
# Round numbers of each unit of time, for the ticks of logarithmic axes.
ROUND_NUMBERS = {
    "ms": (1, 10, 100),
    "s": (1, 2, 5, 10, 20),
    "min": (1, 2, 5, 10, 20),
    "h": (1, 2, 5, 10),
    "days": (1, 2, 5, 10, 20, 50, 100, 200, 500),
}


def trained_panels(experiment: Experiment, results: Results) -> list[Trained]:
    """The trainings of each panel that have results."""
    return [Trained.of(experiment, panel, results) for panel in experiment.panels]


def looks(experiment: Experiment) -> dict[str, Look]:
    """The look of every strategy of a figure, in the order of its legend."""
    strategies = list(dict.fromkeys(name for panel in experiment.panels for name in panel.strategies))
    return {strategy: look(strategy, strategies) for strategy in strategies}


def grid(experiment: Experiment) -> tuple[int, int]:
    """The rows and columns of the panels of a figure."""
    columns = min(COLUMNS, len(experiment.panels))
    return math.ceil(len(experiment.panels) / columns), columns


def panel_grid(
    experiment: Experiment,
    panels: Iterable[Trained],
    draw_panel: Callable[["Axes", Trained], None],
    *,
    row_heights: Sequence[float],
    other_height: float,
) -> "Figure":
    """Draw a figure with panels in rows and columns; `draw_panel` draws each panel below its title."""
    rows, columns = grid(experiment)
    figure = new_figure(sum(row_heights) + other_height)
    head(figure, experiment)
    places = list(figure.subplots(rows, columns, squeeze=False, height_ratios=row_heights).flat)
    for trained in panels:
        axes = places.pop(0)
        title(axes, trained)
        draw_panel(axes, trained)
    for axes in places:
        axes.remove()
    return figure


def head(figure: "Figure", experiment: Experiment) -> None:
    """Write the title of a figure, with a note if it is the small version."""
    small = " (small version)" if experiment.quick else ""
    text = f"{experiment.figure}: {experiment.title}{small}"
    figure.suptitle(text, x=0.008, ha="left", fontsize=NORMAL, fontweight="bold")


def title(axes: "Axes", trained: Trained) -> None:
    """Write the title of a panel, and below it in grey the missing trainings.

    A panel without any result says so in its middle.
    """
    if trained.is_empty:
        say_nothing_here(axes, "not trained yet")
        notes = []
    else:
        notes = [line for note in trained.missing() for line in textwrap.wrap(note, NOTE_WIDTH)]
    pad = TITLE_PAD + LINE_HEIGHT * NOTE_SIZE * len(notes)
    axes.set_title(trained.panel.title, loc="left", fontsize=NORMAL, pad=pad)
    if notes:
        axes.annotate(
            "\n".join(notes),
            xy=(0, 1),
            xycoords="axes fraction",
            xytext=(0, TITLE_PAD - 1),
            textcoords="offset points",
            fontsize=NOTE_SIZE,
            color=NOTE_COLOUR,
            linespacing=LINE_HEIGHT,
            va="bottom",
        )


def part_title(part: "SubFigure", trained: Trained) -> None:
    """Write the title of a panel with several parts, and below the panel the missing trainings."""
    part.suptitle(trained.panel.title, x=0.02, ha="left", fontsize=NORMAL)
    notes = [line for note in trained.missing() for line in textwrap.wrap(note, NOTE_WIDTH)]
    if notes:
        part.supxlabel("\n".join(notes), fontsize=NOTE_SIZE, color=NOTE_COLOUR)


def subtitle(axes: "Axes", text: str) -> None:
    """Write the title of a part of a panel."""
    axes.set_title(text, loc="left", fontsize=NORMAL, pad=TITLE_PAD)


def write_above(axes: "Axes", text: str, x: float, y: float) -> None:
    """Write a number above its bar."""
    axes.annotate(
        text, (x, y), (0, 2), textcoords="offset points", ha="center", fontsize=SMALL, color=DARK
    ).set_in_layout(False)


def write_right(axes: "Axes", text: str, y: float) -> None:
    """Write a text into the column to the right of the axes, at the height of its row."""
    axes.annotate(
        text,
        xy=(1, y),
        xycoords=("axes fraction", "data"),
        xytext=(2, 0),
        textcoords="offset points",
        va="center",
        fontsize=SMALL,
        color=DARK,
    )


def say_nothing_here(axes: "Axes", text: str) -> None:
    """Write into the middle of an empty panel why it is empty."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GREY, fontsize=NORMAL)
    axes.set(xticks=[], yticks=[])


def not_reached(experiment: Experiment) -> str:
    """The meaning of an open mark, in words."""
    return "not reached" if len(experiment.all_seeds) == 1 else "not reached by every seed"


def legend(figure: "Figure", handles: Sequence["Artist"]) -> None:
    """Draw one legend below all panels, with as many columns as fit."""
    if not handles:
        return
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=_legend_columns(handles),
        fontsize=SMALL,
        frameon=False,
        handlelength=2.8,
        columnspacing=1.6,
    )


def legend_below(axes: "Axes", handles: Sequence[Any]) -> None:
    """Draw a legend below one part of a panel, under the label of its axis."""
    from matplotlib.transforms import offset_copy

    if not handles:
        return
    figure: Any = axes.figure
    axes.legend(
        handles=list(handles),
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=offset_copy(axes.transAxes, figure, y=-BELOW_AXIS, units="points"),
        ncols=_legend_columns(handles, PART_LEGEND_WIDTH),
        fontsize=SMALL,
        frameon=False,
        handlelength=1.6,
        columnspacing=1.2,
    )


def _legend_columns(handles: Sequence["Artist"], width: int = LEGEND_WIDTH) -> int:
    """The most columns of a legend that fit into a row; matplotlib fills column by column."""
    sizes = [len(str(handle.get_label())) + LEGEND_GAP for handle in handles]
    for columns in range(len(sizes), 1, -1):
        if sum(int(column.max()) for column in np.array_split(sizes, columns)) <= width:
            return columns
    return 1


def line_handles(experiment: Experiment, panels: Iterable[Trained], *, marks: bool = True) -> list["Artist"]:
    """The entries of a legend for the strategies that are drawn: lines, with marks if `marks`."""
    from matplotlib.lines import Line2D

    drawn = {strategy for trained in panels for (_, strategy), runs in trained.runs.items() if runs}
    return [
        Line2D(
            [], [], **(each.mark() if marks else {}) | thinned(each, strategy, experiment), label=each.name
        )
        for strategy, each in looks(experiment).items()
        if strategy in drawn
    ]


def thinned(each: Look, strategy: str, experiment: Experiment) -> dict[str, Any]:
    """Arguments for a strategy's line, which is thinner if the paper's figure lacks the strategy."""
    beside = bool(experiment.paper) and strategy not in experiment.paper
    return each.line | ({"linewidth": min(each.width, THIN)} if beside else {})


def grid_lines(axes: "Axes", axis: str = "both") -> None:
    """Draw pale lines behind the data."""
    axes.grid(axis=axis, color=PALE, linewidth=GRID_WIDTH)  # type: ignore[arg-type]
    axes.set_axisbelow(True)


def differ_widely(times: Iterable[float]) -> bool:
    """Whether times differ so widely that their axis is logarithmic."""
    known = [time for time in times if time > 0]
    return bool(known) and max(known) > LOGARITHMIC_FROM * min(known)


def time_axis(
    axes: "Axes",
    which: Literal["x", "y"],
    limits: tuple[float, float],
    *,
    logarithmic: bool,
    most: int = TIME_TICKS,
) -> str:
    """Make an axis a time axis, with limits in seconds and readable ticks; return the unit for its label.

    The data stay in seconds. On a logarithmic axis every tick has its own unit, so the returned one is empty.
    """
    ticks, unit = (_log_ticks(*limits, most), "") if logarithmic else _linear_ticks(*limits, most)
    axes.set(**{f"{which}scale": "log" if logarithmic else "linear", f"{which}lim": limits})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_ticks(list(ticks.values()), labels=list(ticks))
    axis.set_ticks([], minor=True)
    return unit


def _log_ticks(low: float, high: float, most: int) -> dict[str, float]:
    """Round times between two limits, about `most` of them or fewer."""
    known = {f"{n} {unit}": n * TIME_UNITS[unit] for unit, each in ROUND_NUMBERS.items() for n in each}
    known["1 day"] = known.pop("1 days")
    inside = {name: seconds for name, seconds in known.items() if low <= seconds <= high}
    roundest_first = sorted(inside, key=lambda name: (name.split()[0].strip("0") != "1", inside[name]))
    chosen: dict[str, float] = {}
    gap = math.log(high / low) / most
    for name in roundest_first:
        if all(abs(math.log(inside[name] / other)) >= gap for other in chosen.values()):
            chosen[name] = inside[name]
    return chosen


def _linear_ticks(low: float, high: float, most: int) -> tuple[dict[str, float], str]:
    from matplotlib.ticker import MaxNLocator

    unit, size = time_unit(high, smallest="ms")
    values = MaxNLocator(most, steps=ROUND_STEPS).tick_values(low / size, high / size)
    return {f"{value:g}": value * size for value in values if low <= value * size <= high}, unit


def time_label(unit: str, accuracy: float | None = None, *, time: str = "virtual time") -> str:
    """The label of a time axis with its unit, for the time itself or for the time to an accuracy."""
    words = f"{time} ({unit})" if unit else time
    return words if accuracy is None else f"{words} to {percent(accuracy)}"


def reference_marks(meanings: dict[str, dict[str, Any]]) -> list["Artist"]:
    """The entries of a legend that explain marks, in a neutral colour."""
    from matplotlib.lines import Line2D

    neutral: dict[str, Any] = {"linestyle": "", "color": DARK, "markersize": 4.5, "markeredgecolor": DARK}
    return [Line2D([], [], **(neutral | style), label=meaning) for meaning, style in meanings.items()]
