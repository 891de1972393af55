"""How do the costs of noise and drift depend on the number of devices N and the interval I?

    python -m benchmarks.devices_and_intervals train --study digits --processes 16   # minutes on a CPU
    python -m benchmarks.devices_and_intervals train --study resnet --processes 6    # minutes on an H200
    python -m benchmarks.devices_and_intervals report                       # the tables, from stored results

Two studies train fixed plans, with one batch size and one cut for all devices, on IID data: the small CNN on
digits, and ResNet-18 on CIFAR-100. A training ends at the study's goal on the test set.

For each N and I, the report fits R = R∞ (1 + s_J/b), the rounds with batch size b, for the cuts J. At cut 1
there are hardly any private layers, so the noise is about s_1. At the deepest cut d, s_d = noise (1 +
drift_d), so the drift is about s_d/s_1 − 1. Beside them the report shows the forecasts of `Conditions` from
the values at N = 20 and I = 15, and the powers of N and I that fit best.
"""

import argparse
import gzip
import itertools
import json
import math
import multiprocessing as mp
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from benchmarks.hindsight.laws import Law, fitted_law
from benchmarks.hindsight.runs import crossing
from hasfl.constants import Conditions

LEARNING_RATE = 0.05
KNOWN = Conditions(LEARNING_RATE, 20, 15)  # conditions from which the law forecasts
MEASURABLE = 0.02  # samples; a smaller noise cannot be distinguished from 0. Chosen by hand

