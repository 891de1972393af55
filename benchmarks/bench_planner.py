"""How fast is the exact planner, which gap does it prove, and how much worse is the paper's solver?

    python -m benchmarks.bench_planner              # everything, some ten minutes
    python -m benchmarks.bench_planner --quick      # at most 1,000 devices, and fewer random problems
    python -m benchmarks.bench_planner --hard       # only the hard fleets of 1,000 and 20,000 devices
    python -m benchmarks.bench_planner --constants  # each constant of the search halved and doubled

The first two commands write benchmarks/planner_<hardware>_<date>.md with a plot beside it, the others print.
The problems are described in benchmarks/planner_problems.py.
"""

import argparse
import datetime
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.planner_problems import TABLE_I_DEVICES, hard_problems, wide_problem
from hasfl import Plan, PlanReport, Problem
from hasfl.errors import Infeasible
from hasfl.planning.exact import cells, fixed_cuts, relaxation, search
from hasfl.planning.exact.planner import best_batches, best_plan
from hasfl.planning.verify import faults
from tests.planning.random_problems import measured as measured_problem
from tests.planning.random_problems import random_problem

HERE = Path(__file__).parent
# Time limits in seconds, and numbers of repeats, chosen by hand.
BCD_SECONDS = 120  # time limit of the paper's solver (bcd)
EXACT_SECONDS = 300  # time limit of the exact planner on a large fleet
RANDOM_SECONDS = 120  # time limit of the exact planner on a random problem
RANDOM_STARTS = 200  # most random plans that are drawn until one keeps the constraints
TIMED_RUNS = 7  # number of timed runs, whose median counts
GAP, LARGE_GAP, LARGE_FLEET = 1e-3, 1e-2, 100_000  # gaps to prove; the larger one from LARGE_FLEET devices on
REPEATS = 20  # number of fleets of 20 devices, each of which takes milliseconds


# ── one measurement in its own process, which keeps peak memories apart ──────────────────────────────────


Measurement = dict[str, Any]


def measure(what: str, devices: int, seed: int, grown: bool, gap: float) -> Measurement:
    problem = wide_problem(devices, seed, grown=grown)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    if what == "exact":
        report = best_plan(problem, gap=gap, time_limit=EXACT_SECONDS)
    else:
        from hasfl.planning.paper.algorithm_2 import alternate

        report = alternate(problem, time_limit=BCD_SECONDS)
    seconds = time.perf_counter() - began
    assert not faults(report, problem)
    return {
        "seconds": seconds,
        "objective": report.objective,
        "gap": report.gap if report.gap is not None else float("nan"),
        "status": report.status,
        "boxes": report.iterations,
        "mebibytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
    }


def measured(what: str, devices: int, seed: int = 0, *, grown: bool = False, gap: float = GAP) -> Measurement:
    case = json.dumps([what, devices, seed, grown, gap])
    command = [sys.executable, "-m", "benchmarks.bench_planner", "--case", case]
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=BCD_SECONDS * 4)
    except subprocess.TimeoutExpired:
        return {"status": "timed out"}
    result: Measurement = json.loads(process.stdout)
    return result


# ── the parts of the report ──────────────────────────────────────────────────────────────────────────────


