"""Draws the figure of an experiment from the available results."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hasfl.report.figures import FORMATS, save_figure
from reproduction.bars import draw_bars, draw_converged
from reproduction.curves import draw_against, draw_curves
from reproduction.experiment import Drawing, Experiment
from reproduction.fixed_plans import draw_batches, draw_cuts
from reproduction.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS: dict[Drawing, Callable[[Experiment, Results], "Figure"]] = {
    "batch-and-latency": draw_batches,
    "cut-and-overhead": draw_cuts,
    "curves": draw_curves,
    "ablation": draw_curves,
    "converged": draw_converged,
    "time-against": draw_against,
    "bars": draw_bars,
}

FOLDER = "figures"  # folder of figures, in the folder of the results
DIGITS = 6  # decimals of positions, which are shares of the figure
LAYOUTS = 2  # number of layouts: the second one knows the sizes of texts from the first


def draw(experiment: Experiment, results: Results) -> "Figure":
    """Draw the figure of an experiment. Missing results are left out, and the figure names them."""
    figure = KINDS[experiment.draws](experiment, results)
    for _ in range(LAYOUTS):
        figure.draw_without_rendering()
    figure.set_layout_engine("none")  # SVG and PNG then have the same layout
    _round_positions(figure)
    return figure


def _round_positions(figure: "Figure") -> None:
    """Round all positions, because the layout's last digits may differ between runs."""
    from matplotlib.transforms import Bbox

    for part in figure.subfigs:
        part.bbox_relative.set_points(part.bbox_relative.get_points().round(DIGITS))
    for axes in figure.axes:
        axes.set_position(Bbox(axes.get_position().get_points().round(DIGITS)))


def write_figure(experiment: Experiment, results: Results, out: Path) -> list[Path]:
    """Draw the figure of an experiment, and write it as PNG and as SVG."""
    (out / FOLDER).mkdir(parents=True, exist_ok=True)
    figure, paths = draw(experiment, results), []
    for ending in FORMATS:
        paths.append(out / FOLDER / f"{experiment.name}{ending}")
        save_figure(figure, paths[-1])
    return paths
