"""What does a deployment cost beside compute: bytes a second, seconds of a round, messages of an interval?

    python -m benchmarks.bench_deploy              # everything, some minutes
    python -m benchmarks.bench_deploy --quick      # fewer repeats, and no fleet of 50 devices

It writes benchmarks/deploy_<hardware>_<date>.md. Everything runs on loopback with TLS. Every party is a
process of its own, except the fed server, which is in this process. Flower is left out, because it only
offers sessions to parties (benchmarks/worker_fleet.py).
"""

import argparse
import datetime
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import grpc
import torch

from benchmarks.data_plane import row, rule, throughput
from benchmarks.worker_fleet import WorkerFleet, write_scenario
from hasfl.record import RoundRecord

HERE = Path(__file__).parent
DEVICES = (4, 16, 50)  # sizes of fleets
SAMPLES = 16  # batch size for rounds a second; overheads are measured with one sample
INTERVAL = 5
ROUNDS = 5 * INTERVAL
ROUND_COLUMNS = (
    "device processes", "round, b = 1", "overhead a round", "overhead a round and device", "round, b = 16",
    "rounds/s, b = 16", "start to connected",
)  # fmt: skip
MESSAGES = (
    "device processes", "begin, edge server", "begin, devices", "give, devices", "give, edge server",
    "finish", "all messages", "whole end of an interval",
)  # fmt: skip
# The steps in which parties compute.
STEPS = ("device_forward", "server_forward", "server_backward", "device_backward")


# ── rounds and intervals ─────────────────────────────────────────────────────────────────────────────────


def fleets(sizes: tuple[int, ...], rounds: int) -> tuple[list[str], list[str]]:
    """Two tables: overhead and rounds a second, and milliseconds of the messages of an interval."""
    table, messages = [row(ROUND_COLUMNS), rule(ROUND_COLUMNS)], [row(MESSAGES), rule(MESSAGES)]
    for devices in sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            scenario = write_scenario(folder, devices=devices, rounds=rounds, interval=INTERVAL)
            began = time.perf_counter()
            with WorkerFleet(folder, scenario).running() as fleet:
                connected = time.perf_counter() - began
                small = fleet.train("b=1+cut=2", "small")
                messages.append(_messages_row(fleet, small))
                usual = fleet.train(f"b={SAMPLES}+cut=2", "usual")
        table.append(_rounds_row(devices, small, usual, connected))
        print(table[-1], messages[-1], sep="\n", flush=True)
    return table, messages


def _counted(records: list[RoundRecord]) -> list[RoundRecord]:
    """The records without the first interval, in which everything happens for the first time."""
    return [record for record in records if record.round > INTERVAL]


def _rounds_row(devices: int, small: list[RoundRecord], usual: list[RoundRecord], connected: float) -> str:
    pairs = [
        (record.measured.spans["split_training"], _compute(record))
        for record in _counted(small)
        if record.measured
    ]
    whole = statistics.median(span for span, _ in pairs)
    overhead = statistics.median(span - compute for span, compute in pairs)
    later = [record.measured.spans["split_training"] for record in _counted(usual) if record.measured]
    middle = statistics.median(later)
    return (
        f"| {devices} | {1e3 * whole:.1f} ms | {1e3 * overhead:.1f} ms | {1e3 * overhead / devices:.2f} ms | "
        f"{1e3 * middle:.1f} ms | {1 / middle:.1f} | {connected:.0f} s |"
    )


def _compute(record: RoundRecord) -> float:
    """The measured seconds of computation in a round, of the slowest device and of the edge server."""
    assert record.measured is not None
    return sum(max(record.measured.measured[step].values()) for step in STEPS)


def _messages_row(fleet: WorkerFleet, records: list[RoundRecord]) -> str:
    asked = [
        ("begin", "edge server"), ("begin", "devices"), ("give", "devices"), ("give", "edge server"),
        ("finish", "edge server"),
    ]  # fmt: skip
    each = [fleet.server.milliseconds(*kind) for kind in asked]
    plain = statistics.median(
        r.measured.seconds for r in _counted(records) if r.measured and r.round % INTERVAL > 1
    )
    ends = [
        sum(r.measured.seconds - plain for r in pair if r.measured)
        for pair in zip(records[INTERVAL - 1 :: INTERVAL], records[INTERVAL::INTERVAL], strict=False)
    ]
    cells = " | ".join(f"{value:.1f} ms" for value in (*each, sum(each), 1e3 * statistics.median(ends)))
    return f"| {fleet.devices} | {cells} |"


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────


REPORT = """# What a deployment costs beside compute

`python -m benchmarks.bench_deploy`, {date}, {hardware}, torch {torch}, grpc {grpc}. Other programs ran on the
machine at the same time: its load was {before:.1f} before the benchmark and {after:.1f} after it.

## Data plane

Activations go to another process and come back, one exchange after the other. *hasfl* asks with
`PartyServer.ask`: tensors become frames, frames become tensors at the other end, and once more on the way
back. *Bare gRPC* sends as many bytes on a bidirectional stream of the same gRPC with the same TLS, and looks
at none of them. Both run in turn, in short blocks, and the medians over blocks count. At least 70 % are asked
for. Training asks from another thread than the one in which gRPC runs. A bare stream that is used so is in
the columns "other thread".

{speed}

A small message has fixed costs beside its bytes. Packing and unpacking at both ends take 0.2 to 0.3 ms
together, and the way from thread to thread and back 0.1 to 0.2 ms. For 1 MB, the four copies between tensors
and frames take about 0.6 ms. Tensors get memory of their own on purpose: who keeps one keeps no frame, and
who writes to one harms no frame.

## Rounds

The small CNN on digits, cut 2. The overhead of a round is what it takes on the wall at the fed server, less
the compute of the slowest device and of the edge server. At most 10 ms a round and device are asked for. All
processes share the cores of this machine, so with many devices a round mostly waits for a core. Medians over
rounds after the first interval.

{rounds}

## Control messages of an interval

What the fed server waits for (medians, b = 1), with sub-models of 20 kB in `begin` and `give`. The last
column is all that the end of an interval adds to the two rounds beside it: these messages, the plan, and the
checkpoints of both servers.

{messages}
"""


def report(quick: bool) -> str:
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        speed = throughput(Path(folder), quick=quick)
    table, messages = fleets(DEVICES[:-1] if quick else DEVICES, ROUNDS)
    return REPORT.format(
        date=datetime.date.today(),
        hardware=_hardware(),
        torch=torch.__version__,
        grpc=grpc.__version__,
        before=before,
        after=os.getloadavg()[0],
        speed="\n".join(speed),
        rounds="\n".join(table),
        messages="\n".join(messages),
    )


def _hardware() -> str:
    return f"{os.cpu_count()}-core {platform.machine()}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    text = report(arguments.quick)
    path = HERE / f"deploy_{_hardware().replace(' ', '-')}_{datetime.date.today()}.md"
    path.write_text(text)
    print(text, path, sep="\n")


if __name__ == "__main__":
    main()