def speed_table(sizes: list[int]) -> list[str]:
    lines = [
        "| N | setting | asked gap | seconds | proved gap | boxes | memory | bcd, seconds | Θ(bcd)/Θ |",
        "|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for devices in sizes:
        gap = LARGE_GAP if devices >= LARGE_FLEET else GAP
        for grown in (False, True):
            repeats = REPEATS if devices == TABLE_I_DEVICES else 1
            runs = [measured("exact", devices, k, grown=grown, gap=gap) for k in range(repeats)]
            seconds = statistics.median(run["seconds"] for run in runs)
            of_many = f" (median of {repeats})" if repeats > 1 else ""
            bcd = measured("bcd", devices, grown=grown) if devices <= 1000 else {}
            settled = bcd.get("status") == "settled"
            ratio = f"{bcd['objective'] / runs[0]['objective']:.2f}" if settled else "-"
            stopped = f"over {BCD_SECONDS}" if bcd else "not tried"
            bcd_seconds = f"{bcd['seconds']:.2f}" if settled else stopped
            lines.append(
                f"| {devices:,} | {'grown' if grown else 'Table I'} | {gap:g} | {seconds:.3f}"
                f"{of_many} | {max(run['gap'] for run in runs):.1e} | "
                f"{runs[0]['boxes']:,.0f} | {runs[0]['mebibytes']:.0f} MiB | {bcd_seconds} | {ratio} |"
            )
            print(lines[-1], flush=True)
    return lines


def hard_table() -> list[str]:
    lines = [
        "| N | setting | asked gap | seconds | proved gap | boxes | status |",
        "|--:|---|--:|--:|--:|--:|---|",
    ]
    for devices, gap in ((1000, GAP), (20_000, LARGE_GAP)):
        for setting, problem in hard_problems(devices).items():
            report = best_plan(problem, gap=gap)
            assert not faults(report, problem)
            lines.append(
                f"| {devices:,} | {setting} | {gap:g} | {report.seconds:.1f} | {report.gap:.1e} | "
                f"{report.iterations:,} | {report.status} |"
            )
            print(lines[-1], flush=True)
    return lines


LEAST_UPWARDS = 1.05  # least value of UPWARDS, a factor that must stay above 1
SEARCH_SECONDS = 20  # time limit of a search in `_seconds`
CONSTANTS = (  # constants of the search, as (module, name)
    (search, "STEPS"),
    (search, "DEVICE_SHARE"),
    (search, "SLOPE_WEIGHT"),
    (search, "GRID_SHARE"),
    (search, "ELEMENTS"),
    (cells, "CELLS"),
    (relaxation, "UPWARDS"),
    (fixed_cuts, "CELLS"),
)


def constants_table() -> list[str]:
    """A table of seconds with each constant of the search halved and doubled, over those without a change."""
    problems = [*hard_problems(100).values(), *hard_problems(500).values()]
    for seed in range(3000, 3060):
        problem = random_problem(seed, devices=(1, 50), layers=(2, 8), max_batch=32)
        problems += [problem, measured_problem(problem, seed)]
    base = statistics.median(_seconds(problems) for _ in range(3))
    lines = [
        f"Without a change: {base:.1f} s.",
        "",
        "| constant | value | halved | doubled |",
        "|---|--:|--:|--:|",
    ]
    for module, name in CONSTANTS:
        value, ratios = getattr(module, name), []
        for factor in (0.5, 2):
            changed = type(value)(max(value * factor, LEAST_UPWARDS if name == "UPWARDS" else 0))
            setattr(module, name, changed)
            ratios.append(_seconds(problems) / base)
        setattr(module, name, value)
        place = f"{module.__name__.removeprefix('hasfl.planning.exact.')}.{name}"
        lines.append(f"| `{place}` | {value:g} | {ratios[0]:.2f} | {ratios[1]:.2f} |")
        print(lines[-1], flush=True)
    return lines


def _seconds(problems: list[Problem]) -> float:
    """Seconds to find a plan for every problem, and then the best batch sizes for its cuts."""
    began = time.perf_counter()
    for problem in problems:
        try:
            plan = best_plan(problem, time_limit=SEARCH_SECONDS).plan
        except Infeasible:
            continue
        best_batches(problem, plan.cuts, time_limit=SEARCH_SECONDS)
    return time.perf_counter() - began


def batches_table(sizes: list[int]) -> list[str]:
    lines = [
        "| N | setting | cold, ms | warm (rates changed by 2 %), ms | proved gap |",
        "|--:|---|--:|--:|--:|",
    ]
    for devices in sizes:
        for grown in (False, True):
            problem = wide_problem(devices, 0, grown=grown)
            cuts = np.where(np.arange(devices) % 7, 4, 2)
            cold, report = timed(partial(best_batches, problem, cuts))
            rng = np.random.default_rng(0)
            rates = problem.fleet.up_rate * rng.uniform(0.98, 1.02, devices)
            changed = replace(problem, fleet=replace(problem.fleet, up_rate=rates))
            warm, _ = timed(partial(best_batches, changed, cuts, start=report.plan))
            setting = "grown" if grown else "Table I"
            lines.append(
                f"| {devices:,} | {setting} | {1e3 * cold:.1f} | {1e3 * warm:.1f} | {report.gap:.1e} |"
            )
            print(lines[-1], flush=True)
    return lines


def timed(work: Callable[[], PlanReport]) -> tuple[float, PlanReport]:
    """The median seconds of several runs of `work`, and the last result."""
    seconds = []
    for _ in range(TIMED_RUNS):
        began = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds), result


