"""HASFL in all settings: against the best fixed plan, the paper's planner, and what was asked."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.hindsight.report.tables import judgement, own_runs
from benchmarks.hindsight.report.words import listed, named, number, percent, share, spread, table
from benchmarks.hindsight.runs import COLUMN, Optimum, Results, Run, mean_rounds, optimum
from benchmarks.hindsight.settings import ASKED, FLEETS, SETTINGS, Cell

SERVED = "mean"  # the default, and the only kind of served model in these tables


@dataclass(frozen=True, slots=True)
class Verdict:
    """HASFL with default options on one fleet of a setting, at one of its targets."""

    results: Results
    fleet: str
    which: int = 1  # of the two targets: 0 is the lower, 1 the higher

    @property
    def name(self) -> str:
        return self.results.setting

    @property
    def target(self) -> float:
        """The test accuracy to reach."""
        return SETTINGS[self.name].targets[self.which]

    @property
    def runs(self) -> list[Run]:
        """The runs of HASFL whose seeds were also used for fixed plans."""
        return [run for run in own_runs(self.results, self.fleet) if run.seed in self.results.seeds]

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]

    @property
    def seconds(self) -> list[float]:
        """Of HASFL, for each seed."""
        return [run.seconds_to(self.target, SERVED) for run in self.runs]

    def best(self, seeds: Iterable[int], among: Callable[[Cell], bool] = lambda cell: True) -> Optimum | None:
        """The best fixed plan over these seeds."""
        return optimum(self.results, self.target, SERVED, self.fleet, seeds=seeds, among=among)

    def ratio(self, among: Callable[[Cell], bool] = lambda cell: True) -> float:
        """Mean seconds of HASFL over those of the best fixed plan with the same seeds; NaN if unknown."""
        best = self.best(self.seeds, among) if self.seeds else None
        return math.nan if best is None else float(np.mean(self.seconds)) / best.seconds

    def ratio_by_seed(self) -> list[float]:
        """The same for each seed alone, against all fixed plans that the seed has."""
        best = [self.best([seed]) for seed in self.seeds]
        pairs = zip(self.seconds, best, strict=True)
        return [math.nan if each is None else seconds / each.seconds for seconds, each in pairs]

    def over_bcd(self) -> float:
        """Mean seconds of HASFL over those of hasfl-bcd, with the seeds that both have; NaN if unknown.

        A run of hasfl-bcd that missed the target counts with its last second, so the ratio is an upper limit.
        Such a limit says nothing from 1 on.
        """
        ours = dict(zip(self.seeds, self.seconds, strict=True))
        theirs = [run for run in bcd_runs(self.results, self.fleet) if run.seed in ours]
        if not theirs:
            return math.nan
        own = float(np.mean([ours[run.seed] for run in theirs]))
        ratio = own / float(np.mean([self._at_least(run) for run in theirs]))
        return math.nan if self.bcd_missed and ratio >= 1 else ratio

    def accuracies_at_its_end(self) -> list[tuple[float, float]]:
        """Those of HASFL and of hasfl-bcd in the last second of hasfl-bcd, or of HASFL if it is earlier."""
        pairs = []
        for own in self.runs:
            for its in bcd_runs(self.results, self.fleet):
                if its.seed == own.seed:
                    end = min(float(run.evaluations[-1, 1]) for run in (own, its))
                    pairs.append((accuracy_at(own, end), accuracy_at(its, end)))
        return pairs

    def ahead_of_bcd(self) -> bool | None:
        """Whether HASFL takes less time, or is better in the same second with every seed; None if unknown."""
        ratio, pairs = self.over_bcd(), self.accuracies_at_its_end()
        if not math.isnan(ratio):
            return ratio < 1
        return all(own > its for own, its in pairs) if pairs else None

    @property
    def bcd_missed(self) -> bool:
        """Whether a run of hasfl-bcd missed the target."""
        runs = bcd_runs(self.results, self.fleet)
        return any(math.isinf(run.seconds_to(self.target, SERVED)) for run in runs if run.seed in self.seeds)

    def _at_least(self, run: Run) -> float:
        """Seconds to the target, or to the end of a run that missed it."""
        return min(run.seconds_to(self.target, SERVED), float(run.evaluations[-1, 1]))


def bcd_runs(results: Results, fleet: str) -> list[Run]:
    """The runs of HASFL with the paper's planner and default options."""
    return results.runs(strategy="hasfl-bcd", fleet=fleet, serve=SERVED, constants=None, way="over time")


def accuracy_at(run: Run, second: float) -> float:
    """Of the served model, interpolated between evaluations."""
    return float(np.interp(second, run.evaluations[:, 1], run.evaluations[:, COLUMN[SERVED]]))


def verdicts(results_of_all: Sequence[Results]) -> Iterator[Verdict]:
    """One for each setting and fleet."""
    return (Verdict(results, fleet) for results in results_of_all for fleet in FLEETS)


def ratio_words(ratio: float) -> str:
    return "–" if math.isnan(ratio) else f"{ratio:.2f}" if math.isfinite(ratio) else "never"


