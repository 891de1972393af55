"""How the cost of noise and drift goes with the number of devices N and the interval I.

    python -m benchmarks.devices_and_intervals train --processes 16    # every fixed plan of a grid; minutes
    python -m benchmarks.devices_and_intervals report                  # the tables, from the stored results

The small CNN learns digits, IID, with one batch size and one cut for all devices. A training ends when both
the last model and the running mean have the test loss `GOAL`. The report fits R = R∞ (1 + s_J/b) for each N
and I. Then it fits a power of N and of I to s_1, which has hardly any private layers in it, and to s_5 − s_1,
the part that private layers add.
"""

import argparse
import gzip
import itertools
import json
import math
import multiprocessing as mp
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.hindsight.laws import Law, fitted_law

RESULTS = Path(__file__).parent / "devices_and_intervals_digits.json.gz"
DEVICES, INTERVALS, SEEDS = (5, 20, 80), (5, 15, 50), (0, 1, 2)
BATCHES, CUTS = (16, 4, 1), (1, 3, 5)
LEARNING_RATE, EVALUATE_EVERY = 0.05, 5
GOAL = 0.10  # test loss
TARGETS = (0.3, 0.2, 0.12)  # test losses of the report
MEASURABLE = 0.02  # samples; a smaller cost of noise cannot be told from nothing
MOST_ROUNDS = {5: 1500, 20: 900, 80: 900}  # by N

Outcome = dict[str, Any]


class Task(NamedTuple):
    """One training."""

    devices: int  # N
    interval: int  # I
    cut: int
    b: int
    seed: int


def tasks() -> list[Task]:
    """Every fixed plan, with every seed."""
    return [
        Task(devices, interval, cut, b, seed)
        for seed, interval, devices, cut, b in itertools.product(SEEDS, INTERVALS, DEVICES, CUTS, BATCHES)
    ]


def train(task: Task) -> Outcome:
    """Train until both models reach the goal; note every evaluation."""
    import torch

    from hasfl import FleetRanges, Seeds, draw_fleet, load_dataset, network, simulate
    from hasfl.serving.evaluation import evaluate

    torch.set_num_threads(1)
    torch.manual_seed(task.seed)
    training = simulate(
        network("small-cnn"),
        load_dataset("digits"),
        draw_fleet(FleetRanges(devices=task.devices), Seeds(task.seed)),
        rounds=MOST_ROUNDS[task.devices],
        strategy=f"b={task.b}+cut={task.cut}",
        learning_rate=LEARNING_RATE,
        interval=task.interval,
        evaluate_every=EVALUATE_EVERY,
        seed=task.seed,
    )
    job, state, evaluations = training.engine.job, training.engine.state, []
    for record in training:
        if record.accuracy is None or record.test_loss is None:
            continue
        last = evaluate(job.model, state.mean(), job.test, job.loss, job.metric)
        scores = (record.accuracy, record.test_loss, last.accuracy, last.loss)
        evaluations.append([record.round, *(round(score, 5) for score in scores)])
        if record.test_loss <= GOAL and last.loss <= GOAL:
            break
    return task._asdict() | {"evaluations": evaluations}


def rounds_to(target: float, outcome: Outcome, *, served: str) -> float:
    """Rounds until the test loss is `target`, between two evaluations by the logarithm of the loss."""
    column = {"mean": 2, "last": 4}[served]
    before: tuple[float, float] | None = None
    for row in outcome["evaluations"]:
        t, loss = row[0], row[column]
        if loss <= target:
            if before is None:
                return float(t)
            t0, loss0 = before
            return float(t0 + math.log(loss0 / target) / math.log(loss0 / loss) * (t - t0))
        before = t, loss
    return math.inf


def laws(outcomes: Sequence[Outcome], target: float, served: str) -> Iterator[tuple[int, int, Law]]:
    """The law of each N and I, fitted to geometric means over seeds."""
    for devices, interval in itertools.product(DEVICES, INTERVALS):
        here = [each for each in outcomes if (each["devices"], each["interval"]) == (devices, interval)]
        logs: dict[tuple[int, int], list[float]] = {}
        for each in here:
            logs.setdefault((each["b"], each["cut"]), []).append(
                math.log(rounds_to(target, each, served=served))
            )
        law = fitted_law({cell: math.exp(np.mean(values)) for cell, values in logs.items()})
        if law is not None:
            yield devices, interval, law


def powers(points: Sequence[tuple[int, int, float]]) -> tuple[float, float]:
    """The powers of N and of I that fit best, by least squares in logarithms."""
    used = [point for point in points if point[2] > MEASURABLE]
    table = np.array([[1.0, math.log(devices), math.log(interval)] for devices, interval, _ in used])
    (_, of_devices, of_interval), *_ = np.linalg.lstsq(
        table, np.log([value for *_, value in used]), rcond=None
    )
    return float(of_devices), float(of_interval)


def report(outcomes: Sequence[Outcome]) -> None:
    """Print the tables."""
    for served, target in itertools.product(("last", "mean"), TARGETS):
        found = list(laws(outcomes, target, served))
        print(f"\n### Test loss {target:g}, the {served} model\n")
        print("| N | I | R∞ | s_1 | s_3 | s_5 | s_1 N | largest misfit |\n|--:|--:|--:|--:|--:|--:|--:|--:|")
        for devices, interval, law in found:
            s = [law.noise[cut] for cut in CUTS]
            print(
                f"| {devices} | {interval} | {law.endless:.0f} | {s[0]:.2f} | {s[1]:.2f} | {s[2]:.2f} "
                f"| {s[0] * devices:.1f} | {max(law.misfit.values()):.0%} |"
            )
        costs = {
            "s_1": [(N, interval, law.noise[1]) for N, interval, law in found],
            "s_5 − s_1": [(N, interval, law.noise[5] - law.noise[1]) for N, interval, law in found],
        }
        for name, points in costs.items():
            of_devices, of_interval = powers(points)
            print(f"\n{name} goes as N^{of_devices:.2f} I^{of_interval:.2f}.")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["train", "report"])
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if options.what == "train":
        with mp.get_context("spawn").Pool(options.processes) as pool:
            outcomes = list(pool.imap_unordered(train, tasks()))
        with gzip.open(RESULTS, "wt") as file:
            json.dump(outcomes, file)
    with gzip.open(RESULTS, "rt") as file:
        report(json.load(file))


if __name__ == "__main__":
    main()
