"""Pictures for `benchmarks.hindsight_report`: one panel a setting, one colour a cut."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.hindsight import BATCHES, FLEETS, SETTINGS
from benchmarks.hindsight_canvas import colours_of, entitle, factor_axis, label_ends, panels
from benchmarks.hindsight_laws import common_forecast, forecast, judged, laws_by_cut
from benchmarks.hindsight_numbers import (
    Cell,
    Floats,
    Results,
    Run,
    fleet_of,
    mean_rounds,
    optimum,
    round_seconds,
    seconds_of,
)
from hasfl.reporting.canvas import COLOURS, DARK, NORMAL, PALE, SMALL, label, new_figure, whole_ticks
from hasfl.reporting.figures import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE = COLOURS[0]
SHOWN_RUNS = (("vgg-iid", "narrow"), ("vgg-iid", "wide"))  # whose last model is served
HASFL: dict[str, Any] = {"strategy": "hasfl", "serve": "mean", "constants": None, "way": "over time"}


def draw_all(found: Sequence[Results], folder: Path) -> list[Path]:
    """Draw what there are results for; returns what was written."""
    some = [results for results in found if results.fixed]
    figures = {
        "constants_rounds": rounds_picture([each for each in some if foretold(each)[1]]),
        "constants_law": law_picture(some),
        "constants_hindsight": hindsight_picture(some),
        "constants_plans": plans_picture(found),
    }
    written = {folder / f"{name}.png": figure for name, figure in figures.items() if figure is not None}
    for path, figure in written.items():
        save_figure(figure, path)
    return list(written)


# ── foretold and real rounds ─────────────────────────────────────────────────────────────────────────────


def foretold(results: Results) -> tuple[str, dict[Cell, float]]:
    """The narrow fleet or else the wide one, and what HASFL foretold there: the middle of all seeds."""
    target = SETTINGS[results.setting].targets[1]
    for fleet in FLEETS:
        readings = [(r, r.reading_before(target, "mean")) for r in results.runs(fleet=fleet, **HASFL)]
        said = [forecast(run, reading, results.fixed) for run, reading in readings if reading is not None]
        if said:
            return fleet, common_forecast(said)
    return "", {}


def _panel_each(
    found: Sequence[Results], draw: Callable[["Axes", Results], None], *, height: float
) -> "Figure | None":
    """A panel for every setting, or nothing where there is none."""
    if not found:
        return None
    figure, axes = panels(len(found), height=height)
    for panel, results in zip(axes, found, strict=True):
        draw(panel, results)
    return figure


def rounds_picture(found: Sequence[Results]) -> "Figure | None":
    """Real rounds against foretold ones."""
    return _panel_each(found, _draw_rounds, height=3.1)


def _draw_rounds(axes: "Axes", results: Results) -> None:
    target, colours = SETTINGS[results.setting].targets[1], colours_of(results.setting)
    real, (fleet, said) = mean_rounds(results, target, "mean"), foretold(results)
    how = judged(said, real)
    if how is None:
        return
    cells = list(real)
    x = np.array([how.scale * said[cell] for cell in cells])
    y = np.array([real[cell] for cell in cells])
    there, shade = np.isfinite(y), np.array([colours[cut] for _, cut in cells])
    tried = [max(run.evaluations[-1, 0] for run in results.fixed[cell].values()) for cell in cells]
    ends = np.array([min(x.min(), y[there].min()) / 1.15, max(x.max(), y[there].max(), *tried) * 1.15])
    axes.plot(ends, ends, color=PALE, lw=1, zorder=0)
    axes.scatter(x[there], y[there], c=shade[there], s=20, lw=0)
    never: dict[str, Any] = {"facecolors": "none", "edgecolors": shade[~there], "s": 22, "lw": 1}
    axes.scatter(x[~there], np.array(tried)[~there], marker="^", **never)
    axes.set(xlim=ends, ylim=ends)
    factor_axis(axes, "x")
    factor_axis(axes, "y")
    label(axes, x="foretold rounds, scaled", y=f"real rounds to {100 * target:g} %")
    words = (
        f"Spearman {how.spearman:.2f}; median factor {how.median_factor:.2f}, worst {how.worst_factor:.2f}"
    )
    entitle(axes, f"{results.setting}, read on the {fleet} fleet", below=words)
    _colour_key(axes, colours, never="" if there.all() else "△ given up")


def _colour_key(axes: "Axes", colours: Mapping[int, Any], *, never: str) -> None:
    """The cuts in their colours, in the corner below the diagonal."""
    lines = [(f"cut {cut}", shade) for cut, shade in colours.items()] + [(never, DARK)] * bool(never)
    for k, (words, shade) in enumerate(reversed(lines)):
        spot = (0.98, 0.03 + 0.07 * k)
        axes.text(*spot, words, transform=axes.transAxes, fontsize=SMALL, color=shade, ha="right")


# ── the law ──────────────────────────────────────────────────────────────────────────────────────────────


def law_picture(found: Sequence[Results]) -> "Figure | None":
    """Rounds against 1/b, and the straight lines of the law."""
    return _panel_each(found, _draw_law, height=2.9)


def _draw_law(axes: "Axes", results: Results) -> None:
    target, colours = SETTINGS[results.setting].targets[1], colours_of(results.setting)
    rounds = {cell: r for cell, r in mean_rounds(results, target, "mean").items() if math.isfinite(r)}
    ends: dict[int, tuple[float, float]] = {}
    for cut, law in laws_by_cut(rounds).items():
        inverse = np.array([1 / b for b, J in rounds if cut == J])
        there = np.array([r for (_, J), r in rounds.items() if cut == J])
        axes.scatter(inverse, there, color=colours[cut], s=16, lw=0, zorder=3)
        ends[cut] = float(inverse.max()), float(there[inverse.argmax()])
        if law is not None:
            line = np.array([0.0, inverse.max()])
            height = law.endless * (1 + law.noise[cut] * line)
            axes.plot(line, height, color=colours[cut], lw=1)
            ends[cut] = float(line[1]), float(height[1])
    widest, highest = max(x for x, _ in ends.values()), max(*rounds.values(), *(y for _, y in ends.values()))
    axes.set(xlim=(0, 1.14 * widest), ylim=(0, 1.08 * highest))
    ticks = [1 / b for b in BATCHES if widest / 8 <= 1 / b <= widest]
    axes.set_xticks([0, *ticks], labels=["0", *(f"1/{1 / tick:.0f}" for tick in ticks)])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    label(axes, x="1 / batch size", y=f"rounds to {100 * target:g} %")
    entitle(axes, results.setting)
    label_ends(axes, ends, colours)


# ── seconds in hindsight ─────────────────────────────────────────────────────────────────────────────────


def hindsight_picture(found: Sequence[Results], fleet: str = "narrow") -> "Figure | None":
    """Seconds of every fixed plan, and of HASFL."""
    if not found:
        return None
    figure, axes = panels(len(found), height=3.0)
    for panel, results in zip(axes, found, strict=True):
        _draw_seconds(panel, results, results.runs(fleet=fleet, **HASFL), fleet)
    return figure


def _draw_seconds(axes: "Axes", results: Results, runs: Sequence[Run], fleet: str) -> None:
    target, colours = SETTINGS[results.setting].targets[1], colours_of(results.setting)
    seeds = {run.seed for run in runs} & set(results.seeds) or set(results.seeds)
    seconds: dict[Cell, float] = {}
    for cell in results.fixed:
        by_seed = seconds_of(results, cell, target, "mean", fleet)
        if seeds <= set(by_seed):
            seconds[cell] = float(np.mean([by_seed[seed] for seed in seeds]))
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
    axes.set_xlim(min(BATCHES) / 1.15, max(BATCHES) * 1.6)
    axes.set_xticks(BATCHES, labels=[str(b) for b in BATCHES])
    axes.minorticks_off()
    factor_axis(axes, "y")
    label(axes, x="batch size of every device", y=f"virtual seconds to {100 * target:g} %")
    words = f"○ best fixed plan: {best.seconds:.3g} s\n" if best is not None else ""
    title = f"{results.setting}, {fleet} fleet, {seeds_in_words(seeds)}"
    entitle(axes, title, below=words + hasfl_in_words(runs, taken))
    label_ends(axes, ends, colours)


def hasfl_in_words(runs: Sequence[Run], taken: float) -> str:
    """HASFL's seconds, or how far it came."""
    if not runs:
        return "HASFL: not trained yet"
    if math.isfinite(taken):
        return f"- - HASFL, serves the mean: {taken:.3g} s"
    _, clock, _, accuracy = runs[0].evaluations[-1]
    return f"HASFL, serves the mean: given up at {100 * accuracy:.3g} %, {clock:.3g} s"


