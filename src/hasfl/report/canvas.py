"""The sizes, colours and axes of all figures. matplotlib is imported only when a figure is drawn."""

import importlib.util
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hasfl.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

# Numbers without another source are chosen by hand, by the look of the figures.
WIDTH = 7.0  # width of a figure in inches: the text width of a two-column paper
RESOLUTION = 200  # dots per inch of a PNG file
TINY, SMALL, NORMAL = 6.0, 7.5, 9.0  # font sizes in points
POINTS_PER_INCH = 72.0
LINE_HEIGHT = 1.25  # distance of two lines of text, as a multiple of the font size
TICK_LENGTH = 3  # length of a tick in points
ROUND_STEPS = [1, 2, 5, 10]  # allowed distances of ticks, each times a power of ten
HALF_CELL = 0.5  # a cell of a matrix is centred at a whole number and reaches half a unit to each side
# The colour scale (legend) of a heat map.
SCALE_DISTANCE, SCALE_WIDTH = 0.012, 0.05  # distance from the axes, and width, as shares of the axes' width
SCALE_SLENDERNESS = 10  # length over width of the scale, for axes of one inch in height
SCALE_TICKS = 8  # most ticks of the scale
PALEST = 0.2  # the colours begin at this share of matplotlib's palette, because paler ones vanish on white
SHADES = 256  # number of colours of a continuous scale
# The colours of Okabe and Ito, which people with any colour vision can distinguish. Their yellow is left out,
# because it is too pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")
DARK, GREY, PALE = "#444444", "#999999", "#dddddd"
TO_PERCENT = 100
LINE_WIDTH, FIRST_LINE_WIDTH = 1.3, 2.6  # points; the first line is wide: it stays visible below others
MARK_SIZE = 6.5  # diameter of a mark in points
ABOVE_LINES = 3  # the drawing order of marks; matplotlib draws lines at 2
GRID_WIDTH = 0.5  # width of grid lines in points
ALL_SIDES = ("left", "bottom", "right", "top")
TIME_UNITS = {"days": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3}  # units, with their seconds
LOGARITHMIC_FROM = 10  # a time axis is logarithmic if its largest time is this many times the smallest
UNITS_SHOWN = 2  # the unit of a time axis is the largest of which the axis shows this many


def require_matplotlib() -> None:
    """Raise MissingExtra if matplotlib is missing; called before any long computation."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra("drawing a picture needs matplotlib: pip install 'hasfl[train]'")


def new_figure(height: float) -> "Figure":
    """An empty figure with automatic layout, independent of pyplot's global state."""
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), dpi=RESOLUTION, layout="constrained")


def line_style(k: int) -> dict[str, Any]:
    """The colour and the dashes of line k: full lines in all colours, then dashed lines in all colours."""
    return {"color": COLOURS[k % len(COLOURS)], "linestyle": DASHES[k // len(COLOURS) % len(DASHES)]}


def label(axes: "Axes", *, x: str = "", y: str = "", frame: tuple[str, ...] = ("left", "bottom")) -> None:
    """Set the labels of both axes, the size of the ticks, and the sides of the frame that are drawn."""
    axes.set_xlabel(x, fontsize=NORMAL)
    axes.set_ylabel(y, fontsize=NORMAL)
    axes.tick_params(labelsize=SMALL, color=DARK, length=TICK_LENGTH)
    for side, spine in axes.spines.items():
        spine.set_visible(side in frame)
        spine.set_color(DARK)


def time_unit(longest: float, *, smallest: str) -> tuple[str, float]:
    """The unit of a time axis that ends at `longest` seconds, and the length of the unit in seconds."""
    sizes = TIME_UNITS.items()
    return next((unit, size) for unit, size in sizes if longest >= UNITS_SHOWN * size or unit == smallest)


def whole_ticks(axes: "Axes", *, x: int = 0, y: int = 0) -> None:
    """Put at most `x` and `y` ticks on the two axes, at whole numbers; 0 leaves an axis unchanged."""
    from matplotlib.ticker import MaxNLocator

    for axis, most in ((axes.xaxis, x), (axes.yaxis, y)):
        if most:
            axis.set_major_locator(MaxNLocator(most, integer=True, steps=ROUND_STEPS, min_n_ticks=1))


def heat_map(
    axes: "Axes",
    cells: NDArray[Any],
    *,
    meaning: str,
    first: int = 1,
    steps: tuple[int, int] = (1, 1),
    **colours: Any,
) -> None:
    """Draw a matrix with a colour scale that is labelled `meaning`.

    Rows are numbered from 1 at the top, columns from `first`. A cell stands for `steps` rows and columns.
    `colours` are arguments of matplotlib's `imshow`.
    """
    rows, columns = np.array(cells.shape) * steps
    left = first - HALF_CELL
    extent = (left, left + columns, rows + HALF_CELL, HALF_CELL)
    image = axes.imshow(cells, aspect="auto", interpolation="nearest", extent=extent, **colours)
    slenderness = SCALE_SLENDERNESS * axes.bbox.height / axes.figure.dpi
    scale = axes.figure.colorbar(image, ax=axes, pad=SCALE_DISTANCE, fraction=SCALE_WIDTH, aspect=slenderness)
    scale.outline.set_visible(False)
    label(scale.ax, y=meaning, frame=())
    whole_ticks(scale.ax, y=SCALE_TICKS)


def green_to_blue() -> "Colormap":
    """Colours from a light green, which is visible on white, to a nearly black blue."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps["YlGnBu"](np.linspace(PALEST, 1.0, SHADES)))


def levels(cells: NDArray[np.float64]) -> dict[str, Any]:
    """The colours of a heat map of whole numbers: one for each number from the smallest to the largest."""
    from matplotlib import colormaps

    low, high = int(np.nanmin(cells)), int(np.nanmax(cells))
    colours = colormaps["cividis"].resampled(high - low + 1)
    return {"cmap": colours, "vmin": low - HALF_CELL, "vmax": high + HALF_CELL}


def every(count: int, most: int) -> int:
    """The smallest k such that every k-th of `count` things gives at most `most` things."""
    return max(1, math.ceil(count / most))


def labels_in(inches: float) -> int:
    """The number of lines of small text that fit into this height."""
    return max(1, int(inches * POINTS_PER_INCH / (LINE_HEIGHT * SMALL)))
