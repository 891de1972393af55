"""What a batch size changes: accuracy over rounds, and the seconds of a round (Fig. 2 of the paper)."""

from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from hasfl.report.canvas import label, new_figure, whole_ticks
from hasfl.units import format_seconds
from reproduction.experiment import Experiment
from reproduction.figures.curves import draw_accuracy
from reproduction.figures.look import fixed_numbers
from reproduction.figures.panels import (
    grid_lines,
    head,
    legend_below,
    line_handles,
    looks,
    subtitle,
    title,
    trained_panels,
    write_above,
)
from reproduction.figures.reaching import Runs, Trained
from reproduction.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Numbers are chosen by hand, by the look of the figures; heights are in inches.
ROW_HEIGHT, OTHER_HEIGHT = 2.6, 0.75
BAR_WIDTH = 0.7
TOP = 1.12  # the axis of seconds over the longest round
ROUND_TICKS = 6
# The steps of a round in the order of their time, under one name where they belong together. A step that is
# not here keeps its own name: nothing of a round may vanish. The colours are Paul Tol's muted ones, which
# people with any colour vision can distinguish. None is that of a strategy.
GROUPS = {
    "device_forward": "devices compute",
    "device_backward": "devices compute",
    "activation_upload": "uplink",
    "server_forward": "edge server computes",
    "server_backward": "edge server computes",
    "gradient_download": "downlink",
    "submodel_upload": "aggregation",
    "submodel_download": "aggregation",
    "data_upload": "collection of data",
    "reading_passes": "readings",
    "reading_exchange": "readings",
    "evaluation_passes": "evaluations",
    "evaluation_exchange": "evaluations",
}
GROUP_COLOURS = {
    "devices compute": "#332288",
    "uplink": "#88CCEE",
    "edge server computes": "#117733",
    "downlink": "#44AA99",
    "aggregation": "#DDCC77",
    "collection of data": "#999933",
    "readings": "#CC6677",
    "evaluations": "#AA4499",
}
OTHER_COLOUR = "#BBBBBB"


def draw_batches(experiment: Experiment, results: Results) -> "Figure":
    """Left, test accuracy over rounds for each batch size; right, the mean seconds of a round by step."""
    panels = trained_panels(experiment, results)
    figure = new_figure(ROW_HEIGHT * len(panels) + OTHER_HEIGHT)
    head(figure, experiment)
    for (left, right), trained in zip(figure.subplots(len(panels), 2, squeeze=False), panels, strict=True):
        draw_rounds(left, trained)
        _draw_seconds(right, trained)
    return figure


def draw_rounds(axes: "Axes", trained: Trained) -> None:
    """Test accuracy over rounds, a line for each strategy (the paper counts epochs)."""
    title(axes, trained)
    label(axes, x="round", y="test accuracy (%)")
    if trained.is_empty:
        return
    runs, all_looks = trained.at(trained.panel.points[0]), looks(trained.experiment)
    for strategy, each in runs.items():
        draw_accuracy(axes, each, all_looks[strategy], strategy, trained.experiment, "rounds")
    axes.set_xlim(0, max(int(run.rounds[-1]) for each in runs.values() for run in each))
    whole_ticks(axes, x=ROUND_TICKS)
    grid_lines(axes)
    legend_below(axes, line_handles(trained.experiment, [trained], marks=False))


def _draw_seconds(axes: "Axes", trained: Trained) -> None:
    """A bar for each strategy: the mean seconds of a round, one step above the other."""
    subtitle(axes, "Seconds of a round, by step")
    label(axes, x="batch size b (samples)", y="virtual seconds of a round")
    if trained.is_empty:
        axes.set(xticks=[], yticks=[])
        return
    steps = {
        strategy: grouped(mean_by_name(runs, "phases"))
        for strategy, runs in trained.at(trained.panel.points[0]).items()
    }
    names = [*GROUP_COLOURS, *dict.fromkeys(name for each in steps.values() for name in each)]
    bottom = np.zeros(len(steps))
    for name in dict.fromkeys(names):
        heights = np.array([each.get(name, 0.0) for each in steps.values()])
        if heights.any():
            colour = GROUP_COLOURS.get(name, OTHER_COLOUR)
            axes.bar(range(len(steps)), heights, BAR_WIDTH, bottom, color=colour, label=name)
            bottom += heights
    for place, height in enumerate(bottom):
        write_above(axes, format_seconds(height), place, height)
    axes.set_ylim(0, TOP * bottom.max())
    axes.set_xticks(range(len(steps)), labels=[short_name(trained, each, "b") for each in steps])
    legend_below(axes, axes.containers)
    grid_lines(axes, "y")


def mean_by_name(runs: Runs, field: str) -> dict[str, float]:
    """The mean over seeds of the entries of `phases` or of `bits`."""
    names = dict.fromkeys(name for run in runs for name in getattr(run, field))
    return {name: fmean(getattr(run, field).get(name, 0.0) for run in runs) for name in names}


def grouped(phases: Mapping[str, float]) -> dict[str, float]:
    """The seconds of steps that belong together."""
    groups: dict[str, float] = {}
    for step, seconds in phases.items():
        name = GROUPS.get(step, step.replace("_", " "))
        groups[name] = groups.get(name, 0.0) + seconds
    return groups


def short_name(trained: Trained, strategy: str, option: str) -> str:
    """The batch size or the cut that a strategy fixes; its name where it fixes none."""
    fixed = fixed_numbers(strategy)
    return str(fixed[option]) if option in fixed else looks(trained.experiment)[strategy].name
