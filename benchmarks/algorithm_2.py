"""How far are plans of Algorithm 2 with measured constants from the best plan (docs/decisions/0020)?

    python -m benchmarks.algorithm_2

A row is a model and a kind of fleet, of which ten are drawn. Each number is Θ (the training time by the
measured law) over that of the exact planner. Algorithm 2 starts at b = 16, as `hasfl-bcd` does, or at the
best of seven batch sizes. The last column is the exact planner on the problems that Algorithm 2 gets, whose
law has the form of Corollary 1. It shows what this form costs.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hasfl import FleetRanges, MeasuredConstants, Problem, Profile, Seeds, best_plan, draw_fleet, read_problem
from hasfl.guesses import guesses
from hasfl.plan import Plan
from hasfl.planning.paper.algorithm_2 import algorithm_2, corollary_1_at
from hasfl.runs.model_costs import shipped_layers
from hasfl.theory.objective import evaluate

SCENARIO = "examples/measured.toml"  # VGG-16 on the wide fleet
FLEETS = {
    "Table I": FleetRanges(),
    "wide": FleetRanges(flops=(1e11, 2e12), up_rate=(1e7, 8e7), fed_up_rate=(1e7, 8e7)),
}
# Constants of ResNet-18 on CIFAR-100, IID, fitted to the grid of fixed plans (docs/constants.md).
RESNET_ROUNDS, RESNET_NOISE, RESNET_DRIFT = 300.0, 5.0, 8.1
STARTS = (1, 2, 4, 8, 16, 32, 64)  # batch sizes from which Algorithm 2 starts
MOST_STEPS = 50  # most planning steps of `exact_by_touching`


def problems() -> dict[str, Problem]:
    """The planning problem of each model, on the fleet of the example."""
    vgg16 = read_problem(SCENARIO)
    layers = shipped_layers("resnet18", classes=100, norm="batch")
    assert layers is not None
    profile = Profile.of(layers)
    devices, interval = len(vgg16.fleet), vgg16.interval
    guessed = guesses(profile, devices=devices, interval=interval, unlikeness=0.0, learning_rate=None)
    drift_of = guessed.each[0].constants.drift_of
    drift_of = RESNET_DRIFT / drift_of.sum() * drift_of
    constants = MeasuredConstants(rounds=RESNET_ROUNDS, noise=RESNET_NOISE, drift_of=drift_of)
    return {"VGG-16": vgg16, "ResNet-18": replace(vgg16, profile=profile, constants=constants)}


def exact_by_touching(problem: Problem, start: Plan) -> float:
    """Θ of the plan at which the exact planner settles if, like Algorithm 2, it replaces the law again and
    again by one in the form of Corollary 1 that touches it at the present plan.
    """
    best = evaluate(start, problem)
    for _ in range(MOST_STEPS):
        new = evaluate(best_plan(corollary_1_at(problem, best.plan)).plan, problem)
        if new.objective >= best.objective:
            break
        best = new
    return best.objective


def ratios(problem: Problem) -> tuple[float, float, float]:
    """Θ over the least Θ, for Algorithm 2, Algorithm 2 from its best start, and `exact_by_touching`."""
    least = best_plan(problem).objective
    devices = len(problem.fleet)
    found = algorithm_2(problem)
    starts = [algorithm_2(problem, start=Plan.uniform(devices, batch_size=b, cut=4)) for b in STARTS]
    touching = exact_by_touching(problem, found.plan)
    return found.objective / least, min(each.objective for each in starts) / least, touching / least


def in_words(values: Sequence[float]) -> str:
    """The median and the range of values, in words."""
    return f"{np.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fleets", type=int, default=10, help="random fleets for each row")
    fleets = parser.parse_args().fleets
    print("| model, fleet | Algorithm 2 | from the best of seven starts | exact, on its problems |")
    print("|---|--:|--:|--:|")
    for model, problem in problems().items():
        for fleet, ranges in FLEETS.items():
            drawn = [replace(problem, fleet=draw_fleet(ranges, Seeds(seed))) for seed in range(fleets)]
            columns = zip(*map(ratios, drawn), strict=True)
            print(f"| {model}, {fleet} | {' | '.join(map(in_words, columns))} |", flush=True)


if __name__ == "__main__":
    main()
