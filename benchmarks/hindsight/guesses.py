"""Prints how good the plans for guesses are by the trained grids, without a training of `hasfl`.

    python -m benchmarks.hindsight.guesses

The rounds of a plan are read off the grid of fixed plans of the same seed, at the plan's deepest cut and at
the batch size with the same noise, 1/mean(1/b_i). Between the batch sizes and cuts of the grid, the logarithm
of the rounds is interpolated. A fixed plan that never reached the target counts with the rounds that it was
trained for, so ratios with ">" are lower limits. The numbers of `src/hasfl/guesses.py` were chosen with this
table, without the rows of settings that are kept apart.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks.hindsight.report.words import named, percent, table
from benchmarks.hindsight.runs import Results, fleet_of, optimum, profile_of, read_results, round_seconds
from benchmarks.hindsight.settings import FLEETS, RESULTS, SETTINGS
from hasfl import Seeds
from hasfl.arrays import IntN
from hasfl.constants import Guesses
from hasfl.data.partition import label_counts, partition, unlikeness
from hasfl.guesses import guesses
from hasfl.plan import Plan
from hasfl.planning.exact.guess_ratios import weighed
from hasfl.planning.exact.planner import best_plan
from hasfl.problem import Problem

SERVED = "mean"
TRAINING_SAMPLES = {"digits": 1437, "cifar10": 50_000, "cifar100": 50_000}


def main() -> None:
    found = list(judged())
    rows = [case.row() for case in found]
    head = ["setting", "fleet", "seed", "to", "plan", "best fixed plan", "ratio"]
    print("\n".join(table(head, rows, words=6)))
    for fleet in FLEETS:
        for apart in (False, True):
            ratios = [c.ratio for c in found if c.fleet == fleet and SETTINGS[c.setting].kept_apart == apart]
            if ratios:
                mean = math.exp(np.mean(np.log(ratios)))
                where = "kept apart" if apart else "in sample"
                print(f"{fleet}, {where}: mean {mean:.2f}, worst {max(ratios):.2f}")


@dataclass(frozen=True, slots=True)
class Case:
    """The plan for guesses on one fleet of a setting, compared with the best fixed plan of one seed."""

    setting: str
    fleet: str
    seed: int
    target: float
    plan: Plan
    best: str
    ratio: float
    at_least: bool  # whether `ratio` is only a lower limit

    def row(self) -> list[str]:
        """The row of the case in the table."""
        b, cuts = self.plan.batch_sizes, self.plan.cuts
        plan = f"b={ranged(b)} cut={ranged(cuts)}"
        ratio = f"{'> ' * self.at_least}{self.ratio:.2f}"
        return [self.setting, self.fleet, str(self.seed), percent(self.target), plan, self.best, ratio]


def ranged(values: IntN) -> str:
    return str(values.min()) if values.min() == values.max() else f"{values.min()} to {values.max()}"


def judged(make: Callable[[str, int], Guesses] | None = None) -> Iterator[Case]:
    """The cases of all grids that have a best fixed plan."""
    for name, setting in SETTINGS.items():
        results = read_results(RESULTS, name)
        for seed in results.seeds:
            for fleet in FLEETS:
                plan = plan_for(name, fleet, seed, (make or guesses_of)(name, seed))
                for target in setting.targets:
                    best = optimum(results, target, SERVED, fleet, seeds=[seed])
                    if best is None:
                        continue
                    rounds, at_least = rounds_by_grid(results, seed, target, plan)
                    ratio = rounds * round_seconds(name, plan, fleet_of(name, fleet, seed)) / best.seconds
                    yield Case(name, fleet, seed, target, plan, named(best.cell), ratio, at_least)


@cache
def unlikeness_of(name: str, seed: int) -> float:
    """The unlikeness of labels in a setting's partition, for classes of equal size."""
    setting = SETTINGS[name]
    classes = 100 if setting.data == "cifar100" else 10
    labels = np.arange(TRAINING_SAMPLES[setting.data]) % classes
    parts = partition(labels, setting.devices, Seeds(seed), kind=setting.partition, alpha=setting.alpha)
    return unlikeness(label_counts(parts, labels, classes))


def guesses_of(name: str, seed: int) -> Guesses:
    """The guesses of `hasfl` in a setting."""
    setting = SETTINGS[name]
    return guesses(
        profile_of(name),
        devices=setting.devices,
        interval=setting.interval,
        unlikeness=unlikeness_of(name, seed),
        learning_rate=setting.learning_rate,
    )


def plan_for(name: str, fleet: str, seed: int, made: Guesses) -> Plan:
    """The exact planner's plan for guesses."""
    setting = SETTINGS[name]
    problem = Problem(
        fleet=fleet_of(name, fleet, seed),
        profile=profile_of(name),
        constants=made,
        learning_rate=setting.learning_rate,
        interval=setting.interval,
        samples=np.full(setting.devices, TRAINING_SAMPLES[setting.data] // setting.devices),
    )
    return best_plan(weighed(problem)).plan


def rounds_by_grid(results: Results, seed: int, target: float, plan: Plan) -> tuple[float, bool]:
    """The rounds of a plan, interpolated in the grid, and whether they are only a lower limit."""
    cells = results.cells([seed])
    cuts = sorted({cut for _, cut in cells})
    below = max((cut for cut in cuts if cut <= plan.deepest_cut), default=cuts[0])
    above = min((cut for cut in cuts if cut >= plan.deepest_cut), default=cuts[-1])
    noise = float((1 / plan.batch_sizes).mean())
    ends = [rounds_at(results, seed, target, cut, noise) for cut in (below, above)]
    share = (plan.deepest_cut - below) / max(above - below, 1)
    return math.exp(np.interp(share, [0, 1], np.log([r for r, _ in ends]))), any(limit for _, limit in ends)


def rounds_at(results: Results, seed: int, target: float, cut: int, noise: float) -> tuple[float, bool]:
    """The rounds at a cut of the grid for mean(1/b) = `noise`, and whether they are only a lower limit."""
    batches = sorted((b for b, c in results.cells([seed]) if c == cut), reverse=True)
    runs = [results.fixed[b, cut][seed] for b in batches]
    reached = [run.rounds_to(target, SERVED) for run in runs]
    rounds = [min(r, float(run.evaluations[-1, 0])) for r, run in zip(reached, runs, strict=True)]
    x = np.log([1 / b for b in batches])
    k = int(np.searchsorted(x, math.log(noise)))
    beside = reached[max(k - 1, 0) : k + 1]
    outside = not x[0] - 1e-9 <= math.log(noise) <= x[-1] + 1e-9
    found = math.exp(np.interp(math.log(noise), x, np.log(rounds)))
    return found, outside or not all(map(math.isfinite, beside))


if __name__ == "__main__":
    main()
