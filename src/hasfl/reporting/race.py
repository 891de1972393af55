"""Who reaches a goal first: when each run reached an accuracy on held-out samples, and a picture of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hasfl.record import RoundRecord
from hasfl.reporting.canvas import DARK, PALE, SMALL, label, line_style, new_figure
from hasfl.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Records = Sequence[RoundRecord]
FRAME = 4.0  # how many times the winner's time the picture of curves shows; slower runs leave it to the right


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """When one run reached the goal; where it did not, its last evaluation."""

    strategy: str
    reached: bool
    seconds: float  # of virtual time
    rounds: int
    held_out_accuracy: float
    accuracy: float  # on the test set, at the same evaluation


def finish(strategy: str, records: Records, goal: float) -> Finish:
    """When the run of a strategy first had the accuracy `goal` on held-out samples."""
    evaluated = [record for record in records if record.held_out_accuracy is not None]
    good = [record for record in evaluated if (record.held_out_accuracy or 0.0) >= goal]
    record = good[0] if good else evaluated[-1]
    assert record.held_out_accuracy is not None
    assert record.accuracy is not None
    return Finish(
        strategy=strategy,
        reached=bool(good),
        seconds=record.clock,
        rounds=record.round,
        held_out_accuracy=record.held_out_accuracy,
        accuracy=record.accuracy,
    )


def race_picture(runs: Mapping[str, Records], goal: float) -> "Figure":
    """Above, the time of every strategy to the goal; below, accuracy over the first part of that time.

    Both axes are linear. The factor to the fastest strategy is written beside each bar.
    """
    finishes = [finish(strategy, records, goal) for strategy, records in runs.items()]
    figure = new_figure(2.6 + 0.3 * len(finishes))
    bars, curves = figure.subplots(2, height_ratios=[0.3 * len(finishes), 2.2])
    _draw_bars(bars, finishes, goal)
    _draw_curves(curves, runs, finishes, goal)
    return figure


def _fastest(finishes: Sequence[Finish]) -> float:
    """Seconds of the first to reach the goal; of the shortest run where none did."""
    seconds = [each.seconds for each in finishes if each.reached] or [each.seconds for each in finishes]
    return min(seconds)


def _draw_bars(axes: "Axes", finishes: Sequence[Finish], goal: float) -> None:
    fastest, longest = _fastest(finishes), max(each.seconds for each in finishes)
    rows = range(len(finishes))
    for k, each in zip(rows, finishes, strict=True):
        colour = line_style(k)["color"]
        axes.barh(
            k,
            each.seconds,
            color=colour if each.reached else "white",
            edgecolor=colour,
            hatch="" if each.reached else "///",
            height=0.7,
        )
        time = format_seconds(each.seconds)
        ratio = each.seconds / fastest if fastest > 0 else 1.0
        factor = "" if ratio == 1 else f", {ratio:.3g} times as long"
        failure = f"not reached after {time}: {each.held_out_accuracy:.1%}"
        words = f"{time}{factor}" if each.reached else failure
        axes.text(each.seconds + 0.01 * longest, k, words, va="center", fontsize=SMALL, color=DARK)
    axes.set_yticks(list(rows), labels=[each.strategy for each in finishes])
    axes.set_ylim(len(finishes) - 0.5, -0.5)
    axes.set_xlim(0, 1.45 * longest)
    axes.set_xticks([])
    label(axes, frame=("left",))
    axes.set_title(
        f"Virtual time until {100 * goal:g} % of the held-out samples are right",
        loc="left",
        fontsize=SMALL + 1,
    )


def _draw_curves(axes: "Axes", runs: Mapping[str, Records], finishes: Sequence[Finish], goal: float) -> None:
    edge = FRAME * _fastest(finishes)
    unit, size = ("ms", 1e-3) if edge < 1 else ("s", 1.0) if edge < 600 else ("min", 60.0)
    for k, (each, records) in enumerate(zip(finishes, runs.values(), strict=True)):
        evaluated = [record for record in records if record.held_out_accuracy is not None]
        seconds = [0.0, *(record.clock / size for record in evaluated)]
        accuracies = [float("nan"), *(100 * (record.held_out_accuracy or 0.0) for record in evaluated)]
        width = 1.3 if k else 2.6  # the first line shows also where another one covers it
        later = " (later)" if evaluated[0].clock > edge else ""
        axes.plot(seconds, accuracies, lw=width, label=each.strategy + later, **line_style(k))
        if each.reached and each.seconds <= edge:
            end = (each.seconds / size, 100 * each.held_out_accuracy)
            axes.plot(*end, "o", ms=6.5, color=line_style(k)["color"], mec="white", zorder=3)
    axes.axhline(100 * goal, color=DARK, lw=0.8, ls=":")
    axes.text(0.995 * edge / size, 100 * goal, "goal", va="bottom", ha="right", fontsize=SMALL, color=DARK)
    axes.set_xlim(0, edge / size)
    axes.set_ylim(top=101)
    label(axes, x=f"virtual time ({unit})", y="accuracy on held-out\nsamples (%)")
    axes.grid(color=PALE, linewidth=0.5)
    axes.legend(loc="lower right", fontsize=SMALL, frameon=False)
