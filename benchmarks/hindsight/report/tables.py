"""The tables of the report, as lines of Markdown."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.hindsight.guesses import guesses_of
from benchmarks.hindsight.laws import (
    NOISES,
    Law,
    fitted_constants,
    laws_by_cut,
    shared_law,
    single_sample_factor,
)
from benchmarks.hindsight.report.words import listed, named, number, percent, spread, table
from benchmarks.hindsight.runs import (
    COLUMN,
    KINDS,
    Results,
    Run,
    in_words,
    mean_rounds,
    optimum,
    rounds_of,
    seconds_of,
)
from benchmarks.hindsight.settings import FLEETS, SETTINGS, Cell

MOST_ERROR = 1.5  # largest error of the logarithm of a constant that counts as determined; chosen by hand
NO_NOISE = 1.01 * NOISES[0]  # samples: a fitted noise up to this is at its limit, and is shown as 0


# ── the tables of a setting ──────────────────────────────────────────────────────────────────────────────


def trained_cells(results: Results) -> list[str]:
    """The fixed plans that were trained with each seed; seeds with the same plans share a line."""
    seeds_of: dict[tuple[Cell, ...], list[int]] = {}
    for seed in results.seeds:
        seeds_of.setdefault(results.cells([seed]), []).append(seed)
    return [f"- seed {listed(seeds)}: {cells_in_words(cells)}" for cells, seeds in seeds_of.items()]


def cells_in_words(cells: Sequence[Cell]) -> str:
    """Fixed plans in words; cuts with the same batch sizes are joined."""
    cuts_of: dict[tuple[int, ...], list[int]] = {}
    for cut in sorted({cut for _, cut in cells}):
        cuts_of.setdefault(tuple(b for b, J in cells if cut == J), []).append(cut)
    return "; ".join(f"b = {listed(batches)} at cut {listed(cuts)}" for batches, cuts in cuts_of.items())


def grid_tables(results: Results) -> list[str]:
    """Tables of rounds and seconds of every fixed plan."""
    lines = ["### Every fixed plan", ""]
    targets = SETTINGS[results.setting].targets
    for kind in KINDS:
        head = ["b", "cut"] + [f"rounds to {percent(target)}" for target in targets]
        head += [f"{fleet}, s to {percent(target)}" for fleet in FLEETS for target in targets]
        lines += [f"Served: {kind}.", "", *table(head, (grid_row(results, c, kind) for c in results.fixed))]
    return lines


def grid_row(results: Results, cell: Cell, kind: str) -> list[str]:
    targets = SETTINGS[results.setting].targets
    row = [str(cell[0]), str(cell[1])]
    row += [spread(rounds_of(results, cell, target, kind).values()) for target in targets]
    for fleet in FLEETS:
        for target in targets:
            words = spread(seconds_of(results, cell, target, kind, fleet).values())
            best = optimum(results, target, kind, fleet)
            row.append(f"**{words}**" if best is not None and best.cell == cell else words)
    return row


def law_table(results: Results) -> list[str]:
    """A table of the fitted law of rounds, for each cut alone and with a common R∞."""
    setting = SETTINGS[results.setting]
    head = ["served", "target", "cut", "R∞_J", "s_J", "misfit", "one R∞", "s_J", "misfit", "s_J / s_first"]
    head += ["b = 1 over the law"]
    rows = []
    for kind in KINDS:
        for target in setting.targets:
            rounds = mean_rounds(results, target, kind)
            common = shared_law(rounds)
            for cut, law in laws_by_cut(rounds).items():
                row = [kind, percent(target), str(cut), *law_words(law, cut)[:3], *law_words(common, cut)]
                rows.append([*row, factor_words(single_sample_factor(rounds, common, cut))])
    return [
        "### The law of rounds, R = R∞ (1 + s_J/b)",
        "",
        "Fitted by least squares in logarithms, over the plans that reached the target with all seeds. The",
        "first three columns of numbers fit each cut J alone. The next three fit one R∞ for all cuts, as",
        "the planner assumes, with s_J = s (1 + drift_J). The misfit is the largest relative error. Plans",
        "with b = 1 are not fitted; the last column shows their rounds over those of the law with one R∞.",
        "",
        *table(head, rows, words=1),
    ]


def constants_table(results: Results) -> list[str]:
    """A table of the constants that fit the grid, with the layers' shares of drift and skew from guesses."""
    skewed = SETTINGS[results.setting].partition != "iid"
    drift_upto = guesses_of(results.setting, results.whole_seeds[0]).each[0].constants.drift_upto
    shares = {cut: float(drift_upto[cut - 1] / drift_upto[-1]) for cut in SETTINGS[results.setting].cuts}
    head = ["target", "noise", "drift of the whole model", "skew of the whole model", "misfit"]
    rows = []
    for target in SETTINGS[results.setting].targets:
        found = fitted_constants(mean_rounds(results, target, "mean"), shares, skewed=skewed)
        if found is not None:
            noise, drift = (
                f"{number(value)} (× {number(math.exp(error))})" if error < MOST_ERROR else "not determined"
                for value, error in ((found.noise, found.noise_error), (found.drift, found.drift_error))
            )
            skew = f"{found.skew:.2g}" if skewed else "–"
            rows.append([percent(target), noise, drift, skew, f"{found.misfit:.0%}"])
    return [
        "### Constants that fit the grid",
        "",
        "R = R∞ (1 + skew_J + noise (1 + drift_J)/b), served: mean. In brackets, the factor of a standard",
        "error.",
        "",
        *table(head, rows),
    ]


