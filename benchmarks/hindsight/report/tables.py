"""The tables of the report, as lines of Markdown."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.hindsight.laws import (
    NOISES,
    Judgement,
    Law,
    constants_of,
    forecast,
    judged,
    laws_by_cut,
    shared_law,
    single_sample_factor,
)
from benchmarks.hindsight.report.words import listed, named, number, percent, share, spread, table
from benchmarks.hindsight.runs import (
    COLUMN,
    KINDS,
    Floats,
    Results,
    Run,
    in_words,
    mean_rounds,
    optimum,
    rounds_of,
    seconds_of,
)
from benchmarks.hindsight.settings import FLEETS, SETTINGS, Cell
from hasfl.constants import MeasuredConstants

NO_NOISE = 1.01 * NOISES[0]  # samples: a fitted noise up to this is at its lower limit, and is shown as 0


# ── the tables of a setting ─────────────────────────────────────────────────────────────────────────────


def trained_cells(results: Results) -> list[str]:
    """Which fixed plans each seed has, a line for all seeds that have the same plans."""
    seeds_of: dict[tuple[Cell, ...], list[int]] = {}
    for seed in results.seeds:
        seeds_of.setdefault(results.cells([seed]), []).append(seed)
    return [f"- seed {listed(seeds)}: {cells_in_words(cells)}" for cells, seeds in seeds_of.items()]


def cells_in_words(cells: Sequence[Cell]) -> str:
    """Fixed plans, cuts with the same batch sizes together."""
    cuts_of: dict[tuple[int, ...], list[int]] = {}
    for cut in sorted({cut for _, cut in cells}):
        cuts_of.setdefault(tuple(b for b, J in cells if cut == J), []).append(cut)
    return "; ".join(f"b = {listed(batches)} at cut {listed(cuts)}" for batches, cuts in cuts_of.items())


def grid_tables(results: Results) -> list[str]:
    """Rounds and seconds of every fixed plan."""
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
    """The fitted law of rounds, for each cut alone and with a common R∞, and the measured constants."""
    setting = SETTINGS[results.setting]
    terms: tuple[Callable[[MeasuredConstants], Floats], ...] = (
        noise_upto,
        lambda constants: constants.skew_upto,
    )
    measured = [measured_upto(results, fleet, term) for term in terms for fleet in FLEETS]
    head = ["served", "target", "cut", "R∞_J", "s_J", "misfit", "one R∞", "s_J", "misfit", "s_J / s_first"]
    head += ["b = 1 over the law"]
    head += [f"{words}, {fleet}" for words in ("measured noise (1 + drift_J)", "skew_J") for fleet in FLEETS]
    rows = []
    for kind in KINDS:
        for target in setting.targets:
            rounds = mean_rounds(results, target, kind)
            common = shared_law(rounds)
            for cut, law in laws_by_cut(rounds).items():
                row = [kind, percent(target), str(cut), *law_words(law, cut)[:3], *law_words(common, cut)]
                row.append(factor_words(single_sample_factor(rounds, common, cut)))
                rows.append([*row, *(by_cut.get(cut, "–") for by_cut in measured)])
    return [
        "### The law of rounds, R = R∞ (1 + s_J/b)",
        "",
        "Fitted by least squares in logarithms, over the plans that reached the target with all seeds. The",
        "first three columns of numbers fit each cut J alone. The next three fit one R∞ for all cuts, as",
        "the planner assumes, with s_J = s (1 + drift_J). The misfit is the largest relative error. Plans",
        "with b = 1 are not fitted; a column shows their rounds over those of the law with one R∞. The last",
        "columns show the constants that HASFL measured: its last reading before the higher target.",
        "",
        *table(head, rows, words=1),
    ]


def law_words(law: Law | None, cut: int) -> tuple[str, str, str, str]:
    """R∞, s_J, the misfit, and s_J divided by that of the first cut."""
    if law is None or cut not in law.noise:
        return "–", "–", "–", "–"
    first = law.noise[min(law.noise)]
    ratio = "–" if first <= NO_NOISE else f"{law.noise[cut] / first:.2f}"
    noise = "0" if law.noise[cut] <= NO_NOISE else number(law.noise[cut])
    return number(law.endless), noise, f"{law.misfit[cut]:.0%}", ratio


def factor_words(factor: float) -> str:
    return "–" if math.isnan(factor) else f"{factor:.2f}" if math.isfinite(factor) else "never"


def noise_upto(constants: MeasuredConstants) -> Floats:
    """noise (1 + drift_J) for each cut J."""
    noise: Floats = constants.noise * (1 + constants.drift_upto)
    return noise


def measured_upto(
    results: Results, fleet: str, term: Callable[[MeasuredConstants], Floats]
) -> dict[int, str]:
    """A term of the measured law for each cut, over the runs of HASFL."""
    target, terms = SETTINGS[results.setting].targets[1], []
    for run in own_runs(results, fleet):
        reading = run.reading_before(target, "mean")
        if reading is not None:
            constants = constants_of(reading)
            assert isinstance(constants, MeasuredConstants)
            terms.append(term(constants))
    cuts = SETTINGS[results.setting].cuts
    return {J: spread(float(by_cut[J - 1]) for by_cut in terms) for J in cuts} if terms else {}


def own_runs(results: Results, fleet: str, constants: str | None = None) -> list[Run]:
    """The runs of HASFL with default options, or with the paper's constants."""
    return results.runs(strategy="hasfl", fleet=fleet, serve="mean", constants=constants, way="over time")


