"""Draws the effects of batch sizes and cuts: accuracy over rounds, and costs of a round (Figs. 2 and 3)."""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hasfl.report.canvas import DARK, label, new_figure, whole_ticks
from hasfl.runs.files import parse_toml
from hasfl.runs.model_costs import costs_of
from hasfl.runs.scenario import Scenario
from hasfl.units import format_seconds
from reproduction.curves import draw_accuracy
from reproduction.experiment import Experiment
from reproduction.look import Look, fixed_numbers
from reproduction.panels import (
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
from reproduction.results import Results
from reproduction.trained import Runs, Trained

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Numbers are chosen by hand, by the look of the figures; heights are in inches.
BATCH_ROW_HEIGHT, CUT_ROW_HEIGHT, OTHER_HEIGHT = 2.6, 2.9, 0.75
BAR_WIDTH = 0.7  # width of a bar, as a share of the distance of bars
SECONDS_TOP, OVERHEAD_TOP = 1.12, 1.18  # end of an axis, over its highest bar
PALER = 0.35  # opacity of the aggregation's part of a bar
ROUND_TICKS = 6  # most ticks of an axis of rounds
SAMPLES_BITS = ("activation_upload", "gradient_download")  # arrows whose bits grow with the batch size
SUBMODEL_BITS = ("submodel_upload", "submodel_download")
# The steps of a round in the order of time, with the name of the group in which they are drawn. A step that
# is missing here keeps its own name, so nothing of a round vanishes. `reading_…` are estimates of the paper's
# constants. The colours are Paul Tol's muted ones, which people with any colour vision can distinguish. No
# strategy has one of them.
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
    """Draw test accuracy over rounds for each batch size, and to the right the seconds of a round by step."""
    panels = trained_panels(experiment, results)
    figure = new_figure(BATCH_ROW_HEIGHT * len(panels) + OTHER_HEIGHT)
    head(figure, experiment)
    for (left, right), trained in zip(figure.subplots(len(panels), 2, squeeze=False), panels, strict=True):
        draw_rounds(left, trained)
        _draw_seconds(right, trained)
    return figure


def draw_rounds(axes: "Axes", trained: Trained) -> None:
    """Draw test accuracy over rounds, a line for each strategy (the paper counts epochs)."""
    title(axes, trained)
    label(axes, x="round", y="test accuracy (%)")
    if trained.is_empty:
        return
    runs, all_looks = trained.at(), looks(trained.experiment)
    for strategy, each in runs.items():
        draw_accuracy(axes, each, all_looks[strategy], strategy, trained.experiment, "rounds")
    axes.set_xlim(0, max(int(run.rounds[-1]) for each in runs.values() for run in each))
    whole_ticks(axes, x=ROUND_TICKS)
    grid_lines(axes)
    legend_below(axes, line_handles(trained.experiment, [trained], marks=False))


def _draw_seconds(axes: "Axes", trained: Trained) -> None:
    """Draw a bar for each strategy: the mean seconds of a round, stacked by step."""
    subtitle(axes, "Seconds of a round, by step")
    label(axes, x="batch size b (samples)", y="virtual seconds of a round")
    if trained.is_empty:
        axes.set(xticks=[], yticks=[])
        return
    steps = {strategy: grouped(mean_by_name(runs, "phases")) for strategy, runs in trained.at().items()}
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
    axes.set_ylim(0, SECONDS_TOP * bottom.max())
    axes.set_xticks(range(len(steps)), labels=[short_name(trained, each, "b") for each in steps])
    legend_below(axes, axes.containers)
    grid_lines(axes, "y")


def mean_by_name(runs: Runs, field: str) -> dict[str, float]:
    """The mean over seeds of the entries of `phases` or of `bits`."""
    names = dict.fromkeys(name for run in runs for name in getattr(run, field))
    return {name: fmean(getattr(run, field).get(name, 0.0) for run in runs) for name in names}


def grouped(phases: Mapping[str, float]) -> dict[str, float]:
    """The seconds of a round, summed by group of steps."""
    groups: dict[str, float] = {}
    for step, seconds in phases.items():
        name = GROUPS.get(step, step.replace("_", " "))
        groups[name] = groups.get(name, 0.0) + seconds
    return groups


def short_name(trained: Trained, strategy: str, option: str) -> str:
    """The batch size or the cut that a strategy fixes; its name if it fixes none."""
    fixed = fixed_numbers(strategy)
    return str(fixed[option]) if option in fixed else looks(trained.experiment)[strategy].name


# ── the costs of a cut for a device ──────────────────────────────────────────────────────────────────────


class Overhead(NamedTuple):
    """The costs of a cut for one device, as means over devices."""

    flops: float  # FLOP for a sample, forward and backward
    sample_bits: float  # bits of activations and their gradients in a round
    submodel_bits: float  # bits of sub-models in a round: its share of an aggregation


def draw_cuts(experiment: Experiment, results: Results) -> "Figure":
    """Draw test accuracy over rounds for each cut, and to the right a device's computation and bits."""
    panels = trained_panels(experiment, results)
    figure = new_figure(CUT_ROW_HEIGHT * len(panels) + OTHER_HEIGHT)
    head(figure, experiment)
    places = figure.add_gridspec(2 * len(panels), 2)
    for k, trained in enumerate(panels):
        left = figure.add_subplot(places[2 * k : 2 * k + 2, 0])
        upper = figure.add_subplot(places[2 * k, 1])
        lower = figure.add_subplot(places[2 * k + 1, 1], sharex=upper)
        draw_rounds(left, trained)
        _draw_overhead(upper, lower, trained)
    return figure


def overhead_of(trained: Trained) -> dict[str, Overhead]:
    """The overhead of every trained strategy that fixes a cut.

    FLOP follow from the model's layers, bits are the ones that the runs counted.
    """
    point = trained.panel.points[0]
    scenario = parse_toml(point.text, Scenario, f"scenario {point.scenario}")
    fleet = scenario.draw()
    profile = costs_of(scenario, fleet, folder=Path()).profile
    flops = profile.forward_flops_upto + profile.backward_flops_upto
    overheads = {}
    for strategy, runs in trained.at(point).items():
        cut, bits = fixed_numbers(strategy).get("cut"), mean_by_name(runs, "bits")
        if cut is not None:
            samples = sum(bits.get(arrow, 0.0) for arrow in SAMPLES_BITS)
            submodels = sum(bits.get(arrow, 0.0) for arrow in SUBMODEL_BITS)
            overheads[strategy] = Overhead(
                float(flops[cut - 1]), samples / len(fleet), submodels / len(fleet)
            )
    return overheads


def _draw_overhead(upper: "Axes", lower: "Axes", trained: Trained) -> None:
    subtitle(upper, "Computing and communication of a device")
    label(upper, y="GFLOP a sample")
    label(lower, x="cut (layers on the device)", y="Mbit a round")
    upper.tick_params(labelbottom=False)
    overheads = {} if trained.is_empty else overhead_of(trained)
    if not overheads:
        upper.set(xticks=[], yticks=[])
        lower.set(yticks=[])
        return
    all_looks = looks(trained.experiment)
    for place, (strategy, overhead) in enumerate(overheads.items()):
        _draw_bars(upper, lower, place, overhead, all_looks[strategy])
    lower.set_xticks(range(len(overheads)), labels=[short_name(trained, each, "cut") for each in overheads])
    upper.set_ylim(0, OVERHEAD_TOP * max(each.flops for each in overheads.values()) / 1e9)
    highest = max(each.sample_bits + each.submodel_bits for each in overheads.values())
    lower.set_ylim(0, OVERHEAD_TOP * highest / 1e6)
    legend_below(lower, _parts())
    for axes in (upper, lower):
        grid_lines(axes, "y")


def _parts() -> list["Artist"]:
    """The entries of the legend for the parts of a bar."""
    from matplotlib.patches import Patch

    return [
        Patch(color=DARK, linewidth=0, label="activations, gradients"),
        Patch(color=DARK, alpha=PALER, linewidth=0, label="share of sub-models"),
    ]


def _draw_bars(upper: "Axes", lower: "Axes", place: int, overhead: Overhead, look: Look) -> None:
    flops, samples, submodels = overhead.flops / 1e9, overhead.sample_bits / 1e6, overhead.submodel_bits / 1e6
    upper.bar(place, flops, BAR_WIDTH, color=look.colour)
    lower.bar(place, samples, BAR_WIDTH, color=look.colour)
    lower.bar(place, submodels, BAR_WIDTH, samples, color=look.colour, alpha=PALER)
    for axes, height in ((upper, flops), (lower, samples + submodels)):
        write_above(axes, f"{height:.3g}", place, height)