Outcome = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The trainings of a study, and the goals by which they are judged."""

    name: str
    network: str
    data: str
    conditions: tuple[tuple[int, int], ...]  # pairs (N, I)
    cuts: tuple[int, ...]
    batches: tuple[int, ...]
    seeds: tuple[int, ...]
    measure: Literal["loss", "accuracy"]  # measure on the test set
    goal: float  # value of the measure at which a training ends
    rounds: int  # most rounds of a training
    targets: tuple[float, ...]  # values of the measure for which the report has tables
    served: tuple[str, ...]  # the models that are judged: the last one, the running mean
    evaluate_every: int
    device: str = "cpu"

    @property
    def results(self) -> Path:
        """The file with the evaluations of all trainings."""
        return Path(__file__).parent / f"devices_and_intervals_{self.name}.json.gz"

    def progress(self, value: float) -> float:
        """The measure, transformed so that it rises and is about linear between two evaluations."""
        return -math.log(value) if self.measure == "loss" else value


STUDIES = {
    "digits": Study(
        name="digits",
        network="small-cnn",
        data="digits",
        conditions=tuple(itertools.product((5, 20, 80), (5, 15, 50))),
        cuts=(1, 3, 5),
        batches=(16, 4, 1),
        seeds=(0, 1, 2),
        measure="loss",
        goal=0.10,
        rounds=1500,
        targets=(0.3, 0.2, 0.12),
        served=("last", "mean"),
        evaluate_every=5,
    ),
    # The stored trainings with N = 20 and I = 15 are those of the hindsight grid of the same setting.
    "resnet": Study(
        name="resnet",
        network="resnet18",
        data="cifar100",
        conditions=((20, 15), (50, 15), (20, 50)),
        cuts=(1, 4),
        batches=(16, 4),
        seeds=(0,),
        measure="accuracy",
        goal=0.36,
        rounds=2400,
        targets=(0.30, 0.33, 0.35),
        served=("mean",),
        evaluate_every=30,
        device="cuda",
    ),
}


# ── training ─────────────────────────────────────────────────────────────────────────────────────────────


class Task(NamedTuple):
    """One training."""

    study: str
    devices: int  # N
    interval: int  # I
    cut: int
    b: int
    seed: int


def tasks(study: Study) -> list[Task]:
    """Every fixed plan, with every seed."""
    return [
        Task(study.name, devices, interval, cut, b, seed)
        for seed, (devices, interval), cut, b in itertools.product(
            study.seeds, study.conditions, study.cuts, study.batches
        )
    ]


def train(task: Task) -> Outcome:
    """Train until all models that are judged reach the goal; note every evaluation."""
    import torch

    from hasfl import FleetRanges, Machine, Seeds, draw_fleet, load_dataset, network, simulate
    from hasfl.learning.served_model import evaluate

    torch.set_num_threads(1)
    torch.manual_seed(task.seed)
    study = STUDIES[task.study]
    training = simulate(
        network(study.network),
        load_dataset(study.data),
        draw_fleet(FleetRanges(devices=task.devices), Seeds(task.seed)),
        rounds=study.rounds,
        strategy=f"b={task.b}+cut={task.cut}",
        learning_rate=LEARNING_RATE,
        interval=task.interval,
        evaluate_every=study.evaluate_every,
        seed=task.seed,
        augment=study.device == "cuda",
        machine=Machine(device=study.device),
    )
    job, state, evaluations = training.engine.job, training.engine.state, []
    for record in training:
        if record.accuracy is None or record.test_loss is None:
            continue
        last = evaluate(job.model, state.mean(), job.test, job.loss, job.metric)
        scores = (record.accuracy, record.test_loss, last.accuracy, last.loss)
        evaluations.append([record.round, *(round(score, 5) for score in scores)])
        if all(
            _progress(study, evaluations[-1], kind) >= study.progress(study.goal) for kind in study.served
        ):
            break
    return task._asdict() | {"evaluations": evaluations}


# ── report ───────────────────────────────────────────────────────────────────────────────────────────────


def _progress(study: Study, row: Sequence[float], served: str) -> float:
    """The progress in a row with the round, accuracy and loss of the running mean, then of the last model."""
    column = {"mean": 1, "last": 3}[served] + (study.measure == "loss")
    return study.progress(row[column])


def rounds_to(study: Study, target: float, outcome: Outcome, served: str) -> float:
    """The rounds of a training until the target.

    From the first aggregation on, the running mean changes only with aggregations. So an evaluation of it
    counts for the round of the last aggregation; otherwise long intervals would seem slower than they are.
    """
    rows, interval = outcome["evaluations"], outcome["interval"]
    t = np.array([row[0] for row in rows], dtype=float)
    if served == "mean":
        t = np.where(t < interval, t, t // interval * interval)
    progress = np.array([_progress(study, row, served) for row in rows])
    return crossing(t, progress, study.progress(target), np.zeros(len(rows), dtype=bool))


def laws(
    study: Study, outcomes: Sequence[Outcome], target: float, served: str
) -> Iterator[tuple[Conditions, Law]]:
    """The laws for each N and I, fitted to geometric means over seeds."""
    for devices, interval in study.conditions:
        here = [each for each in outcomes if (each["devices"], each["interval"]) == (devices, interval)]
        logs: dict[tuple[int, int], list[float]] = {}
        for each in here:
            logs.setdefault((each["b"], each["cut"]), []).append(
                math.log(rounds_to(study, target, each, served))
            )
        law = fitted_law({cell: math.exp(np.mean(values)) for cell, values in logs.items()})
        if law is not None:
            yield Conditions(LEARNING_RATE, devices, interval), law


def powers(points: Sequence[tuple[Conditions, float]]) -> tuple[float, float]:
    """The powers of N and of I that fit best, by least squares in logarithms."""
    table = np.array([[1.0, math.log(each.devices), math.log(each.interval)] for each, _ in points])
    (_, of_devices, of_interval), *_ = np.linalg.lstsq(
        table, np.log([value for _, value in points]), rcond=None
    )
    return float(of_devices), float(of_interval)


def noise_and_drift(law: Law, cut: int) -> tuple[float, float]:
    """The noise s_1 and the drift s_d/s_1 − 1; the drift is NaN if the noise is less than `MEASURABLE`."""
    noise = law.noise[1]
    return noise, law.noise[cut] / noise - 1 if noise > MEASURABLE else math.nan


def show(study: Study, found: Sequence[tuple[Conditions, Law]]) -> None:
    """Print the table of one target, with the law's forecast from N = 20 and I = 15 beside each value."""
    deepest = study.cuts[-1]
    known_noise, known_drift = next(noise_and_drift(law, deepest) for at, law in found if at == KNOWN)
    known_cost = known_noise * known_drift
    print(
        "| N | I | R∞ | noise s_1 | law | drift s_d/s_1 − 1 | law | s_d − s_1 | law | largest misfit of fit |"
    )
    print("|" + "--:|" * 10)
    costs, misfits = [], []
    for at, law in found:
        noise, drift = noise_and_drift(law, deepest)
        cost, by_law = (
            law.noise[deepest] - law.noise[1],
            at.noise_over(KNOWN) * at.drift_over(KNOWN) * known_cost,
        )
        costs.append((at, cost))
        if at != KNOWN:
            misfits.append(abs(math.log(cost / by_law)))
        print(
            f"| {at.devices} | {at.interval} | {law.endless:.0f} | {noise:.2f} "
            f"| {at.noise_over(KNOWN) * known_noise:.2f} | {'–' if math.isnan(drift) else f'{drift:.1f}'} "
            f"| {at.drift_over(KNOWN) * known_drift:.1f} | {cost:.2f} | {by_law:.2f} "
            f"| {max(law.misfit.values()):.0%} |"
        )
    of_devices, of_interval = powers(costs)
    print(
        f"\ns_d − s_1, the cost of drift, goes as N^{of_devices:.2f} I^{of_interval:.2f}. The law is off by "
        f"{math.expm1(np.median(misfits)):.0%} in the median and {math.expm1(max(misfits)):.0%} at most."
    )


def report() -> None:
    """Print the tables of all studies."""
    for study in STUDIES.values():
        with gzip.open(study.results, "rt") as file:
            outcomes = json.load(file)
        print(f"\n## {study.network} on {study.data}, d = {study.cuts[-1]}")
        for served, target in itertools.product(study.served, study.targets):
            model = "the running mean" if served == "mean" else "the last model"
            print(f"\n### Test {study.measure} {target:g}, {model}\n")
            show(study, list(laws(study, outcomes, target, served)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["train", "report"])
    parser.add_argument("--study", choices=list(STUDIES), default="digits", help="what `train` trains")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if options.what == "report":
        report()
        return
    study = STUDIES[options.study]
    with mp.get_context("spawn").Pool(options.processes) as pool:
        outcomes = list(pool.imap_unordered(train, tasks(study)))
    with gzip.open(study.results, "wt") as file:
        json.dump(outcomes, file)


if __name__ == "__main__":
    main()
