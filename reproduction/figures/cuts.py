"""What a cut changes: accuracy over rounds, computing and communication of a device (Fig. 3 of the paper)."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hasfl.report.canvas import DARK, label, new_figure
from hasfl.runs.document import parse_toml
from hasfl.runs.model_costs import costs_of
from hasfl.runs.scenario import Scenario
from reproduction.experiment import Experiment
from reproduction.figures.batches import draw_rounds, mean_by_name, short_name
from reproduction.figures.look import Look, fixed_numbers
from reproduction.figures.panels import (
    grid_lines,
    head,
    legend_below,
    looks,
    subtitle,
    trained_panels,
    write_above,
)
from reproduction.figures.reaching import Trained
from reproduction.results import Results

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Numbers are chosen by hand, by the look of the figures; heights are in inches.
ROW_HEIGHT, OTHER_HEIGHT = 2.9, 0.75
BAR_WIDTH = 0.7
TOP = 1.18  # an axis over its highest bar
PALER = 0.35  # the opacity of the part of a bar that is the aggregation
SAMPLES_BITS = ("activation_upload", "gradient_download")  # these grow with the batch size
SUBMODEL_BITS = ("submodel_upload", "submodel_download")


class Overhead(NamedTuple):
    """What a cut asks of one device: the mean over devices."""

    flops: float  # for a sample, forward and backward
    sample_bits: float  # of a round: activations and their gradients
    submodel_bits: float  # of a round: its share of an aggregation


def draw_cuts(experiment: Experiment, results: Results) -> "Figure":
    """Left, test accuracy over rounds for each cut; right, what a device computes and sends for each cut."""
    panels = trained_panels(experiment, results)
    figure = new_figure(ROW_HEIGHT * len(panels) + OTHER_HEIGHT)
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

    Computing follows from the model's layers, communication from the bits that its runs counted.
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
    upper.set_ylim(0, TOP * max(each.flops for each in overheads.values()) / 1e9)
    lower.set_ylim(0, TOP * max(each.sample_bits + each.submodel_bits for each in overheads.values()) / 1e6)
    legend_below(lower, _parts())
    for axes in (upper, lower):
        grid_lines(axes, "y")


def _parts() -> list["Artist"]:
    """Entries of a legend for the parts of a bar."""
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
