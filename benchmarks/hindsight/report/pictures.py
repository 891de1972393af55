"""The pictures of the report: a panel for each setting, a colour for each cut."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.hindsight.laws import laws_by_cut
from benchmarks.hindsight.report.canvas import colours_of, entitle, factor_axis, label_ends, panels
from benchmarks.hindsight.runs import (
    Results,
    Run,
    mean_rounds,
    optimum,
    seconds_of,
)
from benchmarks.hindsight.settings import SETTINGS, Cell
from hasfl.report.canvas import DARK, label
from hasfl.report.figures import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARGIN = 1.15  # factor between the outermost points and the ends of a logarithmic axis; chosen by eye
HASFL: dict[str, Any] = {"strategy": "hasfl", "serve": "mean", "constants": None}


def draw_all(results_of_all: Sequence[Results], folder: Path) -> list[Path]:
    """Draw the pictures for which runs exist, and return their files."""
    some = [results for results in results_of_all if results.fixed]
    figures = {
        "constants_law": law_picture(some),
        "constants_hindsight": hindsight_picture(some),
    }
    written = {folder / f"{name}.png": figure for name, figure in figures.items() if figure is not None}
    for path, figure in written.items():
        save_figure(figure, path)
    return list(written)


def _panel_for_each(
    settings: Sequence[Results], draw: Callable[["Axes", Results], None], *, height: float
) -> "Figure | None":
    """Draw a figure with a panel for every setting; None if there is no setting."""
    if not settings:
        return None
    figure, axes = panels(len(settings), height=height)
    for panel, results in zip(axes, settings, strict=True):
        draw(panel, results)
    return figure


# ── the law ──────────────────────────────────────────────────────────────────────────────────────────────


def law_picture(settings: Sequence[Results]) -> "Figure | None":
    """Draw rounds against 1/b, with the straight lines of the law."""
    return _panel_for_each(settings, _draw_law, height=2.9)


def _draw_law(axes: "Axes", results: Results) -> None:
    target, colours = SETTINGS[results.setting].targets[1], colours_of(results.setting)
    rounds = {cell: r for cell, r in mean_rounds(results, target, "mean").items() if math.isfinite(r)}
    ends: dict[int, tuple[float, float]] = {}
    for cut, law in laws_by_cut(rounds).items():
        inverse = np.array([1 / b for b, J in rounds if cut == J])
        of_cut = np.array([r for (_, J), r in rounds.items() if cut == J])
        faces = [colours[cut] if x < 1 else "white" for x in inverse]
        axes.scatter(inverse, of_cut, c=faces, edgecolors=[colours[cut]], s=16, lw=0.8, zorder=3)
        ends[cut] = float(inverse.max()), float(of_cut[inverse.argmax()])
        if law is not None:
            line = np.array([0.0, inverse.max()])
            height = law.endless * (1 + law.noise[cut] * line)
            axes.plot(line, height, color=colours[cut], lw=1)
            ends[cut] = float(line[1]), float(height[1])
    widest, highest = max(x for x, _ in ends.values()), max(*rounds.values(), *(y for _, y in ends.values()))
    axes.set(xlim=(0, 1.14 * widest), ylim=(0, 1.08 * highest))
    ticks = [1 / b for b in SETTINGS[results.setting].batches if widest / 8 <= 1 / b <= widest]
    axes.set_xticks([0, *ticks], labels=["0", *(f"1/{1 / x:.0f}" if x < 1 else "1" for x in ticks)])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    label(axes, x="1 / batch size", y=f"rounds to {100 * target:g} %")
    entitle(axes, results.setting, below="○ single samples, not fitted" if widest == 1 else "")
    label_ends(axes, ends, colours)


# ── seconds in hindsight ─────────────────────────────────────────────────────────────────────────────────


def hindsight_picture(settings: Sequence[Results], fleet: str = "narrow") -> "Figure | None":
    """Draw the seconds of every fixed plan, and of HASFL."""
    return _panel_for_each(settings, partial(_draw_seconds, fleet=fleet), height=3.0)


def _draw_seconds(axes: "Axes", results: Results, *, fleet: str) -> None:
    target, colours = SETTINGS[results.setting].targets[1], colours_of(results.setting)
    seeds = results.whole_seeds
    runs = [run for run in results.runs(fleet=fleet, **HASFL) if run.seed in seeds]
    seconds = mean_seconds(results, target, fleet)
    ends: dict[int, tuple[float, float]] = {}
    for cut, colour in colours.items():
        line = [(b, s) for (b, J), s in seconds.items() if cut == J and math.isfinite(s)]
        if line:
            axes.plot(*zip(*line, strict=True), color=colour, lw=1.2, marker="o", ms=3)
            ends[cut] = line[-1]
    best = optimum(results, target, "mean", fleet, seeds=seeds)
    if best is not None:
        ring: dict[str, Any] = {"mfc": "none", "mec": DARK, "ms": 9, "mew": 1}
        axes.plot(best.cell[0], best.seconds, marker="o", ls="", **ring)
    taken = float(np.mean([run.seconds_to(target, "mean") for run in runs])) if runs else math.inf
    if math.isfinite(taken):
        axes.axhline(taken, color=DARK, lw=1.2, ls="--", zorder=0)
    axes.set_xscale("log")
    batches = SETTINGS[results.setting].batches
    axes.set_xlim(min(batches) / MARGIN, max(batches) * 1.6)
    axes.set_xticks(batches, labels=[str(b) for b in batches])
    axes.minorticks_off()
    factor_axis(axes, "y")
    label(axes, x="batch size of every device", y=f"virtual seconds to {100 * target:g} %")
    words = f"○ best fixed plan: {best.seconds:.3g} s\n" if best is not None else ""
    title = f"{results.setting}, {fleet} fleet, {seeds_in_words(seeds)}"
    entitle(axes, title, below=words + hasfl_in_words(runs, taken))
    label_ends(axes, ends, colours)


def mean_seconds(results: Results, target: float, fleet: str) -> dict[Cell, float]:
    """The mean seconds of fixed plans, over the seeds with which most of them were trained."""
    seeds = results.whole_seeds
    by_seed = {cell: seconds_of(results, cell, target, "mean", fleet) for cell in results.cells(seeds)}
    return {cell: float(np.mean([of[seed] for seed in seeds])) for cell, of in by_seed.items()}


def hasfl_in_words(runs: Sequence[Run], taken: float) -> str:
    """The mean seconds of HASFL in words; if a run missed the target, the last accuracy of the first run."""
    if not runs:
        return "HASFL: not trained yet"
    if math.isfinite(taken):
        return f"- - HASFL, serves the mean: {taken:.3g} s"
    _, clock, _, accuracy, *_ = runs[0].evaluations[-1]
    return f"HASFL, serves the mean: not reached; {100 * accuracy:.3g} % after {clock:.3g} s"


def seeds_in_words(seeds: Iterable[int]) -> str:
    listed = sorted(seeds)
    return f"seed {listed[0]}" if len(listed) == 1 else f"{len(listed)} seeds"
