"""What does float16 on the wire cost in accuracy and loss, compared with float32?

    python -m benchmarks.wire_precision        # a table; some minutes, all parties in this process

Devices and the edge server exchange activations and gradients in float32, or rounded to float16
(`training.wire`). Everything else is the same: the seed, the samples, the plans. The last column is the
median over rounds of the relative difference between the training loss and that of the exact training.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hasfl.arrays import IntN
from hasfl.data.dataset import Dataset
from hasfl.deployment.agreement import Agreement, build
from hasfl.deployment.device import Device, own_samples
from hasfl.deployment.edge_server import Edge, EdgeStore
from hasfl.deployment.engine import NetworkedEngine
from hasfl.deployment.links import DirectLinks
from hasfl.profile import Profile
from hasfl.record import EDGE, RoundRecord
from hasfl.runs.build import SampleCounts, training_of
from hasfl.runs.files import parse_toml
from hasfl.runs.scenario import Scenario
from hasfl.runs.task import shared_data, world_of

SCENARIO = """seed = {seed}
[data]
name = "digits"
[fleet]
devices = 6
[training]
strategy = "rbs+rms"
interval = 5
learning_rate = 0.05
max_batch = 16
evaluate_every = {rounds}
wire = "{wire}"
[stop]
rounds = {rounds}
"""
HERE = Path()


class Trained(NamedTuple):
    """The outcome of a training."""

    seed: int
    wire: str
    accuracy: float  # accuracy on the test set
    test_loss: float
    losses: list[float]  # training loss of every round


def trained(seed: int, wire: str, rounds: int) -> Trained:
    """Train with all parties in this process, and return the outcome."""
    records = list(_records(seed, wire, rounds))
    last = records[-1]
    assert last.accuracy is not None
    assert last.test_loss is not None
    return Trained(seed, wire, last.accuracy, last.test_loss, [record.loss for record in records])


def _records(seed: int, wire: str, rounds: int) -> Iterator[RoundRecord]:
    text = SCENARIO.format(seed=seed, wire=wire, rounds=rounds)
    scenario = parse_toml(text, Scenario, "scenario")
    fleet = scenario.draw()
    data, shares = shared_data(scenario, fleet.names, folder=HERE)
    agreement = Agreement(
        scenario=text,
        strategy=scenario.training.strategy,
        seed=seed,
        samples=tuple(len(share) for share in shares),
        shape=tuple(data.x_train.shape[1:]),
        type="float32",
        outputs=data.outputs,
        numbers=False,
        run="benchmark",
    )
    engine, profile = _engine(agreement, data, shares)
    no_samples = np.zeros_like(agreement.sizes)
    holdings = SampleCounts(
        sizes=agreement.sizes,
        held_out=no_samples,
        calibrating=no_samples,
        sample_bits=agreement.sample_bits,
        unlikeness=engine.fed.unlikeness(agreement.sizes),
    )
    world = world_of(scenario, fleet, folder=HERE)
    yield from training_of(engine, None, holdings, world, profile, scenario.settings()).rounds()


def _engine(agreement: Agreement, data: Dataset, shares: Sequence[IntN]) -> tuple[NetworkedEngine, Profile]:
    """An engine whose parties are in this process; every party has built the model by itself."""
    built = [build(agreement, trusted=None, folder=HERE) for _ in range(len(shares) + 2)]
    devices = []
    for i, share in enumerate(shares):
        own = own_samples(
            data.x_train[share],
            data.y_train[share],
            device=i,
            samples=agreement.samples,
            seeds=built[i].computation.seeds,
        )
        devices.append(Device(index=i, computation=built[i].computation, data=own, profile=built[i].profile))
    edge = Edge(
        computation=built[-1].computation,
        links=DirectLinks({i: device.from_edge for i, device in enumerate(devices)}),
        store=EdgeStore(built[-1].computation),
        test=(data.x_test, data.y_test),
    )
    asked = {i: device.from_fed for i, device in enumerate(devices)}
    links = DirectLinks({**asked, EDGE: edge.from_fed})
    return NetworkedEngine(built[-2].computation, links), built[-2].profile


def rows(seeds: int, rounds: int) -> Iterator[str]:
    """The rows of the table."""
    yield "| seed | accuracy, float32 | accuracy, float16 | test loss, float32 | test loss, float16 | apart |"
    yield "|--:|--:|--:|--:|--:|--:|"
    for seed in range(seeds):
        exact, rounded = (trained(seed, wire, rounds) for wire in ("float32", "float16"))
        apart = np.abs(np.array(rounded.losses) / np.array(exact.losses) - 1)
        cells = [f"{exact.accuracy:.2%}", f"{rounded.accuracy:.2%}"]
        cells += [f"{exact.test_loss:.4f}", f"{rounded.test_loss:.4f}", f"{np.median(apart):.2%}"]
        yield f"| {seed} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=300)
    asked = parser.parse_args()
    for row in rows(asked.seeds, asked.rounds):
        print(row, flush=True)


if __name__ == "__main__":
    main()
