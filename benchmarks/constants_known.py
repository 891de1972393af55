"""What are the constants worth? On a problem where they are known, against ε, and over ways of training.

    python -m benchmarks.constants_known            # docs/constants_known.png and constants_epsilon.png
    python -m benchmarks.constants_known --table    # constants and plans over 16 ways of training
    python -m benchmarks.constants_known --skew     # skew as it is read, and what it costs, over cuts

The known problem is least squares: y = x·w* + e with x Gaussian in d dimensions, at w*. There σ² = d E e², G²
is σ²/b, and a step on n samples takes back 1 + (d + 1)/n times as much of its own slope as of others'.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.hindsight import RESULTS, SETTINGS, Task, prepared
from benchmarks.hindsight_laws import laws_by_cut
from benchmarks.hindsight_numbers import mean_rounds, read_results
from hasfl import FleetRanges, Goal, Plan, Seeds, draw_fleet
from hasfl.data import load_dataset, partition
from hasfl.engines.job import Job
from hasfl.engines.reference import ReferenceEngine
from hasfl.networks import LayeredModel, network
from hasfl.plan import Order
from hasfl.planning.exact.planner import best_plan
from hasfl.readings.paper_estimates import estimate_bound_constants
from hasfl.readings.reading import take_reading
from hasfl.readings.sources import TrackedConstants
from hasfl.reporting.canvas import COLOURS, DARK, SMALL, label, new_figure
from hasfl.reporting.figures import save_figure
from hasfl.runner.questions import read_problem
from hasfl.runner.simulation import simulate
from hasfl.settings import Settings
from hasfl.state.optimizers import Sgd
from hasfl.state.training_data import TrainingData
from hasfl.theory.bound import Corollary1

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCS = Path(__file__).parent.parent / "docs"
TABLE_1 = Path(__file__).parent.parent / "examples" / "table1.toml"
DEVICES, SAMPLES, NOISE, LOOKS = 20, 400, 0.5, 40
DIMENSIONS, BATCHES = (8, 32, 128), (2, 4, 8, 16, 32)


def half_square(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs[:, 0] - labels).square() / 2


def least_squares(dimension: int) -> ReferenceEngine:
    """Devices at the solution of a problem whose every constant is known."""
    draw = torch.Generator().manual_seed(dimension)
    x = torch.randn(DEVICES * SAMPLES, dimension, generator=draw, dtype=torch.float64)
    layer = nn.Linear(dimension, 1, bias=False, dtype=torch.float64)
    noise = NOISE * torch.randn(len(x), generator=draw, dtype=torch.float64)
    y = (x @ layer.weight.detach().T)[:, 0] + noise
    model = LayeredModel({"linear": layer}, x[:1])
    data = TrainingData.of(x, y, np.split(np.arange(len(x)), DEVICES), Seeds(0))
    return ReferenceEngine(
        Job(model=model, data=data, test=(x[:1], y[:1]), optimizer=Sgd(1e-3), sample_loss=half_square)
    )


def order(round: int, batch_size: int) -> Order:
    devices = np.arange(DEVICES)
    plan = Plan.uniform(DEVICES, batch_size=batch_size, cut=1)
    return Order(round=round, devices=devices, plan=plan, drawn=np.zeros_like(devices))


def known_problem() -> Iterator[tuple[int, int, float, float]]:
    """Dimension, samples in a batch, and overshoot / carried − 1: measured, with its standard error."""
    for dimension in DIMENSIONS:
        engine = least_squares(dimension)
        for batch_size in BATCHES:
            readings = [take_reading(engine, order(t, batch_size), 15) for t in range(1, LOOKS + 1)]
            own, others = (
                np.array([getattr(r, name) for r in readings]) for name in ("overshoot", "carried")
            )
            excess = own.mean() / others.mean() - 1
            error = (own / others.mean()).std() / np.sqrt(LOOKS)
            yield dimension, DEVICES * max(batch_size // 2, 1), float(excess), float(error)


def draw_known(path: Path) -> None:
    """Estimated against true, for the paper's constants and for ours."""
    figure = new_figure(2.9)
    left, right = figure.subplots(1, 2)
    _draw_estimates(left)
    for dimension, samples, excess, error in known_problem():
        colour = COLOURS[DIMENSIONS.index(dimension)]
        right.errorbar((dimension + 1) / samples, excess, error, fmt="o", ms=4, capsize=2, color=colour)
    line = np.array([0.015, 10.0])
    right.plot(line, line, color=DARK, lw=0.6)
    right.set_xscale("log")
    right.set_yscale("log")
    right.set_ylim(5e-3, 12)
    for k, dimension in enumerate(DIMENSIONS):
        right.text(0.04, 0.92 - 0.07 * k, f"d = {dimension}", transform=right.transAxes, color=COLOURS[k])
    label(right, x="(d + 1) / n, by theory", y="overshoot / carried − 1, measured")
    right.set_title("what a batch does to itself, mean of 40 readings", fontsize=SMALL)
    save_figure(figure, path)


