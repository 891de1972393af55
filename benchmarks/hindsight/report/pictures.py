"""The pictures of the report: a panel for each setting, a colour for each cut."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.hindsight.laws import common_forecast, forecast, judged, laws_by_cut
from benchmarks.hindsight.report.canvas import colours_of, entitle, factor_axis, label_ends, panels
from benchmarks.hindsight.runs import (
    Results,
    Run,
    mean_rounds,
    optimum,
    seconds_of,
)
from benchmarks.hindsight.settings import FLEETS, SETTINGS, Cell
from hasfl.reporting.canvas import COLOURS, DARK, NORMAL, PALE, SMALL, label, new_figure, whole_ticks
from hasfl.reporting.figures import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE = COLOURS[0]
SHOWN_RUNS = (
    ("vgg-iid", "narrow"),
    ("vgg-iid", "wide"),
)  # in the picture of plans; they serve the last model
MARGIN = 1.15  # factor between the outermost points and the ends of a logarithmic axis; chosen by eye
HASFL: dict[str, Any] = {"strategy": "hasfl", "serve": "mean", "constants": None, "way": "over time"}


def draw_all(results_of_all: Sequence[Results], folder: Path) -> list[Path]:
    """Draw the pictures for which runs exist; returns their files."""
    some = [results for results in results_of_all if results.fixed]
    figures = {
        "constants_rounds": rounds_picture([results for results in some if mean_forecast(results)[1]]),
        "constants_law": law_picture(some),
        "constants_hindsight": hindsight_picture(some),
        "constants_plans": plans_picture(results_of_all),
    }
    written = {folder / f"{name}.png": figure for name, figure in figures.items() if figure is not None}
    for path, figure in written.items():
        save_figure(figure, path)
    return list(written)


# ── forecast and real rounds ─────────────────────────────────────────────────────────────────────────────


def mean_forecast(results: Results) -> tuple[str, dict[Cell, float]]:
    """The first fleet with readings of HASFL, and the geometric mean of their forecasts; else empty."""
    target = SETTINGS[results.setting].targets[1]
    for fleet in FLEETS:
        readings = [(r, r.reading_before(target, "mean")) for r in results.runs(fleet=fleet, **HASFL)]
        forecasts = [
            forecast(run, reading, results.fixed) for run, reading in readings if reading is not None
        ]
        if forecasts:
            return fleet, common_forecast(forecasts)
    return "", {}


def _panel_for_each(
    settings: Sequence[Results], draw: Callable[["Axes", Results], None], *, height: float
) -> "Figure | None":
    """A figure with a panel for every setting; None where there is no setting."""
    if not settings:
        return None
    figure, axes = panels(len(settings), height=height)
    for panel, results in zip(axes, settings, strict=True):
        draw(panel, results)
    return figure


def rounds_picture(settings: Sequence[Results]) -> "Figure | None":
    """Real rounds against forecast rounds."""
    return _panel_for_each(settings, _draw_rounds, height=3.1)


def _draw_rounds(axes: "Axes", results: Results) -> None:
    target, colours = SETTINGS[results.setting].targets[1], colours_of(results.setting)
    real, (fleet, predicted) = mean_rounds(results, target, "mean"), mean_forecast(results)
    verdict = judged(predicted, real)
    if verdict is None:
        return
    cells = list(real)
    x = np.array([verdict.scale * predicted[cell] for cell in cells])
    y = np.array([real[cell] for cell in cells])
    reached, shade = np.isfinite(y), np.array([colours[cut] for _, cut in cells])
    tried = [max(run.evaluations[-1, 0] for run in results.fixed[cell].values()) for cell in cells]
    low, high = min(x.min(), y[reached].min()), max(x.max(), y[reached].max(), *tried)
    ends = np.array([low / MARGIN, high * MARGIN])
    axes.plot(ends, ends, color=PALE, lw=1, zorder=0)
    axes.scatter(x[reached], y[reached], c=shade[reached], s=20, lw=0)
    never: dict[str, Any] = {"facecolors": "none", "edgecolors": shade[~reached], "s": 22, "lw": 1}
    axes.scatter(x[~reached], np.array(tried)[~reached], marker="^", **never)
    axes.set(xlim=ends, ylim=ends)
    factor_axis(axes, "x")
    factor_axis(axes, "y")
    label(axes, x="forecast rounds, scaled", y=f"real rounds to {100 * target:g} %")
    words = f"Spearman {verdict.spearman:.2f}; "
    words += f"median factor {verdict.median_factor:.2f}, worst {verdict.worst_factor:.2f}"
    entitle(axes, f"{results.setting}, read on the {fleet} fleet", below=words)
    _colour_key(axes, colours, never="" if reached.all() else "△ not reached")


def _colour_key(axes: "Axes", colours: Mapping[int, Any], *, never: str) -> None:
    """Write the cuts in their colours, in the corner below the diagonal."""
    lines = [(f"cut {cut}", shade) for cut, shade in colours.items()] + [(never, DARK)] * bool(never)
    for k, (words, shade) in enumerate(reversed(lines)):
        spot = (0.98, 0.03 + 0.07 * k)
        axes.text(*spot, words, transform=axes.transAxes, fontsize=SMALL, color=shade, ha="right")


# ── the law ──────────────────────────────────────────────────────────────────────────────────────────────


def law_picture(settings: Sequence[Results]) -> "Figure | None":
    """Rounds against 1/b, and the straight lines of the law."""
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
    """Seconds of every fixed plan, and of HASFL."""
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
    """Mean seconds of fixed plans over the seeds that most of them were trained with."""
    seeds = results.whole_seeds
    by_seed = {cell: seconds_of(results, cell, target, "mean", fleet) for cell in results.cells(seeds)}
    return {cell: float(np.mean([of[seed] for seed in seeds])) for cell, of in by_seed.items()}


def hasfl_in_words(runs: Sequence[Run], taken: float) -> str:
    """The mean seconds of HASFL; where a run missed the target, the last accuracy of the first run."""
    if not runs:
        return "HASFL: not trained yet"
    if math.isfinite(taken):
        return f"- - HASFL, serves the mean: {taken:.3g} s"
    _, clock, _, accuracy = runs[0].evaluations[-1]
    return f"HASFL, serves the mean: not reached; {100 * accuracy:.3g} % after {clock:.3g} s"


def seeds_in_words(seeds: Iterable[int]) -> str:
    listed = sorted(seeds)
    return f"seed {listed[0]}" if len(listed) == 1 else f"{len(listed)} seeds"


# ── plans over time ──────────────────────────────────────────────────────────────────────────────────────


def plans_picture(results_of_all: Sequence[Results]) -> "Figure | None":
    """Batch sizes, the deepest cut and the measured noise over virtual time."""
    by_name = {results.setting: results for results in results_of_all}
    runs = [by_name[name].runs(fleet=fleet, **HASFL)[:1] for name, fleet in SHOWN_RUNS if name in by_name]
    shown = [run for first in runs for run in first]
    if not shown:
        return None
    figure = new_figure(4.8)
    axes = figure.subplots(3, len(shown), squeeze=False, sharex="col", height_ratios=[1.2, 0.8, 1.2])
    for column, run in zip(axes.T, shown, strict=True):
        _draw_plans(column, run)
    names = ("batch size", "deepest cut", "noise (samples)")
    for name, panel in zip(names, axes[:, 0], strict=True):
        panel.set_ylabel(name, fontsize=NORMAL)
    figure.align_ylabels(axes[:, 0])
    return figure


def _draw_plans(column: "Sequence[Axes]", run: Run) -> None:
    upper, middle, lower = column
    edges = np.array([first - 1 for first, _ in run.plans] + [run.evaluations[-1, 0]])
    clock = run.clock_at(edges)
    batches = np.array([[b.mean(), b.min(), b.max()] for b in (plan.batch_sizes for _, plan in run.plans)]).T
    upper.stairs(batches[2], clock, baseline=batches[1], fill=True, color=BLUE, alpha=0.15)
    upper.stairs(batches[0], clock, baseline=None, color=BLUE, lw=1.6)
    deepest = [plan.deepest_cut for _, plan in run.plans]
    middle.stairs(deepest, clock, baseline=None, color=BLUE, lw=1.6)
    upper.set_ylim(0, 1.2 * batches[2].max())
    upper.set_xlim(0, 1.02 * clock[-1])
    middle.set_ylim(0, 1.5 * max(deepest) + 0.5)
    whole_ticks(middle, y=4)
    _draw_noise(lower, run, float(clock[-1]))
    title = f"{run.setting}, {run.fleet} fleet, seed {run.seed}, serves the {run.serve}"
    entitle(upper, title, below="— mean of all devices, smallest to largest")
    label(upper)
    label(middle)
    label(lower, x="virtual seconds")
    lower.locator_params(axis="x", nbins=6)


def _draw_noise(axes: "Axes", run: Run, end: float) -> None:
    """Draw readings as dots, and the filtered noise as a line with its standard error."""
    readings = [reading for reading in run.readings if "noise" in reading]
    if not readings:
        return
    clock = run.clock_at(np.array([reading["round"] for reading in readings], dtype=np.float64))
    names = ("noise", "noise_error", "read_noise")  # a reading that saw nothing is None, which becomes NaN
    noise, error, read = (np.array([r[name] for r in readings], dtype=np.float64) for name in names)
    edges = np.append(clock, max(end, clock[-1] * 1.001))
    low, high = noise * np.exp(-error), noise * np.exp(error)
    axes.stairs(high, edges, baseline=low, fill=True, color=BLUE, alpha=0.15)
    axes.stairs(noise, edges, baseline=None, color=BLUE, lw=1.6)
    axes.plot(clock, read, marker="o", ls="", ms=4, mfc="white", mec=DARK)
    axes.set_ylim(np.nanmin([*low, *read]) / 1.2, np.nanmax([*high, *read]) * 1.2)
    factor_axis(axes, "y")
    axes.set_title("○ readings, — filtered, ± standard error", fontsize=SMALL, color=DARK, loc="left")
