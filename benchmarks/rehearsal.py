"""Rehearse an unequal fleet on this machine: compare predicted and measured seconds, and strategies.

    python -m benchmarks.rehearsal --fleet four --strategies hasfl b=16+cut=2 --seconds 60
    python -m benchmarks.rehearsal --fleet eight --strategies b=16+cut=2 --rounds 40

The whole deployment runs: Flower, TLS, one process for each party. Devices wait out the rest of each step and
pace their streams, so they are as slow as the computers that they stand for. For each strategy the report has
the seconds of every step (hasfl clock), and the wall time until the loss on the test set was low enough.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from hasfl.deployment.flower.hosts import LocalFleet
from hasfl.deployment.orders import RunOrder
from hasfl.deployment.programs import WorkerSettings
from hasfl.deployment.samples import export_samples
from hasfl.record import RoundRecord
from hasfl.runs.request import RunRequest
from hasfl.runs.scenario import read_scenario
from hasfl.runs.store import RunFolder
from hasfl.runs.task import shared_data

Box = tuple[str, str]  # compute in FLOP/s and link in bit/s of a computer
FAST, GOOD, FAIR, SLOW = "200 MFLOPS", "100 MFLOPS", "50 MFLOPS", "25 MFLOPS"
FLEETS: dict[str, list[Box]] = {
    "four": [(FAST, "4 Mbps"), (GOOD, "2 Mbps"), (FAIR, "1 Mbps"), (SLOW, "400 kbps")],
    "eight": [
        *[(FAST, "4 Mbps"), (FAST, "400 kbps"), (GOOD, "2 Mbps"), (GOOD, "1 Mbps")],
        *[(FAIR, "4 Mbps"), (FAIR, "1 Mbps"), (SLOW, "2 Mbps"), (SLOW, "400 kbps")],
    ],
    "real": [("", "")] * 4,  # nothing is slowed down: processes share this machine
}
PATIENCE = 180.0  # time limit for the parties to connect, in seconds
LOOK_SECONDS = 0.5  # seconds between two checks whether the run has finished
LEVELS = (1.0, 0.7, 0.5, 0.3)  # losses on the test set to which the time is measured
SCENARIO = """seed = {seed}
[data]
name = "digits"
[fleet]
devices = {devices}
[training]
interval = {interval}
learning_rate = {rate}
serve = "last"
[stop]
rounds = {rounds}
{seconds}
"""


def rehearse(folder: Path, arguments: argparse.Namespace) -> None:
    """Train once with each strategy on the same fleet, and print the report."""
    boxes = FLEETS[arguments.fleet]
    written = folder / "scenario.toml"
    seconds = f"seconds = {arguments.seconds}" if arguments.seconds else ""
    values = {name: getattr(arguments, name) for name in ("seed", "interval", "rate", "rounds")}
    written.write_text(SCENARIO.format(devices=len(boxes), seconds=seconds, **values))
    scenario = read_scenario(written)
    fleet = scenario.draw()
    data, shares = shared_data(scenario, fleet.names, folder=folder)
    *own, test = export_samples(data, shares, fleet.names, folder / "data")
    devices = [
        WorkerSettings(data=str(file), slow_to=slow_to, link=link)
        for file, (slow_to, link) in zip(own, boxes, strict=True)
    ]
    with LocalFleet(folder / "fleet", devices, test=str(test)) as running:
        for number, strategy in enumerate(arguments.strategies):
            path = folder / f"run-{number}"
            began, load = time.monotonic(), os.getloadavg()[0]
            _wait_for(running, _order(written, path, strategy, arguments, len(boxes)))
            load = (load + os.getloadavg()[0]) / 2
            print(f"\n## {strategy}, {time.monotonic() - began:.0f} s, load {load:.1f}\n", flush=True)
            subprocess.run([sys.executable, "-m", "hasfl", "clock", str(path)], check=False)
            print(_goals(path), flush=True)


def _order(
    scenario: Path, path: Path, strategy: str, arguments: argparse.Namespace, devices: int
) -> RunOrder:
    request = RunRequest.of(
        scenario, path.parent, strategy_name=strategy, seed=arguments.seed, name=path.name
    )
    return RunOrder(request=request, devices=devices, patience=PATIENCE)


def _wait_for(running: LocalFleet, order: RunOrder) -> None:
    number = running.submit(order)
    while not (found := next(run for run in running.control.runs() if run.number == number)).finished:
        time.sleep(LOOK_SECONDS)
    if "complete" not in f"{found}".lower():
        print(found, flush=True)


def _goals(path: Path) -> str:
    """A table of wall seconds until the loss on the test set was at most each of `LEVELS`."""
    with RunFolder.open(path) as folder:
        records = folder.records()
    times = " | ".join(_first(records, level) for level in LEVELS)
    last = records[-1]
    wall = last.measured.clock if last.measured else 0.0
    plans = sorted({f"b = {r.plan.batch_sizes.tolist()}, cuts = {r.plan.cuts.tolist()}" for r in records})
    return (
        f"\n| {' | '.join(f'loss {level:g}' for level in LEVELS)} | rounds | wall s | virtual s |\n"
        f"|{'--:|' * (len(LEVELS) + 3)}\n"
        f"| {times} | {last.round} | {wall:.1f} | {last.clock:.1f} |\n\n"
        + "\n".join(f"- {plan}" for plan in plans[:8])
    )


def _first(records: Sequence[RoundRecord], level: float) -> str:
    for record in records:
        if record.test_loss is not None and record.test_loss <= level and record.measured is not None:
            return f"{record.measured.clock:.1f} s"
    return "not reached"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fleet", choices=FLEETS, default="four")
    parser.add_argument("--strategies", nargs="+", default=["hasfl", "b=16+cut=2"])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, help="of virtual time, after which training ends too")
    parser.add_argument("--interval", type=int, default=5)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a new folder for runs and logs")
    arguments = parser.parse_args()
    if arguments.keep:
        arguments.keep.mkdir(mode=0o700)
        rehearse(arguments.keep, arguments)
    else:
        with tempfile.TemporaryDirectory() as folder:
            rehearse(Path(folder), arguments)


if __name__ == "__main__":
    main()
