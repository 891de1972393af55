"""How much time and memory does a simulated round with 20 to 2,000 devices take on the CPU?

    python -m benchmarks.bench_devices

Digits, the small CNN, b = 4, cut 2, aggregation every five rounds; every device holds 32 samples. Each fleet
is trained in its own process, so that the peak memory of one fleet does not count for the next.
"""

import json
import subprocess
import sys
import time

ROUNDS, INTERVAL = 50, 5  # the first interval warms up and is not timed
FLEETS = (20, 100, 500, 2000)  # numbers of devices


def train(devices: int) -> None:
    """Train one fleet, and print the seconds of a round, the peak memory and the accuracy as JSON."""
    import torch

    from hasfl import FleetRanges, Seeds, draw_fleet, simulate
    from hasfl.data.partition import partition
    from hasfl.data.sources import load_dataset
    from hasfl.learning.memory import held_memory
    from hasfl.models.networks import network

    data = load_dataset("digits")
    seeds = Seeds(0)
    simulation = simulate(
        network("small-cnn"),
        data,
        draw_fleet(FleetRanges(devices=devices), seeds),
        shares=partition(data.y_train.numpy(), devices, seeds, samples=32),
        rounds=ROUNDS,
        strategy="b=4+cut=2",
        learning_rate=0.05,
        interval=INTERVAL,
        evaluate_every=ROUNDS,
    )
    rounds = iter(simulation)
    for _ in range(INTERVAL):
        next(rounds)
    began = time.perf_counter()
    accuracy = [record.accuracy for record in rounds][-1]
    seconds = (time.perf_counter() - began) / (ROUNDS - INTERVAL)
    print(json.dumps({"seconds": seconds, "memory": held_memory(torch.device("cpu")), "accuracy": accuracy}))


def main() -> None:
    print("| devices | ms a round | µs a device and round | against 20 devices | peak MiB | accuracy |")
    print("|--:|--:|--:|--:|--:|--:|")
    smallest_fleet = 0.0
    for devices in FLEETS:
        command = [sys.executable, "-m", "benchmarks.bench_devices", str(devices)]
        process = subprocess.run(command, check=True, capture_output=True, text=True)
        measured = json.loads(process.stdout.splitlines()[-1])
        of_device = measured["seconds"] / devices
        smallest_fleet = smallest_fleet or of_device
        print(
            f"| {devices:,} | {measured['seconds'] * 1e3:.0f} | {of_device * 1e6:.0f} "
            f"| {of_device / smallest_fleet:.2f} | {measured['memory'] / 2**20:,.0f} "
            f"| {measured['accuracy']:.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    train(int(sys.argv[1])) if len(sys.argv) > 1 else main()
