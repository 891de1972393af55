"""How the pictures of `benchmarks.hindsight_report` look."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.hindsight import SETTINGS
from benchmarks.hindsight_numbers import Floats
from hasfl.reporting.canvas import DARK, NORMAL, SMALL, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLOSEST = 0.075  # of a panel's height, between two labels


def panels(count: int, *, height: float) -> "tuple[Figure, list[Axes]]":
    """A figure with two panels in a row."""
    rows = math.ceil(count / 2)
    figure = new_figure(height * rows)
    axes = figure.subplots(rows, 2, squeeze=False).ravel().tolist()
    for spare in axes[count:]:
        spare.set_axis_off()
    return figure, axes[:count]


def entitle(axes: "Axes", words: str, *, below: str = "") -> None:
    """A title, and small print between it and the panel."""
    lines = below.count("\n") + 1 if below else 0
    axes.set_title(words, fontsize=NORMAL, loc="left", color=DARK, pad=6 + 10 * lines)
    small: dict[str, Any] = {"fontsize": SMALL, "color": DARK, "va": "bottom"}
    note = axes.annotate(below, (0, 1), (0, 4), xycoords="axes fraction", textcoords="offset points", **small)
    note.set_in_layout(False)


def colours_of(setting: str) -> dict[int, Any]:
    """From the first cut, dark, to the last, light: told apart with any colour vision and in grey."""
    from matplotlib import colormaps

    cuts = SETTINGS[setting].cuts
    shades = colormaps["viridis"](np.linspace(0.0, 0.82, len(cuts)))
    return dict(zip(cuts, shades, strict=True))


def factor_axis(axes: "Axes", which: str) -> None:
    """A logarithmic axis with plain numbers at 1, 2, 5, 10 and so on."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis = getattr(axes, f"{which}axis")
    getattr(axes, f"set_{which}scale")("log")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def label_ends(axes: "Axes", ends: Mapping[int, tuple[float, float]], colours: Mapping[int, Any]) -> None:
    """Write each cut beside the end of its line, labels of a column apart; limits must be set before."""
    from matplotlib.patheffects import withStroke

    place = axes.transScale + axes.transLimits
    columns: dict[float, list[int]] = {}
    for cut, (x, _) in ends.items():
        columns.setdefault(round(x, 9), []).append(cut)
    for cuts in columns.values():
        spots = place.transform([ends[cut] for cut in cuts])
        heights = pushed_apart(spots[:, 1])
        for cut, x, y in zip(cuts, spots[:, 0], heights, strict=True):
            style: dict[str, Any] = {"fontsize": SMALL, "color": colours[cut], "va": "center"}
            words = axes.text(x + 0.02, y, f"cut {cut}", transform=axes.transAxes, clip_on=False, **style)
            words.set_path_effects([withStroke(linewidth=2, foreground="white")])


def pushed_apart(heights: Floats) -> Floats:
    """The nearest heights in the same order that are far enough from each other."""
    order = np.argsort(heights, kind="stable")
    steps = np.arange(len(heights)) * CLOSEST
    level = heights[order] - steps  # must rise: pool neighbours that do not, and give them their mean
    pools: list[list[float]] = []
    for value in level:
        pools.append([float(value)])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    apart = np.empty_like(heights)
    apart[order] = np.concatenate([np.full(len(pool), np.mean(pool)) for pool in pools]) + steps
    return apart
