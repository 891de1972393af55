"""How good are estimates of the paper's constants, and how does ε change plans?

    python -m benchmarks.constants_known    # docs/constants_known.png and constants_epsilon.png

The first picture uses a problem whose constants are known: least squares, y = x·w* + e with x Gaussian in d
dimensions, at w = w*. There σ² = d E e² and G² = σ²/b.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hasfl import Plan, Seeds
from hasfl.learning.optimizers import Sgd, Updates
from hasfl.learning.state import SplitState
from hasfl.learning.training_data import TrainingData
from hasfl.models.layered_model import LayeredModel
from hasfl.plan import Order
from hasfl.planning.exact.planner import best_plan
from hasfl.report.canvas import COLOURS, DARK, SMALL, label, new_figure
from hasfl.report.figures import save_figure
from hasfl.runs.questions import read_problem
from hasfl.schedule import RateSchedule
from hasfl.theory.bound import Corollary1
from hasfl.training.paper_estimates import Probe, estimate_bound_constants

DOCS = Path(__file__).parents[1] / "docs"
TABLE_1 = Path(__file__).parents[1] / "examples" / "table1.toml"
DEVICES = 20

# The problem whose constants are known.
SAMPLES = 400  # samples of each device
NOISE = 0.5  # standard deviation of e
ESTIMATES = 40  # number of estimates for each point of the picture
DIMENSIONS = (8, 32, 128)  # values of d
BATCH = 16  # the batch size of the training
RATE = 0.3  # learning rate


def half_square(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs[:, 0] - labels).square() / 2


def least_squares(dimension: int) -> Probe:
    """Devices at the solution w* of a problem whose constants are all known."""
    draw = torch.Generator().manual_seed(dimension)
    x = torch.randn(DEVICES * SAMPLES, dimension, generator=draw, dtype=torch.float64)
    layer = nn.Linear(dimension, 1, bias=False, dtype=torch.float64)
    noise = NOISE * torch.randn(len(x), generator=draw, dtype=torch.float64)
    y = (x @ layer.weight.detach().T)[:, 0] + noise
    model = LayeredModel({"linear": layer}, x[:1])
    data = TrainingData.of(x, y, np.split(np.arange(len(x)), DEVICES), Seeds(0))
    updates = Updates(Sgd(), RateSchedule(RATE))
    return Probe(
        layers=list(model.layers.values()),
        state=SplitState.of(model, updates.slots, data.sizes),
        data=data,
        updates=updates,
        loss=half_square,
    )


def orders() -> list[Order]:
    """The orders of `ESTIMATES` rounds, over which estimates are averaged."""
    devices = np.arange(DEVICES)
    plan = Plan.uniform(DEVICES, batch_size=BATCH, cut=1)
    rounds = range(1, ESTIMATES + 1)
    return [Order(round=t, devices=devices, plan=plan, drawn=np.zeros_like(devices)) for t in rounds]


def draw_known(path: Path) -> None:
    """Draw estimates of σ² and G² on the known problem, with the standard deviation of one estimate."""
    figure = new_figure(2.9)
    axes = figure.subplots()
    ratios: dict[str, list[tuple[float, float]]] = {"variance_of": [], "moment_of": []}
    for dimension in DIMENSIONS:
        probe, variance = least_squares(dimension), dimension * NOISE**2
        estimates = [estimate_bound_constants(probe, one_order) for one_order in orders()]
        for name, true in (("variance_of", variance), ("moment_of", variance / BATCH)):
            ratio = np.array([getattr(estimate, name)[0] for estimate in estimates]) / true
            ratios[name].append((float(ratio.mean()), float(ratio.std())))
    for k, (name, words) in enumerate((("variance_of", "σ²"), ("moment_of", "G²"))):
        mean, spread = np.array(ratios[name]).T
        place = np.array(DIMENSIONS) * (0.93, 1.07)[k]  # σ² is drawn left of its dimension, G² right of it
        axes.errorbar(place, mean, spread, fmt="o", ms=4, capsize=2, color=COLOURS[k])
        axes.text(0.04, 0.92 - 0.07 * k, words, transform=axes.transAxes, color=COLOURS[k])
    axes.axhline(1.0, color=DARK, lw=0.6)
    axes.set_xscale("log")
    axes.set_xticks(DIMENSIONS, [str(dimension) for dimension in DIMENSIONS])
    axes.minorticks_off()
    axes.set_ylim(0, 2)
    label(axes, x="dimension d", y="estimated / true")
    axes.set_title("the paper's constants, ± of one estimate", fontsize=SMALL)
    save_figure(figure, path)


def draw_epsilon(path: Path) -> None:
    """Draw the best plan for the paper's constants against ε."""
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
    beside: dict[str, Any] = {"textcoords": "offset points", "fontsize": SMALL}
    axes.annotate("mean batch size", (targets[6] / floor, batches[6]), (8, 4), color=COLOURS[0], **beside)
    cuts = np.array([plan.deepest_cut for plan in plans])
    axes.step(targets / floor, cuts, color=COLOURS[1], where="mid")
    axes.annotate("deepest cut", (targets[-8] / floor, cuts[-8]), (0, 6), color=COLOURS[1], **beside)
    label(axes, x="ε, over the least ε that a plan can reach", y="the best plan, Table I")
    save_figure(figure, path)


def main() -> None:
    draw_known(DOCS / "constants_known.png")
    draw_epsilon(DOCS / "constants_epsilon.png")


if __name__ == "__main__":
    main()
