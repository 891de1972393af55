"""Compares HASFL in all settings with the best fixed plan, with other strategies, and with its goals."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.hindsight.report.tables import best_accuracy, own_runs
from benchmarks.hindsight.report.words import listed, named, number, percent, spread, table
from benchmarks.hindsight.runs import COLUMN, Optimum, Results, Run, optimum
from benchmarks.hindsight.settings import ASKED, FLEETS, SETTINGS

SERVED = "mean"  # kind of served model in these tables, which is the default
ASKED_OF = ("vgg16", "resnet18")  # the networks that `ASKED` is about


@dataclass(frozen=True, slots=True)
class Verdict:
    """Comparisons of a strategy with default options, on one fleet of a setting, at one of its targets."""

    results: Results
    fleet: str
    which: int = 1  # index of the target: 0 is the lower one, 1 the higher one
    strategy: str = "hasfl"

    @property
    def name(self) -> str:
        return self.results.setting

    @property
    def target(self) -> float:
        """The test accuracy to reach."""
        return SETTINGS[self.name].targets[self.which]

    @property
    def runs(self) -> list[Run]:
        """The runs of the strategy whose seeds were also used for fixed plans."""
        runs = own_runs(self.results, self.fleet, self.strategy)
        return [run for run in runs if run.seed in self.results.seeds]

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]

    @property
    def seconds(self) -> list[float]:
        """The seconds of the strategy to the target, for each seed."""
        return [run.seconds_to(self.target, SERVED) for run in self.runs]

    def best(self, seeds: Iterable[int]) -> Optimum | None:
        """The best fixed plan over these seeds."""
        return optimum(self.results, self.target, SERVED, self.fleet, seeds=seeds)

    def ratio(self) -> float:
        """The mean seconds over those of the best fixed plan with the same seeds; NaN if unknown."""
        best = self.best(self.seeds) if self.seeds else None
        return math.nan if best is None else float(np.mean(self.seconds)) / best.seconds

    def ratio_by_seed(self) -> list[float]:
        """The seconds of each seed, over those of the best fixed plan with this seed; NaN if unknown."""
        best = [self.best([seed]) for seed in self.seeds]
        pairs = zip(self.seconds, best, strict=True)
        return [math.nan if each is None else seconds / each.seconds for seconds, each in pairs]

    def over(self, strategy: str) -> float:
        """The mean seconds over those of another strategy, with the seeds that both have; NaN if unknown.

        A run of the other strategy that missed the target counts with its last second, so the ratio is an
        upper limit. A limit of 1 or more says nothing, so it becomes NaN.
        """
        ours = dict(zip(self.seeds, self.seconds, strict=True))
        theirs = [run for run in replace(self, strategy=strategy).runs if run.seed in ours]
        if not theirs:
            return math.nan
        own = float(np.mean([ours[run.seed] for run in theirs]))
        ratio = own / float(np.mean([self._at_least(run) for run in theirs]))
        return math.nan if self.missed_by(strategy) and ratio >= 1 else ratio

    def accuracies_at_the_end_of(self, strategy: str) -> list[tuple[float, float]]:
        """The accuracies of both strategies in the last second of the shorter run, for each common seed."""
        pairs = []
        for own in self.runs:
            for its in replace(self, strategy=strategy).runs:
                if its.seed == own.seed:
                    end = min(float(run.evaluations[-1, 1]) for run in (own, its))
                    pairs.append((accuracy_at(own, end), accuracy_at(its, end)))
        return pairs

    def ahead_of(self, strategy: str) -> bool | None:
        """Whether the strategy needs less time than another; None if unknown.

        If the ratio of times is unknown, the accuracies in the same second decide, with every seed.
        """
        ratio, pairs = self.over(strategy), self.accuracies_at_the_end_of(strategy)
        if not math.isnan(ratio):
            return ratio < 1
        return all(own > its for own, its in pairs) if pairs else None

    def missed_by(self, strategy: str) -> bool:
        """Whether a run of another strategy missed the target."""
        runs = replace(self, strategy=strategy).runs
        return any(math.isinf(run.seconds_to(self.target, SERVED)) for run in runs if run.seed in self.seeds)

    def _at_least(self, run: Run) -> float:
        """The seconds of a run to the target, or to its end if it missed the target."""
        return min(run.seconds_to(self.target, SERVED), float(run.evaluations[-1, 1]))


def accuracy_at(run: Run, second: float) -> float:
    """The accuracy of the served model at a virtual second, interpolated between evaluations."""
    return float(np.interp(second, run.evaluations[:, 1], run.evaluations[:, COLUMN[SERVED]]))


def verdicts(results_of_all: Sequence[Results]) -> Iterator[Verdict]:
    """The verdicts on HASFL, one for each setting and fleet."""
    return (Verdict(results, fleet) for results in results_of_all for fleet in FLEETS)


def ratio_words(ratio: float) -> str:
    return "–" if math.isnan(ratio) else f"{ratio:.2f}" if math.isfinite(ratio) else "never"


def summary(results_of_all: Sequence[Results]) -> list[str]:
    """A table of HASFL and `proportional` against the best fixed plan, in and out of sample."""
    lines = [
        "## In short",
        "",
        "Seconds to the higher target, the running mean served, over those of the best fixed plan. Fixed",
        "plans: how many were trained with all seeds of the row. The ratio of one seed is against the best",
        "of all fixed plans that this seed has. `proportional` has one cut for all, and batches in",
        "proportion to speed.",
        "",
    ]
    head = ["setting", "fleet", "target", "seeds", "HASFL, s", "best fixed, s", "fixed plans", "ratio"]
    head += ["of each seed", "to the lower target", "`proportional`", "HASFL over `proportional`"]
    for apart in (False, True):
        some = [results for results in results_of_all if SETTINGS[results.setting].kept_apart == apart]
        title = "Out of sample: no guess was made with these settings" if apart else "In sample"
        lines += [f"### {title}", "", *table(head, map(summary_row, verdicts(some)), words=2)]
    return lines


def summary_row(verdict: Verdict) -> list[str]:
    results = verdict.results
    seeds = verdict.seeds or list(results.whole_seeds)
    best = verdict.best(seeds) if seeds else None
    row = [verdict.name, verdict.fleet, percent(verdict.target), listed(verdict.seeds) or "–", taken(verdict)]
    row += ["–" if best is None else f"{number(best.seconds)} ({named(best.cell)})"]
    row += [str(len(results.cells(seeds))) if seeds else "0", ratio_words(verdict.ratio())]
    row += [", ".join(map(ratio_words, verdict.ratio_by_seed())) or "–"]
    row += [ratio_words(replace(verdict, which=0).ratio())]
    row += [ratio_words(replace(verdict, strategy="proportional").ratio())]
    return [*row, ratio_words(verdict.over("proportional"))]


def taken(verdict: Verdict) -> str:
    """The seconds to the target in words, or the best accuracy if no run has reached it."""
    missed = verdict.runs and min(verdict.seconds) == math.inf
    return best_accuracy(verdict.runs, SERVED) if missed else spread(verdict.seconds)


def asked_and_reached(results_of_all: Sequence[Results]) -> list[str]:
    """A table of the goals that were set for HASFL, and whether it reaches them."""
    head = ["fleet", "trainings", "mean asked", "mean", "", "worst asked", "worst", ""]
    return [
        "## Asked and reached",
        "",
        "VGG-16 and ResNet-18 in sample, to the higher target: ratios of every seed to its best fixed plan.",
        "",
        *table(head, (asked_row(results_of_all, fleet) for fleet in FLEETS), words=1),
    ]


def asked_row(results_of_all: Sequence[Results], fleet: str) -> list[str]:
    ratios = [
        ratio
        for verdict in verdicts(results_of_all)
        if verdict.fleet == fleet
        and SETTINGS[verdict.name].network in ASKED_OF
        and not SETTINGS[verdict.name].kept_apart
        for ratio in verdict.ratio_by_seed()
    ]
    if not ratios:
        return [fleet, "0"]
    reached = (float(np.mean(ratios)), max(ratios))
    pairs = zip(ASKED[fleet], reached, strict=True)
    cells = [
        cell for asked, ratio in pairs for cell in (f"{asked:g}", ratio_words(ratio), mark(ratio <= asked))
    ]
    return [fleet, str(len(ratios)), *cells]


def against_the_paper(results_of_all: Sequence[Results]) -> list[str]:
    """A table of HASFL against the paper's planner."""
    head = ["setting", "fleet", "over hasfl-bcd", "ahead", "accuracy in the same second: HASFL, hasfl-bcd"]
    head += ["hasfl-bcd, s"]
    rows = [paper_row(verdict) for verdict in verdicts(results_of_all) if verdict.runs]
    return [
        "## Against the paper's planner",
        "",
        "Means over the seeds, to the higher target, the running mean served. `hasfl-bcd` plans with the",
        "paper's Algorithm 2 and the paper's constants, whose estimates are on the clock. Where it missed",
        "the target or gave up, its last second counts, so the ratio is an upper limit, and the accuracies",
        "of both in the same second are shown: the last second of the one that ended first. Where such a",
        "limit would be above 1, it says nothing, and these accuracies decide who is ahead.",
        "",
        *table(head, rows, words=2),
    ]


def paper_row(verdict: Verdict) -> list[str]:
    ratio, missed = verdict.over("hasfl-bcd"), verdict.missed_by("hasfl-bcd")
    row = [verdict.name, verdict.fleet, "at most " * (missed and ratio < 1) + ratio_words(ratio)]
    row.append(mark(verdict.ahead_of("hasfl-bcd")))
    pairs = verdict.accuracies_at_the_end_of("hasfl-bcd") if missed else []
    row.append(", ".join(percent(float(np.mean(each))) for each in zip(*pairs, strict=True)) or "–")
    theirs = replace(verdict, strategy="hasfl-bcd").runs
    return [*row, spread(run.seconds_to(verdict.target, SERVED) for run in theirs)]


def mark(met: bool | None) -> str:
    return "–" if met is None else "yes" if met else "**no**"
