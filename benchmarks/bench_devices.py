"""Wall time and memory of a simulated round from 20 to 2,000 devices, on the CPU.

    python -m benchmarks.bench_devices

Digits, the small CNN, b = 4, cut 2, intervals of five rounds; every device holds 32 samples. Each fleet
is trained in a process of its own, so that its peak memory is its own.
"""

import json
import subprocess
import sys
import time

ROUNDS, INTERVAL = 50, 5
FLEETS = (20, 100, 500, 2000)


def train(devices: int) -> None:
    """Train one fleet, and print what it took."""
    import torch

    from hasfl import FleetRanges, Goal, Seeds, draw_fleet
    from hasfl.data import load_dataset, partition
    from hasfl.engines.memory import held_memory
    from hasfl.networks import network
    from hasfl.runner.simulation import simulate
    from hasfl.settings import Settings

    data = load_dataset("digits")
    seeds = Seeds(0)
    shares = partition(data.y_train.numpy(), devices, seeds, samples=32)
    settings = Settings(
        strategy="b=4+cut=2",
        learning_rate=0.05,
        interval=INTERVAL,
        evaluate_every=ROUNDS,
        goal=Goal(rounds=ROUNDS),
    )
    fleet = draw_fleet(FleetRanges(devices=devices), seeds)
    rounds = simulate(network("small-cnn"), data, fleet, settings, shares=shares).training.rounds()
    for _ in range(INTERVAL):
        next(rounds)
    began = time.perf_counter()
    accuracy = [record.accuracy for record in rounds][-1]
    seconds = (time.perf_counter() - began) / (ROUNDS - INTERVAL)
    print(json.dumps({"seconds": seconds, "memory": held_memory(torch.device("cpu")), "accuracy": accuracy}))


def main() -> None:
    print("| devices | ms a round | µs a device and round | against 20 devices | peak MiB | accuracy |")
    print("|--:|--:|--:|--:|--:|--:|")
    first = 0.0
    for devices in FLEETS:
        command = [sys.executable, "-m", "benchmarks.bench_devices", str(devices)]
        ran = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(ran.stdout.splitlines()[-1])
        each = found["seconds"] / devices
        first = first or each
        print(
            f"| {devices:,} | {found['seconds'] * 1e3:.0f} | {each * 1e6:.0f} | {each / first:.2f} "
            f"| {found['memory'] / 2**20:,.0f} | {found['accuracy']:.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    train(int(sys.argv[1])) if len(sys.argv) > 1 else main()
