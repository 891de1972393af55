"""What do readings of noise and drift cost a training, in wall time and in bytes?

    python -m benchmarks.bench_readings [--data cifar10.npz --network vgg16 --device cuda]

Two trainings of the same plan take turns, one that reads as HASFL does and one that does not; the ratio of
the best of three times counts, which leaves out what a first run needs to warm up. Bytes are counted in
samples: each is sent up once and its gradient comes back. Beyond training's own, a reading sends the two half
batches once more, and what two devices use for the drift.
"""

import argparse
import time
from typing import Any, NamedTuple

import torch

from hasfl import FleetRanges, Goal, Seeds, draw_fleet
from hasfl.data import Dataset, load_dataset
from hasfl.engines.constants import MeasuredConstants
from hasfl.networks import network
from hasfl.runner.assembly import Settings, simulate

DEVICES, INTERVAL, INTERVALS, TURNS = 20, 15, 48, 3


class Cost(NamedTuple):
    """Of one training."""

    seconds: float  # wall
    share: float  # of samples that readings sent


def train(data: Dataset, model: str, batch_size: int, device: str, *, reads: bool) -> Cost:
    """One training, with readings or without."""
    settings = Settings(
        strategy=f"fixed:b={batch_size},cut=2",
        learning_rate=0.05,
        interval=INTERVAL,
        goal=Goal(rounds=INTERVAL * INTERVALS + 1),
        evaluate_every=INTERVAL * INTERVALS + 1,
        device=device,
    )
    fleet = draw_fleet(FleetRanges(devices=DEVICES), Seeds(0))
    training: Any = simulate(network(model), data, fleet, settings).training
    constants = MeasuredConstants.guessed(training.observer.profile, DEVICES, INTERVAL)
    if reads:
        training.observer.constants = constants
    began = time.perf_counter()
    for record in training.rounds():
        if record.round == INTERVAL * INTERVALS:  # the one after it is evaluated
            break
    return Cost(time.perf_counter() - began, constants.spent / record.samples)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="digits")
    parser.add_argument("--network", default="small-cnn")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = load_dataset(given.data)
    print("| b | wall time with readings, over without | samples sent for readings, of all |")
    print("|--:|--:|--:|")
    for batch_size in (1, 2, 4, 16):
        costs: dict[bool, list[Cost]] = {True: [], False: []}
        for _ in range(TURNS):
            for reads in (True, False):
                costs[reads].append(train(data, given.network, batch_size, given.device, reads=reads))
        ratio = min(costs[True]).seconds / min(costs[False]).seconds
        print(f"| {batch_size} | {ratio:.3f} | {costs[True][0].share:.2%} |", flush=True)


if __name__ == "__main__":
    main()
