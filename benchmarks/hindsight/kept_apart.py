"""Prints how good plans are in settings that no guess and no constant of `hasfl` was made with.

    python -m benchmarks.hindsight.kept_apart

A ratio is the virtual time to a test accuracy over that of the best fixed plan with the same seed. Where a
training ended without the accuracy, its own accuracy and its time are given. Both serve the running mean.
"""

import math
from collections.abc import Iterator

from benchmarks.hindsight.report.words import named, number, percent, table
from benchmarks.hindsight.runs import Results, Run, optimum, read_results
from benchmarks.hindsight.settings import FLEETS, RESULTS, SETTINGS

SERVED, STRATEGIES = "mean", ("hasfl", "proportional")
ACCURACY, SECONDS = 3, 1  # columns of an evaluation


def main() -> None:
    print("\n".join(table(["setting", "seed", "fleet", "to", "best fixed plan, s", *STRATEGIES], rows())))


def rows() -> Iterator[list[str]]:
    """One for each setting, fleet, accuracy and seed."""
    for name, setting in SETTINGS.items():
        if not setting.kept_apart:
            continue
        results = read_results(RESULTS, name)
        for fleet in FLEETS:
            for target in setting.targets:
                for seed in results.seeds:
                    yield row(results, fleet, target, seed)


def row(results: Results, fleet: str, target: float, seed: int) -> list[str]:
    """The best fixed plan of one seed, and each strategy against it."""
    best = optimum(results, target, SERVED, fleet, seeds=[seed])
    cells = [results.setting, str(seed), fleet, percent(target)]
    cells.append("none" if best is None else f"{number(best.seconds)} ({named(best.cell)})")
    for strategy in STRATEGIES:
        runs = results.runs(strategy=strategy, fleet=fleet, serve=SERVED, seed=seed)
        cells.append(in_words(runs[0], target, math.inf if best is None else best.seconds) if runs else "–")
    return cells


def in_words(run: Run, target: float, best: float) -> str:
    """The seconds to the target and their ratio to the best fixed plan, or what the training came to."""
    seconds = run.seconds_to(target, SERVED)
    if math.isinf(seconds):
        last = run.evaluations[-1]
        return f"never; {100 * last[ACCURACY]:.1f} % after {number(last[SECONDS])} s"
    return f"{seconds / best:.2f} ({number(seconds)} s)"


if __name__ == "__main__":
    main()