def summary(results_of_all: Sequence[Results]) -> list[str]:
    """HASFL against the best fixed plan."""
    head = ["setting", "fleet", "target", "seeds", "HASFL, s", "readings", "best fixed, s", "fixed plans"]
    head += ["ratio", "ratio of each seed", "ratio to the lower target", "ratio without b = 1"]
    return [
        "## In short",
        "",
        "HASFL serves the mean. Readings: the part of its seconds that readings took. Fixed plans: how many",
        "were trained with all seeds of the row; the best of them is the rival. Where another plan is better",
        "with the seeds that have the most plans, it is named too. The ratio of one seed is against the best",
        "of all fixed plans that this seed has.",
        "",
        "**The last column shows what the ratio would be if plans with b = 1 were left out of the grids.**",
        "Earlier reports left them out. On digits, b = 1 is the best plan alike for all in most rows, so the",
        "ratios that those reports gave for digits were too good.",
        "",
        *table(head, map(summary_row, verdicts(results_of_all)), words=2),
    ]


def summary_row(verdict: Verdict) -> list[str]:
    results, runs = verdict.results, verdict.runs
    seeds = verdict.seeds or list(results.whole_seeds)
    best = verdict.best(seeds)
    row = [verdict.name, verdict.fleet, percent(verdict.target), listed(verdict.seeds) or "–"]
    row += [spread(verdict.seconds), share(run.share_of_readings for run in runs) if runs else "–"]
    row += ["–" if best is None else f"{number(best.seconds)} ({rival_words(verdict, best.cell, seeds)})"]
    row += [str(len(results.cells(seeds))) if seeds else "0", ratio_words(verdict.ratio())]
    row += [", ".join(map(ratio_words, verdict.ratio_by_seed())) or "–"]
    lower, without_single = replace(verdict, which=0).ratio(), verdict.ratio(lambda cell: cell[0] > 1)
    return [*row, ratio_words(lower), ratio_words(without_single)]


def rival_words(verdict: Verdict, rival: Cell, seeds: Iterable[int]) -> str:
    """The best fixed plan; a better one that was not trained with all these seeds is named too."""
    whole = verdict.best(verdict.results.whole_seeds)
    if whole is None or whole.cell in verdict.results.cells(seeds):
        return named(rival)
    return f"{named(rival)}; of all: {named(whole.cell)}"


def asked_and_reached(results_of_all: Sequence[Results]) -> list[str]:
    """What was asked of HASFL, and whether it is reached."""
    head = ["setting", "fleet", "over the best fixed plan: asked", "reached", "", "over hasfl-bcd", "ahead"]
    head += ["accuracy in the same second: HASFL, hasfl-bcd", "hasfl-bcd, s"]
    return [
        "## Asked and reached",
        "",
        "Means over the seeds, to the higher target, the running mean served. `hasfl-bcd` plans with the",
        "paper's Algorithm 2 and the paper's constants, whose estimates are on the clock. Where it missed",
        "the target or gave up, its last second counts, so the ratio is an upper limit, and the accuracies",
        "of both in the same second are shown: the last second of the one that ended first. Where such a",
        "limit would be above 1, it says nothing, and these accuracies decide who is ahead.",
        "",
        *table(head, map(asked_row, verdicts(results_of_all)), words=2),
    ]


def asked_row(verdict: Verdict) -> list[str]:
    fixed, bcd, asked = verdict.ratio(), verdict.over_bcd(), ASKED[verdict.fleet]
    reached = None if math.isnan(fixed) else fixed <= asked
    row = [verdict.name, verdict.fleet, f"at most {asked:g}", ratio_words(fixed), mark(reached)]
    row += ["at most " * (verdict.bcd_missed and bcd < 1) + ratio_words(bcd), mark(verdict.ahead_of_bcd())]
    pairs = verdict.accuracies_at_its_end() if verdict.bcd_missed else []
    row.append(", ".join(percent(float(np.mean(each))) for each in zip(*pairs, strict=True)) or "–")
    theirs = bcd_runs(verdict.results, verdict.fleet)
    return [*row, spread(run.seconds_to(verdict.target, SERVED) for run in theirs)]


def mark(met: bool | None) -> str:
    return "–" if met is None else "yes" if met else "**no**"


def rankings(results_of_all: Sequence[Results]) -> list[str]:
    """How well forecasts rank fixed plans."""
    head = ["setting", "fleet", "measured", "the paper's"]
    rows = [
        [v.name, v.fleet, *(ranking(v.results, v.fleet, constants) for constants in (None, "paper"))]
        for v in verdicts(results_of_all)
    ]
    note = (
        "Spearman's rank correlation of forecast and real rounds over all fixed plans, by the constants used."
    )
    return ["## Forecasts in short", "", note, "", *table(head, rows, words=2)]


def ranking(results: Results, fleet: str, constants: str | None) -> str:
    """Spearman's correlation of forecast and real rounds, over the runs of HASFL with these constants."""
    target = SETTINGS[results.setting].targets[1]
    real = mean_rounds(results, target, SERVED)
    judgements = [judgement(run, real) for run in own_runs(results, fleet, constants)]
    return spread(verdict.spearman for _, verdict in judgements if verdict is not None)
