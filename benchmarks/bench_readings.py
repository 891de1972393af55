"""How much wall time and virtual time, and how many samples, do readings of the constants add to training?

    python -m benchmarks.bench_readings [--data cifar10.npz --network vgg16 --device cuda]

A fixed plan is trained with the readings that HASFL takes, after a short training to warm up. The readings
are timed within the training, so both parts of the ratio are measured at the same time on the same machine.
A sample counts once for each pass through the model. Virtual time is that of Table I's fleet: the phases of
a reading are on the clock, like those of a round.
"""

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from benchmarks.hindsight.training import READING
from hasfl import FleetRanges, Seeds, draw_fleet, simulate
from hasfl.constants import Constants
from hasfl.data import Dataset, load_dataset
from hasfl.effort import Learnt, TimeSpent
from hasfl.networks import network
from hasfl.plan import Order
from hasfl.readings.reader import Reader
from hasfl.readings.sources import TrackedConstants
from hasfl.settings import Machine
from hasfl.training.observer import WorldObserver

DEVICES, INTERVAL = 20, 15
WARM_INTERVALS, INTERVALS = 2, 48  # of the short training, and of the one that is measured
BATCH_SIZES = (1, 2, 4, 16)


@dataclass
class TimedSource:
    """A source of constants whose readings are timed."""

    source: TrackedConstants
    seconds: float = 0.0
    samples: int = 0  # of all readings

    def constants(self) -> Constants:
        return self.source.constants()

    def learn(self, reader: Reader, order: Order, nth: int, spent: TimeSpent) -> Learnt | None:
        began = _now()
        learnt = self.source.learn(reader, order, nth, spent)
        self.seconds += _now() - began
        self.samples += 0 if learnt is None else learnt.effort.samples
        return learnt

    def saved(self) -> Mapping[str, Any]:
        return self.source.saved()

    def restore(self, values: Mapping[str, Any]) -> None:
        self.source.restore(values)


def _now() -> float:
    """The time, once a GPU has finished its work."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


class Cost(NamedTuple):
    """The cost of readings, divided by that of training without them."""

    wall_seconds: float
    virtual_seconds: float
    samples: float


def train(data: Dataset, model: str, batch_size: int, machine: Machine, *, intervals: int) -> Cost:
    """Train a fixed plan with readings."""
    rounds = INTERVAL * intervals
    simulation = simulate(
        network(model),
        data,
        draw_fleet(FleetRanges(devices=DEVICES), Seeds(0)),
        rounds=rounds + 1,
        strategy=f"fixed:b={batch_size},cut=2",
        learning_rate=0.05,
        interval=INTERVAL,
        evaluate_every=rounds + 1,
        machine=machine,
    )
    observer = simulation.training.observer
    assert isinstance(observer, WorldObserver)
    timed = TimedSource(TrackedConstants.guessed(observer.profile, DEVICES, INTERVAL))
    observer.source = timed  # because a fixed plan reads no constants by itself
    began, reading = time.perf_counter(), 0.0
    for record in simulation:
        reading += sum(s for phase, s in record.phases.items() if phase.startswith(READING))
        if record.round == rounds:  # the next round ends with an evaluation, which must not be timed
            break
    whole = _now() - began
    return Cost(
        wall_seconds=timed.seconds / (whole - timed.seconds),
        virtual_seconds=reading / (record.clock - reading),
        samples=timed.samples / (record.samples - timed.samples),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="digits")
    parser.add_argument("--network", default="small-cnn")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data, machine = load_dataset(options.data), Machine(device=options.device)
    print("Readings over training:\n\n| b | wall time | virtual time | samples |\n|--:|--:|--:|--:|")
    for batch_size in BATCH_SIZES:
        train(data, options.network, batch_size, machine, intervals=WARM_INTERVALS)
        cost = train(data, options.network, batch_size, machine, intervals=INTERVALS)
        shares = " | ".join(f"{share:.2%}" for share in cost)
        print(f"| {batch_size} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