def contest_table(results: Results) -> list[str]:
    """Plans that were made during training, against fixed plans."""
    targets = SETTINGS[results.setting].targets
    head = ["plans made in training", "against", "readings"]
    for target in targets:
        head += [f"s to {percent(target)}", "best fixed, s", "ratio"]
    tasks = sorted({run.task for run in results.made}, key=default_first)
    rows = []
    for task in tasks:
        runs = [run for run in results.runs() if run.task == task]
        cells = [cell for target in targets for cell in contest(results, runs, target)]
        readings = share(run.share_of_readings for run in runs)
        rows.append([in_words(task), rivals(task[0])[0], readings, *cells])
    return [
        "### HASFL against hindsight",
        "",
        "Best fixed: the fixed plan that was best with the same seeds, fleet and kind of served model.",
        "Readings: the part of the virtual seconds that readings took. Where it is not counted, the run is",
        "older, and its readings took no time on the clock.",
        "",
        *table(head, rows, words=2),
    ]


def default_first(task: tuple[str, str, str, str | None, str]) -> tuple[object, ...]:
    """A sort key: default options come first."""
    strategy, fleet, serve, constants, way = task
    return fleet, strategy != "hasfl", strategy, serve != "mean", constants is not None, way


def rivals(strategy: str) -> tuple[str, Callable[[Cell], bool]]:
    """The fixed plans that a strategy could have chosen."""
    if strategy == "habs+cut=4":
        return "fixed b, cut 4", lambda cell: cell[1] == 4
    if strategy == "b=16+hams":
        return "b = 16, fixed cuts", lambda cell: cell[0] == 16
    return "all fixed plans", lambda cell: True


def contest(results: Results, runs: Sequence[Run], target: float) -> tuple[str, str, str]:
    """Seconds of runs that differ in their seeds only, seconds of their best rival, and the ratio."""
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
    """The best accuracy and the seconds of runs that did not reach their target."""
    best = float(np.mean([np.nanmax(run.evaluations[:, COLUMN[kind]]) for run in runs]))
    words = f"never; {percent(best)} in {spread(float(run.evaluations[-1, 1]) for run in runs)} s"
    return words + ", then gave up" * any(run.gave_up for run in runs)


def forecast_table(results: Results) -> list[str]:
    """How near forecasts by the constants of a run are to the real rounds of fixed plans."""
    target = SETTINGS[results.setting].targets[1]
    real = mean_rounds(results, target, "mean")
    head = ["constants", "seed", "read in round", "Spearman", "median factor off", "worst"]
    head += ["never, by forecast", "plans"]
    rows = []
    for constants in (None, "paper"):
        for fleet in FLEETS:
            for run in own_runs(results, fleet, constants):
                reading, verdict = judgement(run, real)
                whose = "measured" if constants is None else "the paper's"
                when = "–" if reading is None else str(reading["round"])
                rows.append([f"{whose}, {fleet} fleet", str(run.seed), when, *judgement_words(verdict)])
    return [
        f"### Forecast and real rounds to {percent(target)}, served: mean",
        "",
        "A forecast uses the last constants that a run of HASFL read before it reached the target. Real",
        "rounds are means over the seeds. Spearman's rank correlation covers all plans; plans that never",
        "reached the target rank last, tied. Factors cover the other plans, after the forecast is scaled by",
        "the median ratio. The paper's constants are used with Corollary 1 and the default ε, twice the",
        "floor of single samples at the last cut. Every plan reaches this ε, and the rounds of any two",
        "plans differ by less than a factor of 2.",
        "",
        *table(head, rows, words=1),
    ]


def judgement_words(verdict: Judgement | None) -> list[str]:
    if verdict is None:
        return ["–"] * 5
    factors = [f"{verdict.median_factor:.2f}", f"{verdict.worst_factor:.2f}"]
    plans = f"{verdict.plans}, {verdict.reached} reached it"
    return [f"{verdict.spearman:.2f}", *factors, str(verdict.unreachable), plans]


def paper_table(results: Results) -> list[str]:
    """The plans that the paper's constants chose, and their seconds."""
    target = SETTINGS[results.setting].targets[1]
    head = ["fleet", "constants", "seed", "plans", "last b", "last cuts"]
    head += [f"s to {percent(target)}", "best fixed, s", "ratio"]
    rows = []
    for fleet in FLEETS:
        for run in own_runs(results, fleet, "paper") + own_runs(results, fleet):
            plan = run.plans[-1][1]
            choice = [str(len(run.plans)), ranged(plan.batch_sizes.tolist()), ranged(plan.cuts.tolist())]
            whose = "the paper's" if run.constants else "measured"
            rows.append([fleet, whose, str(run.seed), *choice, *contest(results, [run], target)])
    return ["### What the paper's constants chose", "", *table(head, rows, words=2)]


def ranged(values: Sequence[int]) -> str:
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def judgement(run: Run, real: Mapping[Cell, float]) -> tuple[Mapping[str, Any] | None, Judgement | None]:
    """The last reading of a run before the higher target, and how near its forecast is to the real rounds."""
    reading = run.reading_before(SETTINGS[run.setting].targets[1], "mean")
    return reading, None if reading is None else judged(forecast(run, reading, real), real)
