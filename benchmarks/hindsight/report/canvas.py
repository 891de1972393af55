"""Panels, titles, axes, colours and labels of the report's pictures."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.hindsight.runs import Floats
from benchmarks.hindsight.settings import SETTINGS
from hasfl.report.canvas import DARK, NORMAL, SMALL, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Sizes are chosen by eye.
LABEL_DISTANCE = 0.075  # least distance between two labels, as a share of a panel's height
LABEL_INDENT = 0.02  # distance from the end of a line to its label, as a share of a panel's width
LINE_POINTS = 10  # height of a line of small print in points
PALEST = 0.82  # share of the colour map beyond which colours are too pale on white


def panels(count: int, *, height: float) -> "tuple[Figure, list[Axes]]":
    """A figure with `count` panels, two in a row, each row `height` inches high."""
    rows = math.ceil(count / 2)
    figure = new_figure(height * rows)
    axes = figure.subplots(rows, 2, squeeze=False).ravel().tolist()
    for spare in axes[count:]:
        spare.set_axis_off()
    return figure, axes[:count]


def entitle(axes: "Axes", words: str, *, below: str = "") -> None:
    """Write a title above a panel, and small print between the title and the panel."""
    lines = below.count("\n") + 1 if below else 0
    axes.set_title(words, fontsize=NORMAL, loc="left", color=DARK, pad=6 + LINE_POINTS * lines)
    small: dict[str, Any] = {"fontsize": SMALL, "color": DARK, "va": "bottom"}
    note = axes.annotate(below, (0, 1), (0, 4), xycoords="axes fraction", textcoords="offset points", **small)
    note.set_in_layout(False)


def colours_of(setting: str) -> dict[int, Any]:
    """A colour for each cut, from dark to light, which people with any colour vision can distinguish."""
    from matplotlib import colormaps

    cuts = SETTINGS[setting].cuts
    shades = colormaps["viridis"](np.linspace(0.0, PALEST, len(cuts)))
    return dict(zip(cuts, shades, strict=True))


def factor_axis(axes: "Axes", which: str) -> None:
    """Make an axis logarithmic, with plain numbers at 1, 2, 5, 10 and so on."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis = getattr(axes, f"{which}axis")
    getattr(axes, f"set_{which}scale")("log")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def label_ends(axes: "Axes", ends: Mapping[int, tuple[float, float]], colours: Mapping[int, Any]) -> None:
    """Write each cut beside the end of its line.

    Labels at the same x do not overlap. The limits of the axes must be set before.
    """
    from matplotlib.patheffects import withStroke

    to_panel = axes.transScale + axes.transLimits  # maps data to shares of the panel
    columns: dict[float, list[int]] = {}
    for cut, (x, _) in ends.items():
        columns.setdefault(round(x, 9), []).append(cut)
    for cuts in columns.values():
        spots = to_panel.transform([ends[cut] for cut in cuts])
        heights = pushed_apart(spots[:, 1])
        for cut, x, y in zip(cuts, spots[:, 0], heights, strict=True):
            style: dict[str, Any] = {"fontsize": SMALL, "color": colours[cut], "va": "center"}
            words = axes.text(
                x + LABEL_INDENT, y, f"cut {cut}", transform=axes.transAxes, clip_on=False, **style
            )
            words.set_path_effects([withStroke(linewidth=2, foreground="white")])


def pushed_apart(heights: Floats) -> Floats:
    """The heights with the least squared change that keep their order and the least distance.

    Without the steps of the least distance the heights must not fall. So neighbours that fall are pooled, and
    each pool gets its mean (isotonic regression).
    """
    order = np.argsort(heights, kind="stable")
    steps = np.arange(len(heights)) * LABEL_DISTANCE
    level = heights[order] - steps
    pools: list[list[float]] = []
    for value in level:
        pools.append([float(value)])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    apart = np.empty_like(heights)
    apart[order] = np.concatenate([np.full(len(pool), np.mean(pool)) for pool in pools]) + steps
    return apart