def ratios_table(problems: int) -> list[str]:
    """A table of Θ(bcd)/Θ(exact) over random problems, with bcd started from several plans."""
    from hasfl.planning.paper.algorithm_2 import alternate

    first, better, seed, solved = [], [], 100_000, 0
    while solved < problems:
        seed += 1
        problem = random_problem(seed, devices=(1, 50), layers=(2, 8), max_batch=32)
        try:
            exact = best_plan(problem, time_limit=RANDOM_SECONDS)
        except Infeasible:
            continue
        solved += 1
        rng = np.random.default_rng(seed)
        starts = [None, random_start(problem, rng), exact.plan]
        objectives = [alternate(problem, start=start).objective for start in starts]
        assert min(objectives) >= (exact.lower_bound or 0.0) * (1 - 1e-12), f"problem {seed}: bcd is better"
        assert exact.status == "optimal", f"problem {seed}: {exact.status}"
        first.append(objectives[0] / exact.objective)
        better.append(min(objectives[:2]) / exact.objective)
    lines = ["| start | 10 % | median | 90 % | worst |", "|---|--:|--:|--:|--:|"]
    for name, ratios in (("b = 16 for all", first), ("the better of this and a random start", better)):
        tenth, half, ninth, worst = np.percentile(ratios, [10, 50, 90, 100])
        lines.append(f"| {name} | {tenth:.3f} | {half:.3f} | {ninth:.2f} | {worst:.1f} |")
    print("\n".join(lines), flush=True)
    return lines


def random_start(problem: Problem, rng: np.random.Generator) -> Plan | None:
    """The first of several random plans that keeps the constraints; None if none does."""
    from hasfl.planning.exhaustive import objectives

    devices, layers = len(problem.fleet), len(problem.profile)
    batches = rng.integers(1, problem.max_batch + 1, (RANDOM_STARTS, devices))
    cuts = rng.integers(1, layers + 1, (RANDOM_STARTS, 1))
    values = objectives(problem, batches, np.broadcast_to(cuts, batches.shape))
    k = int(np.isfinite(values).argmax())
    return Plan(batches[k], np.broadcast_to(cuts[k], devices)) if np.isfinite(values[k]) else None


def growth(sizes: list[int], picture: Path) -> list[str]:
    """Draw seconds against N at a gap of 1 %, with N log N for comparison; return a table of the numbers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.2))
    lines = ["| N | " + " | ".join(f"{n:,}" for n in sizes) + " |", "|---" + "|--:" * len(sizes) + "|"]
    for grown in (False, True):
        seconds = [measured("exact", n, grown=grown, gap=LARGE_GAP)["seconds"] for n in sizes]
        axes.loglog(sizes, seconds, "o-", label="server grown with N" if grown else "server of Table I")
        setting = "grown" if grown else "Table I"
        lines.append(f"| {setting}, s | " + " | ".join(f"{s:.2f}" for s in seconds) + " |")
        print(lines[-1], flush=True)
        if grown:
            reference = np.array([n * np.log(n) for n in sizes])
            axes.loglog(sizes, reference / reference[0] * seconds[0], "--", color="grey", label="N log N")
    axes.set_xlabel("devices N")
    axes.set_ylabel("seconds to a plan within 1 %")
    axes.grid(True, which="both", alpha=0.2)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(picture, dpi=120)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--hard", action="store_true")
    parser.add_argument("--constants", action="store_true")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(*json.loads(options.case))))
        return
    if options.hard or options.constants:
        print("\n".join(hard_table() if options.hard else constants_table()))
        return
    hardware = f"{os.cpu_count()}-core-{platform.machine()}"
    name = f"planner_{hardware}_{datetime.date.today().isoformat()}"
    problems = 50 if options.quick else 500
    sizes = [20, 100, 1000] if options.quick else [20, 100, 1000, 10_000, 100_000]
    grown_sizes = [200, 1000] if options.quick else [1000, 3162, 10_000, 31_623, 100_000]
    parts = [
        f"# The planner on {hardware}, {datetime.date.today().isoformat()}",
        "Made on a shared machine by `python -m benchmarks.bench_planner`; see its docstring.",
        "## Batch sizes and cuts together",
        *speed_table(sizes),
        "## Hard fleets",
        *hard_table(),
        "## Batch sizes alone, gap 0.1 %",
        *batches_table(sizes),
        f"## Growth at a gap of 1 %\n\n![seconds against N]({name}.png)\n",
        *growth(grown_sizes, HERE / f"{name}.png"),
        f"## How much worse the paper's solver is: Θ(bcd)/Θ(exact), {problems} random problems",
        *ratios_table(problems),
    ]
    text = "\n".join(f"\n{part}\n" if part.startswith("#") else part for part in parts)
    (HERE / f"{name}.md").write_text(text.strip() + "\n")


if __name__ == "__main__":
    main()