def _draw_estimates(axes: "Axes") -> None:
    """σ² and G² on the known problem, each with the spread of single estimates."""
    found: dict[str, list[tuple[float, float]]] = {"variance_of": [], "moment_of": []}
    for dimension in DIMENSIONS:
        engine, true = least_squares(dimension), dimension * NOISE**2
        constants = [estimate_bound_constants(engine, order(t, 16)) for t in range(1, LOOKS + 1)]
        for name, expected in (("variance_of", true), ("moment_of", true / 16)):
            ratio = np.array([getattr(each, name)[0] for each in constants]) / expected
            found[name].append((float(ratio.mean()), float(ratio.std())))
    for k, (name, words) in enumerate((("variance_of", "σ²"), ("moment_of", "G²"))):
        mean, spread = np.array(found[name]).T
        place = np.array(DIMENSIONS) * (0.93, 1.07)[k]
        axes.errorbar(place, mean, spread, fmt="o", ms=4, capsize=2, color=COLOURS[k])
        axes.text(0.04, 0.92 - 0.07 * k, words, transform=axes.transAxes, color=COLOURS[k])
    axes.axhline(1.0, color=DARK, lw=0.6)
    axes.set_xscale("log")
    axes.set_xticks(DIMENSIONS, [str(dimension) for dimension in DIMENSIONS])
    axes.minorticks_off()
    axes.set_ylim(0, 2)
    label(axes, x="dimension d", y="estimated / true")
    axes.set_title("the paper's constants, spread of one estimate", fontsize=SMALL)


def draw_epsilon(path: Path) -> None:
    """The best plan for the paper's constants, over ε."""
    problem = read_problem(str(TABLE_1))
    largest = Plan.uniform(len(problem.fleet), batch_size=problem.max_batch, cut=1)
    floor = Corollary1.of(problem).bound.floor(largest).total
    targets = floor * np.geomspace(1.05, 100, 40)
    plans = [best_plan(replace(problem, target=float(target)), gap=1e-2).plan for target in targets]
    figure = new_figure(2.6)
    axes = figure.subplots()
    batches = np.array([plan.batch_sizes.mean() for plan in plans])
    axes.plot(targets / floor, batches, color=COLOURS[0])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.annotate(
        "mean batch size",
        (targets[6] / floor, batches[6]),
        (8, 4),
        textcoords="offset points",
        fontsize=SMALL,
        color=COLOURS[0],
    )
    cuts = np.array([plan.deepest_cut for plan in plans])
    axes.step(targets / floor, cuts, color=COLOURS[1], where="mid")
    axes.annotate(
        "deepest cut",
        (targets[-8] / floor, cuts[-8]),
        (0, 6),
        textcoords="offset points",
        fontsize=SMALL,
        color=COLOURS[1],
    )
    label(axes, x="ε, over the least that any plan can reach", y="the best plan, Table I")
    save_figure(figure, path)


def table() -> None:
    """Constants after 1, 4 and 16 intervals, and the last plan, over ways of training."""
    data = load_dataset("digits")
    print("| γ | optimiser | norm | data | noise | drift of all layers | b | cuts | accuracy, 255 rounds |")
    print("|--:|---|---|---|--:|--:|---|---|--:|")
    kinds: tuple[Literal["iid", "shards"], ...] = ("iid", "shards")
    norms: tuple[Literal["batch", "none"], ...] = ("batch", "none")
    ways = product((5e-4, 0.05), ("sgd", "momentum"), norms, kinds)
    for rate, optimizer, norm, kind in ways:
        shares = partition(data.y_train.numpy(), DEVICES, Seeds(0), kind=kind)
        torch.manual_seed(0)
        settings = Settings(learning_rate=rate, optimizer=optimizer, goal=Goal(rounds=255))
        fleet = draw_fleet(FleetRanges(devices=DEVICES), Seeds(0))
        model = network("small-cnn", norm=norm)
        records = list(simulate(model, data, fleet, settings, shares=shares).training.rounds())
        read = [record.constants for record in records if record.constants is not None]
        plan, noise = records[-1].plan, ", ".join(f"{each['noise']:.2g}" for each in read)
        print(
            f"| {rate:g} | {optimizer} | {norm} | {kind} | {noise} | {sum(read[-1]['drift_of']):.2g} "
            f"| {plan.batch_sizes.min()} to {plan.batch_sizes.max()} "
            f"| {plan.cuts.min()} to {plan.cuts.max()} | {records[-1].accuracy:.1%} |",
            flush=True,
        )


def skew() -> None:
    """k = ln(L/l) on digits with two shards, and R∞ there over that of IID data, by fixed plans."""
    endless = []
    for name in ("digits-shards", "digits-iid"):
        results = read_results(RESULTS, name)
        laws = laws_by_cut(mean_rounds(results, SETTINGS[name].targets[1], "mean"))
        endless.append({cut: law.endless for cut, law in laws.items() if law is not None})
    print("| cut | 1 + k, read in round 60, b = 8 | R∞ with two shards, over IID |")
    print("|--:|--:|--:|")
    for cut in SETTINGS["digits-shards"].cuts:
        k = np.mean([_skew_read(f"fixed:b=8,cut={cut}", seed) for seed in range(3)])
        print(f"| {cut} | {1 + k:.2f} | {endless[0][cut] / endless[1][cut]:.2f} |", flush=True)


def _skew_read(strategy: str, seed: int) -> float:
    """The last k of two readings."""
    task = Task(setting="digits-shards", seed=seed, strategy=strategy, rounds=60, data="digits", both=True)
    training: Any = prepared(task).training
    training.observer.constants = TrackedConstants.guessed(training.observer.profile, DEVICES, 15)
    read = [record.constants["undone"] for record in training.rounds() if record.constants is not None]
    return float(read[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--table", action="store_true")
    which.add_argument("--skew", action="store_true")
    given = parser.parse_args()
    if given.table or given.skew:
        (table if given.table else skew)()
        return
    draw_known(DOCS / "constants_known.png")
    draw_epsilon(DOCS / "constants_epsilon.png")


if __name__ == "__main__":
    main()
