"""How fast is the exact planner, how near to the optimum does it prove its plans, and what does the paper's
solver leave on the table?

    python -m benchmarks.bench_planner             # all of it, some ten minutes
    python -m benchmarks.bench_planner --quick     # fleets of at most 1,000 and fewer random problems
    python -m benchmarks.bench_planner --hard      # hard fleets of 1,000 and 20,000 devices alone
    python -m benchmarks.bench_planner --constants # what half and double of the search's own constants cost

Writes benchmarks/planner_<hardware>_<date>.md with a plot beside it. VGG-16's profile and measured constants
(examples/table1.toml), wide fleets: 0.1 to 2 TFLOPS, uplinks of 10 to 80 Mbps. The gradient noise σ² is
scaled by N/20, so that batch sizes matter at every N. In the *grown* setting the edge server and its links
grow with N too. The *hard* fleets are grown ones without drift: their plans mix cuts, and a thousand devices
stand at the edge of what pays.
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

from hasfl import BoundConstants, FleetRanges, MeasuredConstants, Plan, PlanReport, Problem, Seeds, draw_fleet
from hasfl.errors import Infeasible
from hasfl.planning.exact import batch_grid, boxes, cells, search, tariff
from hasfl.planning.exact.planner import best_batches, best_plan
from hasfl.planning.verify import faults
from hasfl.runner.questions import read_problem
from tests.planning.random_problems import measured as measured_problem
from tests.planning.random_problems import random_problem

HERE = Path(__file__).parent
SCENARIO = HERE.parent / "examples" / "table1.toml"
BCD_SECONDS = 120


def wide_problem(devices: int, seed: int, *, grown: bool) -> Problem:
    problem, factor = read_problem(str(SCENARIO)), devices / 20
    server = factor if grown else 1.0
    ranges = FleetRanges(
        devices=devices,
        flops=(1e11, 2e12),
        up_rate=(1e7, 8e7),
        fed_up_rate=(1e7, 8e7),
        server_flops=(20e12 * server,) * 2,
        server_fed_up_rate=(360e6 * server, 380e6 * server),
        server_fed_down_rate=(360e6 * server, 380e6 * server),
    )
    assert isinstance(problem.constants, BoundConstants)
    constants = replace(problem.constants, variance_of=problem.constants.variance_of * factor)
    return replace(problem, fleet=draw_fleet(ranges, Seeds(seed)), constants=constants, samples=None)


def hard_problems(devices: int) -> dict[str, Problem]:
    """Grown fleets whose plans mix cuts, under both laws."""
    grown = wide_problem(devices, 0, grown=True)
    assert isinstance(grown.constants, BoundConstants)
    calm = replace(grown.constants, moment_of=0 * grown.constants.moment_of)
    noisy = replace(calm, variance_of=3 * calm.variance_of)
    measured = MeasuredConstants(rounds=100.0, noise=20.0, drift_of=np.zeros(len(grown.profile)))
    return {
        "no drift": replace(grown, constants=calm),
        "3 σ²": replace(grown, constants=noisy),
        "3 σ², I = 50": replace(grown, constants=noisy, interval=50),
        "measured law": replace(grown, constants=measured, target=None),
    }


# ── one measurement, in a process of its own so that its peak memory is its own ──────────────────────────


Measurement = dict[str, Any]


def measure(what: str, devices: int, seed: int, grown: bool, gap: float) -> Measurement:
    problem = wide_problem(devices, seed, grown=grown)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    if what == "exact":
        report = best_plan(problem, gap=gap, time_limit=300)
    else:
        from hasfl.planning.paper.alternate import alternate

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


def measured(
    what: str, devices: int, seed: int = 0, *, grown: bool = False, gap: float = 1e-3
) -> Measurement:
    case = json.dumps([what, devices, seed, grown, gap])
    command = [sys.executable, "-m", "benchmarks.bench_planner", "--case", case]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=BCD_SECONDS * 4)
    except subprocess.TimeoutExpired:
        return {"status": "timed out"}
    result: Measurement = json.loads(done.stdout)
    return result


# ── the parts of the report ──────────────────────────────────────────────────────────────────────────────


def speed_table(sizes: list[int]) -> list[str]:
    lines = [
        "| N | setting | asked gap | seconds | proved gap | boxes | memory | bcd, seconds | Θ(bcd)/Θ |",
        "|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for devices in sizes:
        gap = 1e-2 if devices >= 100_000 else 1e-3
        for grown in (False, True):
            seeds = range(20 if devices == 20 else 1)
            runs = [measured("exact", devices, seed, grown=grown, gap=gap) for seed in seeds]
            seconds = statistics.median(run["seconds"] for run in runs)
            bcd = measured("bcd", devices, grown=grown) if devices <= 1000 else {}
            settled = bcd.get("status") == "settled"
            ratio = f"{bcd['objective'] / runs[0]['objective']:.2f}" if settled else "-"
            bcd_seconds = (
                f"{bcd['seconds']:.2f}" if settled else f"over {BCD_SECONDS}" if bcd else "not tried"
            )
            lines.append(
                f"| {devices:,} | {'grown' if grown else 'Table I'} | {gap:g} | {seconds:.3f}"
                f"{' (median of 20)' if devices == 20 else ''} | {max(run['gap'] for run in runs):.1e} | "
                f"{runs[0]['boxes']:,.0f} | {runs[0]['mebibytes']:.0f} MiB | {bcd_seconds} | {ratio} |"
            )
            print(lines[-1], flush=True)
    return lines


def hard_table() -> list[str]:
    lines = [
        "| N | setting | asked gap | seconds | proved gap | boxes | status |",
        "|--:|---|--:|--:|--:|--:|---|",
    ]
    for devices, gap in ((1000, 1e-3), (20_000, 1e-2)):
        for setting, problem in hard_problems(devices).items():
            report = best_plan(problem, gap=gap)
            assert not faults(report, problem)
            lines.append(
                f"| {devices:,} | {setting} | {gap:g} | {report.seconds:.1f} | {report.gap:.1e} | "
                f"{report.iterations:,} | {report.status} |"
            )
            print(lines[-1], flush=True)
    return lines


CONSTANTS = (
    (search, "STEPS"),
    (boxes, "DEVICE_SHARE"),
    (search, "SLOPE_WEIGHT"),
    (search, "GRID_SHARE"),
    (search, "ELEMENTS"),
    (cells, "CELLS"),
    (tariff, "UPWARDS"),
    (batch_grid, "CELLS"),
)


def constants_table() -> list[str]:
    """Seconds for the same problems with each constant halved and doubled, over those with the constants."""
    problems = [*hard_problems(100).values(), *hard_problems(500).values()]
    for seed in range(3000, 3060):
        problem = random_problem(seed, devices=(1, 50), layers=(2, 8), max_batch=32)
        problems += [problem, measured_problem(problem, seed)]
    base = statistics.median(_seconds(problems) for _ in range(3))
    lines = [
        f"As they are: {base:.1f} s.",
        "",
        "| constant | value | halved | doubled |",
        "|---|--:|--:|--:|",
    ]
    for module, name in CONSTANTS:
        value, ratios = getattr(module, name), []
        for factor in (0.5, 2):
            changed = type(value)(max(value * factor, 1.05 if name == "UPWARDS" else 0))
            setattr(module, name, changed)
            ratios.append(_seconds(problems) / base)
        setattr(module, name, value)
        place = f"{module.__name__.removeprefix('hasfl.planning.exact.')}.{name}"
        lines.append(f"| `{place}` | {value:g} | {ratios[0]:.2f} | {ratios[1]:.2f} |")
        print(lines[-1], flush=True)
    return lines


def _seconds(problems: list[Problem]) -> float:
    """Time a plan and the best batches at its cuts for every problem; a search stops after 20 s."""
    began = time.perf_counter()
    for problem in problems:
        try:
            plan = best_plan(problem, time_limit=20).plan
        except Infeasible:
            continue
        best_batches(problem, plan.cuts, time_limit=20)
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
    """The median of seven runs, and the last result."""
    seconds = []
    for _ in range(7):
        began = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds), result


def ratios_table(problems: int) -> list[str]:
    """Θ(bcd)/Θ(exact) over random problems, from several starts."""
    from hasfl.planning.paper.alternate import alternate

    first, better, seed, solved = [], [], 100_000, 0
    while solved < problems:
        seed += 1
        problem = random_problem(seed, devices=(1, 50), layers=(2, 8), max_batch=32)
        try:
            exact = best_plan(problem, time_limit=120)
        except Infeasible:
            continue
        solved += 1
        rng = np.random.default_rng(seed)
        starts = [None, random_start(problem, rng), exact.plan]
        found = [alternate(problem, start=start).objective for start in starts]
        assert min(found) >= (exact.lower_bound or 0.0) * (1 - 1e-12), f"problem {seed}: beaten by bcd"
        assert exact.status == "optimal", f"problem {seed}: {exact.status}"
        first.append(found[0] / exact.objective)
        better.append(min(found[:2]) / exact.objective)
    lines = ["| start | 10 % | median | 90 % | worst |", "|---|--:|--:|--:|--:|"]
    for name, ratios in (("b = 16 alike", first), ("the better of that and a random one", better)):
        tenth, half, ninth, worst = np.percentile(ratios, [10, 50, 90, 100])
        lines.append(f"| {name} | {tenth:.3f} | {half:.3f} | {ninth:.2f} | {worst:.1f} |")
    print("\n".join(lines), flush=True)
    return lines


def random_start(problem: Problem, rng: np.random.Generator) -> Plan | None:
    """A random plan that keeps the constraints, if one turns up."""
    from hasfl.planning.exhaustive import objectives

    devices, layers = len(problem.fleet), len(problem.profile)
    batches, cuts = (
        rng.integers(1, problem.max_batch + 1, (200, devices)),
        rng.integers(1, layers + 1, (200, 1)),
    )
    values = objectives(problem, batches, np.broadcast_to(cuts, batches.shape))
    k = int(np.isfinite(values).argmax())
    return Plan(batches[k], np.broadcast_to(cuts[k], devices)) if np.isfinite(values[k]) else None


def growth(sizes: list[int], picture: Path) -> list[str]:
    """Seconds against N at a gap of 1 %, beside N log N."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.2))
    lines = ["| N | " + " | ".join(f"{n:,}" for n in sizes) + " |", "|---" + "|--:" * len(sizes) + "|"]
    for grown in (False, True):
        seconds = [measured("exact", n, grown=grown, gap=1e-2)["seconds"] for n in sizes]
        axes.loglog(sizes, seconds, "o-", label="server grown with N" if grown else "server of Table I")
        lines.append(
            f"| {'grown' if grown else 'Table I'}, s | " + " | ".join(f"{s:.2f}" for s in seconds) + " |"
        )
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
    parser = argparse.ArgumentParser(description=__doc__)
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
        f"## What the paper's solver leaves on the table: Θ(bcd)/Θ(exact), {problems} random problems",
        *ratios_table(problems),
    ]
    text = "\n".join(f"\n{part}\n" if part.startswith("#") else part for part in parts)
    (HERE / f"{name}.md").write_text(text.strip() + "\n")


if __name__ == "__main__":
    main()