def law_words(law: Law | None, cut: int) -> tuple[str, str, str, str]:
    """R∞, s_J, the misfit, and s_J over that of the first cut, in words."""
    if law is None or cut not in law.noise:
        return "–", "–", "–", "–"
    first = law.noise[min(law.noise)]
    ratio = "–" if first <= NO_NOISE else f"{law.noise[cut] / first:.2f}"
    noise = "0" if law.noise[cut] <= NO_NOISE else number(law.noise[cut])
    return number(law.endless), noise, f"{law.misfit[cut]:.0%}", ratio


def factor_words(factor: float) -> str:
    return "–" if math.isnan(factor) else f"{factor:.2f}" if math.isfinite(factor) else "never"


def own_runs(results: Results, fleet: str, strategy: str = "hasfl") -> list[Run]:
    """The runs of a strategy with default options."""
    return results.runs(strategy=strategy, fleet=fleet, serve="mean", constants=None)


def contest_table(results: Results) -> list[str]:
    """A table of strategies that plan during training, against fixed plans."""
    targets = SETTINGS[results.setting].targets
    head = ["plans made in training", "against"]
    for target in targets:
        head += [f"s to {percent(target)}", "best fixed, s", "ratio"]
    tasks = sorted({run.task for run in results.made}, key=default_first)
    rows = []
    for task in tasks:
        runs = [run for run in results.runs() if run.task == task]
        cells = [cell for target in targets for cell in contest(results, runs, target)]
        rows.append([in_words(task), rivals(task[0])[0], *cells])
    return [
        "### HASFL against hindsight",
        "",
        "Best fixed: the fixed plan that was best with the same seeds, fleet and kind of served model.",
        "",
        *table(head, rows, words=2),
    ]


def default_first(task: tuple[str, str, str, str | None]) -> tuple[object, ...]:
    """The sort key of a task, which puts default options first."""
    strategy, fleet, serve, constants = task
    return fleet, strategy != "hasfl", strategy, serve != "mean", constants is not None


def rivals(strategy: str) -> tuple[str, Callable[[Cell], bool]]:
    """The fixed plans that a strategy could have chosen."""
    if strategy == "habs+cut=4":
        return "fixed b, cut 4", lambda cell: cell[1] == 4
    if strategy == "b=16+hams":
        return "b = 16, fixed cuts", lambda cell: cell[0] == 16
    return "all fixed plans", lambda cell: True


def contest(results: Results, runs: Sequence[Run], target: float) -> tuple[str, str, str]:
    """The seconds of the runs of one task, the seconds of their best rival, and the ratio, in words."""
    kind, fleet, strategy = runs[0].serve, runs[0].fleet, runs[0].strategy
    seconds = [run.seconds_to(target, kind) for run in runs]
    words = spread(seconds) if min(seconds) < math.inf else best_accuracy(runs, kind)
    seeds = [run.seed for run in runs]
    if not set(seeds) <= set(results.seeds):
        return words, "not trained", "–"
    best = optimum(results, target, kind, fleet, seeds=seeds, among=rivals(strategy)[1])
    if best is None:
        return words, "never", "–"
    ratio = float(np.mean(seconds)) / best.seconds
    rival = f"{number(best.seconds)} ({named(best.cell)})"
    return words, rival, f"{ratio:.2f}" if math.isfinite(ratio) else "–"


def best_accuracy(runs: Sequence[Run], kind: str) -> str:
    """The best accuracy and the seconds of runs that did not reach their target, in words."""
    best = float(np.mean([np.nanmax(run.evaluations[:, COLUMN[kind]]) for run in runs]))
    words = f"never; {percent(best)} in {spread(float(run.evaluations[-1, 1]) for run in runs)} s"
    return words + ", then gave up" * any(run.gave_up for run in runs)
