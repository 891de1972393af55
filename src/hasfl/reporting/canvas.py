"""How every picture looks: sizes, colours, axes. matplotlib is imported here, and only when one is drawn."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hasfl.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

WIDTH = 7.0  # inches, the text of a two-column paper
TINY, SMALL, NORMAL = 6.0, 7.5, 9.0  # points
POINTS_PER_INCH = 72.0
# Okabe and Ito's, told apart with any colour vision; without their yellow, which is too pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")
DARK, GREY, PALE = "#444444", "#999999", "#dddddd"
ALL_SIDES = ("left", "bottom", "right", "top")


def new_figure(height: float) -> "Figure":
    """An empty figure that belongs to nobody else and arranges its parts by itself."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise MissingExtra("drawing figures needs matplotlib: pip install 'hasfl[train]'") from None
    return Figure(figsize=(WIDTH, height), dpi=200, layout="constrained")


def line_style(k: int) -> dict[str, Any]:
    """Colour and dashes of the k-th line: colours first, then the same ones dashed."""
    return {"color": COLOURS[k % len(COLOURS)], "linestyle": DASHES[k // len(COLOURS) % len(DASHES)]}


def label(axes: "Axes", *, x: str = "", y: str = "", frame: tuple[str, ...] = ("left", "bottom")) -> None:
    """Name both axes; small ticks, and lines on the named sides only."""
    axes.set_xlabel(x, fontsize=NORMAL)
    axes.set_ylabel(y, fontsize=NORMAL)
    axes.tick_params(labelsize=SMALL, color=DARK, length=3)
    for side, spine in axes.spines.items():
        spine.set_visible(side in frame)
        spine.set_color(DARK)


def whole_ticks(axes: "Axes", *, x: int = 0, y: int = 0) -> None:
    """At most so many ticks on an axis, at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    for axis, most in ((axes.xaxis, x), (axes.yaxis, y)):
        if most:
            axis.set_major_locator(MaxNLocator(most, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))


def heat_map(
    axes: "Axes",
    cells: NDArray[Any],
    *,
    meaning: str,
    first: int = 1,
    steps: tuple[int, int] = (1, 1),
    **how: Any,
) -> None:
    """Draw a matrix with its colour scale: rows from 1 at the top, columns from `first`, in these steps."""
    rows, columns = np.array(cells.shape) * steps
    extent = (first - 0.5, first - 0.5 + columns, rows + 0.5, 0.5)
    image = axes.imshow(cells, aspect="auto", interpolation="nearest", extent=extent, **how)
    slender = 10 * axes.bbox.height / axes.figure.dpi
    scale = axes.figure.colorbar(image, ax=axes, pad=0.012, fraction=0.05, aspect=slender)
    scale.outline.set_visible(False)
    label(scale.ax, y=meaning, frame=())
    whole_ticks(scale.ax, y=8)


def green_to_blue() -> "Colormap":
    """Few to many, from a green that is seen on white to a blue that is nearly black."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps["YlGnBu"](np.linspace(0.2, 1.0, 256)))


def levels(cells: NDArray[np.float64]) -> dict[str, Any]:
    """One colour for each whole number that occurs or lies between those that do."""
    from matplotlib import colormaps

    low, high = int(np.nanmin(cells)), int(np.nanmax(cells))
    return {"cmap": colormaps["cividis"].resampled(high - low + 1), "vmin": low - 0.5, "vmax": high + 0.5}


def every(count: int, most: int) -> int:
    """The k for which every k-th of `count` things are at most `most`."""
    return max(1, math.ceil(count / most))


def labels_in(inches: float) -> int:
    """How many lines of small print fit below each other."""
    return max(1, int(inches * POINTS_PER_INCH / (1.25 * SMALL)))
