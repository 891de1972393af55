"""What do readings of noise and drift cost a training, in wall time and in bytes?

    python -m benchmarks.bench_readings [--data cifar10.npz --network vgg16 --device cuda]

One training of a fixed plan that reads as HASFL does, after a short one to warm up. What readings take is
timed within it, so that both parts of the ratio share the machine's moods. Bytes are counted in samples: each
is sent up once and its gradient comes back. Beyond training's own, a reading sends the two half batches once
more, and what two devices use for the drift.
"""

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsFloat

import torch

from hasfl import FleetRanges, Goal, Seeds, draw_fleet
from hasfl.constants import Constants
from hasfl.data import Dataset, load_dataset
from hasfl.engines.local import LocalEngine
from hasfl.networks import network
from hasfl.plan import Order
from hasfl.readings.sources import TrackedConstants
from hasfl.runner.simulation import simulate
from hasfl.settings import Settings

DEVICES, INTERVAL, INTERVALS = 20, 15, 48


@dataclass
class Timed:
    """ConstantsSource whose readings are timed."""

    constants: TrackedConstants
    seconds: float = 0.0

    def constants(self) -> Constants:
        return self.constants.constants()

    def learn(
        self, engine: LocalEngine, order: Order, nth: int, loss: SupportsFloat
    ) -> Mapping[str, Any] | None:
        began = _now(engine)
        found = self.constants.learn(engine, order, nth, loss)
        self.seconds += _now(engine) - began
        return found


def _now(engine: LocalEngine) -> float:
    """The time when all work that was asked for is done."""
    if engine.job.data.x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


class Cost(NamedTuple):
    """Of readings, over training's own."""

    seconds: float
    samples: float


def train(data: Dataset, model: str, batch_size: int, device: str, *, intervals: int) -> Cost:
    """One training that reads."""
    settings = Settings(
        strategy=f"fixed:b={batch_size},cut=2",
        learning_rate=0.05,
        interval=INTERVAL,
        goal=Goal(rounds=INTERVAL * intervals + 1),
        evaluate_every=INTERVAL * intervals + 1,
        device=device,
    )
    fleet = draw_fleet(FleetRanges(devices=DEVICES), Seeds(0))
    simulation = simulate(network(model), data, fleet, settings)
    training: Any = simulation.training
    timed = Timed(TrackedConstants.guessed(training.observer.profile, DEVICES, INTERVAL))
    training.observer.constants = timed
    began = time.perf_counter()
    for record in training.rounds():
        if record.round == INTERVAL * intervals:  # the one after it is evaluated
            break
    whole = _now(simulation.engine) - began
    return Cost(timed.seconds / (whole - timed.seconds), timed.constants.spent / record.samples)


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
    print("| b | wall time of readings, over training's | samples sent for readings, over training's |")
    print("|--:|--:|--:|")
    for batch_size in (1, 2, 4, 16):
        train(data, given.network, batch_size, given.device, intervals=2)
        cost = train(data, given.network, batch_size, given.device, intervals=INTERVALS)
        print(f"| {batch_size} | {cost.seconds:.1%} | {cost.samples:.2%} |", flush=True)


if __name__ == "__main__":
    main()
