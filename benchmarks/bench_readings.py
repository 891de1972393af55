"""What do readings of noise and drift cost a training, in wall time and in bytes?

    python -m benchmarks.bench_readings [--data cifar10.npz --network vgg16 --device cuda]

Two trainings of the same plan take turns, one that reads as HASFL does and one that does not; the ratio of
their best times counts. Bytes are counted in samples: each is sent up once and its gradient comes back.
Beyond training's own, a reading sends the two half batches once more, and what two devices use for the drift.
"""

import argparse
import time
from typing import Any

import torch

from hasfl import FleetRanges, Goal, Seeds, draw_fleet
from hasfl.data import Dataset, load_dataset
from hasfl.engines.constants import MeasuredConstants, due
from hasfl.engines.measuring import DRIFT_SAMPLES, DRIFTED_DEVICES, LEAST_HALF
from hasfl.networks import network
from hasfl.runner.assembly import Settings, simulate

DEVICES, INTERVAL, INTERVALS, TURNS = 20, 15, 48, 2


def train(data: Dataset, model: str, batch_size: int, device: str, *, reads: bool) -> float:
    """Wall seconds of a training, without its first interval."""
    settings = Settings(
        strategy=f"fixed:b={batch_size},cut=2",
        learning_rate=0.05,
        interval=INTERVAL,
        goal=Goal(rounds=INTERVAL * (INTERVALS + 1)),
        evaluate_every=INTERVAL * (INTERVALS + 1),
        device=device,
    )
    fleet = draw_fleet(FleetRanges(devices=DEVICES), Seeds(0))
    simulation = simulate(network(model), data, fleet, settings)
    training: Any = simulation.training
    if reads:
        profile = training.observer.profile
        training.observer.constants = MeasuredConstants.guessed(profile, DEVICES, INTERVAL)
    rounds = training.rounds()
    for _ in range(INTERVAL):
        next(rounds)
    began = time.perf_counter()
    for record in rounds:
        if record.round == INTERVAL * (INTERVALS + 1) - 1:  # the last one is evaluated
            break
    return time.perf_counter() - began


def share_of_samples(batch_size: int) -> float:
    """Samples that readings send beyond training's own, over training's, in so many intervals."""
    readings = sum(due(interval, stay=False) for interval in range(1, INTERVALS + 1))
    half = max(batch_size // 2, -(-LEAST_HALF // DEVICES))
    again = 2 * half * DEVICES
    fresh = max(2 * half - batch_size, 0) * DEVICES
    drift = 2 * DRIFTED_DEVICES * DRIFT_SAMPLES
    return readings * (again + fresh + drift) / (INTERVALS * INTERVAL * batch_size * DEVICES)


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
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(TURNS):
            for reads in (True, False):
                seconds[reads].append(train(data, given.network, batch_size, given.device, reads=reads))
        ratio = min(seconds[True]) / min(seconds[False])
        print(f"| {batch_size} | {ratio:.3f} | {share_of_samples(batch_size):.2%} |", flush=True)


if __name__ == "__main__":
    main()