def seeds_in_words(seeds: Iterable[int]) -> str:
    listed = sorted(seeds)
    return f"seed {listed[0]}" if len(listed) == 1 else f"{len(listed)} seeds"


# ── plans on the way ─────────────────────────────────────────────────────────────────────────────────────


def plans_picture(found: Sequence[Results]) -> "Figure | None":
    """Batch sizes, the deepest cut and the measured noise over virtual time."""
    by_name = {results.setting: results for results in found}
    wanted = HASFL | {"serve": "last"}
    runs = [by_name[name].runs(fleet=fleet, **wanted)[:1] for name, fleet in SHOWN_RUNS if name in by_name]
    shown = [run for some in runs for run in some]
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


def clock_at(run: Run, rounds: Floats) -> Floats:
    """Virtual time when rounds end, by the seconds of the plans; moved layers are not counted."""
    firsts = [first for first, _ in run.plans]
    paces = [round_seconds(run.setting, plan, fleet_of(run.fleet, run.seed)) for _, plan in run.plans]
    lasts = [*(first - 1 for first in firsts[1:]), max(run.evaluations[-1, 0], rounds.max())]
    begun = np.array([0, *lasts], dtype=np.float64)
    clocks = np.concatenate([[0.0], np.cumsum(np.diff(begun) * paces)])
    at: Floats = np.interp(rounds, begun, clocks)
    return at


def _draw_plans(column: "Sequence[Axes]", run: Run) -> None:
    upper, middle, lower = column
    edges = np.array([first - 1 for first, _ in run.plans] + [run.evaluations[-1, 0]])
    clock = clock_at(run, edges)
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
    """Readings as dots; what they are filtered to as a line, with its standard error."""
    readings = [each for each in run.readings if "noise" in each]
    if not readings:
        return
    clock = clock_at(run, np.array([each["round"] for each in readings], dtype=np.float64))
    known, error, read = (np.array([r[k] for r in readings]) for k in ("noise", "noise_error", "read_noise"))
    edges = np.append(clock, max(end, clock[-1] * 1.001))
    low, high = known * np.exp(-error), known * np.exp(error)
    axes.stairs(high, edges, baseline=low, fill=True, color=BLUE, alpha=0.15)
    axes.stairs(known, edges, baseline=None, color=BLUE, lw=1.6)
    axes.plot(clock, read, marker="o", ls="", ms=4, mfc="white", mec=DARK)
    axes.set_ylim(min(low.min(), read.min()) / 1.2, max(high.max(), read.max()) * 1.2)
    factor_axis(axes, "y")
    axes.set_title("○ readings, — filtered, ± standard error", fontsize=SMALL, color=DARK, loc="left")
