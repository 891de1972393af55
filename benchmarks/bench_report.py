"""How fast does the report of a long comparison open, how large is it, and how long does it take to make?

    python -m benchmarks.bench_report [--rounds 5000] [--seeds 1] [--devices 20] [--keep long.html]

Five strategies train for a few rounds, so that the folders of their runs are real. Then their records are
prolonged: later rounds repeat the early ones, with curves that rise, plans that change in every round where a
strategy draws them at random, and every 50 rounds otherwise, and estimates every 100 rounds. A new Chromium
without a window opens the page ten times. The page counts as open when all charts are on the screen. The
baseline is the report of one of these runs before it was prolonged. At most 3 s and 15 MB are allowed for
5,000 rounds.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from hasfl.cli.training_view import TrainingView
from hasfl.plan import Plan
from hasfl.record import RoundRecord
from hasfl.runs.reports import report_of
from hasfl.runs.request import RunRequest
from hasfl.runs.run import carry_out
from hasfl.runs.store import Journal, RunFolder
from tests.report.browser import chromium, installed

STRATEGIES = ("hasfl", "hasfl-bcd", "rbs+rms", "sfl", "fl")
TRAINED = 4  # number of rounds that are really trained
EVALUATE_EVERY, READ_EVERY, PLAN_EVERY = 5, 100, 50  # rounds between evaluations, estimates and new plans
OPENINGS = 10  # number of times that the page is opened
MOST_SECONDS, MOST_MB = 3.0, 15.0  # limits for opening the page, and for its size
SCENARIO = """
[data]
name = "digits"

[training]
learning_rate = 0.05
interval = 2
evaluate_every = 2

[fleet]
devices = {devices}

[stop]
rounds = {rounds}
"""


def trained(folder: Path, seeds: int, devices: int) -> list[Path]:
    """Train short runs, and return their folders."""
    scenario = folder / "long.toml"
    scenario.write_text(SCENARIO.format(devices=devices, rounds=TRAINED))
    requests = [
        RunRequest.of(scenario, folder / "runs", strategy_name=strategy, seed=seed)
        for strategy in STRATEGIES
        for seed in range(seeds)
    ]
    for request in requests:
        with TrainingView() as view:
            carry_out(request, view, resume=False)
    return [request.path for request in requests]


def prolonged(records: list[RoundRecord], rounds: int, *, moving: bool, seed: int) -> Iterator[RoundRecord]:
    """The records of a long run, made of those of a short one."""
    draws = np.random.default_rng(seed)
    plan, speed, clock = records[0].plan, draws.uniform(300, 900), 0.0
    constants = {"noise": 1.0, "drift_of": [0.1] * 5, "standard_error": 0.2}
    for t in range(1, rounds + 1):
        own = records[(t - 1) % len(records)]
        clock += own.seconds
        new = t > 1 and (moving or t % PLAN_EVERY == 1)
        if new:
            changed = np.maximum(1, plan.batch_sizes + draws.integers(-2, 3, len(plan.cuts)))
            plan = Plan(changed, plan.cuts)
        accuracy = 0.95 - 0.85 * float(np.exp(-t / speed)) + draws.normal(0, 0.004)
        judged = accuracy if t % EVALUATE_EVERY == 0 or t == rounds else None
        yield replace(
            own,
            round=t,
            plan=plan,
            clock=clock,
            samples=own.samples * t,
            loss=float(2.3 * np.exp(-t / speed) + draws.uniform(0.05, 0.15)),
            accuracy=judged,
            test_loss=None if judged is None else 1 - judged,
            held_out_accuracy=judged,
            kept=judged is not None,
            notes=(f"new plan: it takes {t % 30} % less time than the old plan",) if new else (),
            constants=constants if t % READ_EVERY == 0 else None,
        )


def prolong(run: Path, rounds: int, seed: int) -> None:
    """Replace the records in the folder of a short run by those of a long one."""
    with RunFolder.open(run) as folder:
        records = folder.records()
    (run / "rounds.jsonl").unlink()
    journal = Journal(run / "rounds.jsonl")
    for record in prolonged(records, rounds, moving="rbs" in run.name, seed=seed):
        journal.append(record.as_json())
    journal.close()
    with RunFolder.open(run) as folder:
        folder.save_result(folder.result() | {"rounds": rounds})


def written(file: Path, runs: list[Path]) -> tuple[Path, float]:
    """Write the page of runs; return its file, and the seconds that this takes."""
    began = time.perf_counter()
    file.write_text(report_of(runs).html())
    return file, time.perf_counter() - began


def opening(file: Path, folder: Path) -> list[float]:
    """Seconds until all charts are on the screen, for each opening of the page."""
    with chromium(folder) as tab:
        found = [tab.show(file) for _ in range(OPENINGS)]
        assert not tab.faults, tab.faults
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--keep", type=Path, help="a file for the page of the long runs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if installed() is None:
        print("No Chromium is installed, so no page is opened.")
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        runs = trained(folder, options.seeds, options.devices)
        pages = {f"one run of {TRAINED} rounds": written(folder / "short.html", runs[:1])}
        for k, run in enumerate(runs):
            prolong(run, options.rounds, k)
        title = f"{len(runs)} runs of {options.rounds:,} rounds"
        pages[title] = written(folder / "long.html", runs)
        print("| page | opens at first | later, median | worst | size | made in |")
        print("|---|--:|--:|--:|--:|--:|")
        for k, (what, (file, made)) in enumerate(pages.items()):
            first, *later = opening(file, folder / f"browser{k}")
            worst, size = max(first, *later), file.stat().st_size / 1e6
            seconds = " | ".join(f"{each:.2f} s" for each in (first, statistics.median(later), worst))
            print(f"| {what} | {seconds} | {size:.1f} MB | {made:.0f} s |", flush=True)
        kept = "kept" if worst <= MOST_SECONDS and size <= MOST_MB else "NOT KEPT"
        print(f"\nAt most {MOST_SECONDS:g} s and {MOST_MB:g} MB are allowed: {kept}.")
        if options.keep:
            shutil.copy(folder / "long.html", options.keep)


if __name__ == "__main__":
    main()
