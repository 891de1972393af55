"""Compares predicted and measured seconds on a fleet with real limits only (Linux, as root).

    python -m benchmarks.real_limits --strategies b=16+cut=2 hasfl --rounds 30
    python -m benchmarks.real_limits --without-quotas        # only threads and priorities of the system

Each device is a process in a network namespace of its own. `tc` limits its link in both directions, and a
control group limits its share of a core. The edge server and the fed server have no limits. Namespaces,
links and groups are removed at the end.
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.worker_fleet import WorkerFleet, outside_steps, write_scenario
from hasfl.deployment.asking import party_name

GROUPS = Path("/sys/fs/cgroup/cpu")
PERIOD = 20_000  # µs; the kernel gives each group its share once in a period
SHARES = (0.4, 0.2, 0.1, 0.05)  # shares of a core; the kernel allows no less than 1 ms in a period
RATES = ("20mbit", "10mbit", "5mbit", "2mbit")
BURST, QUEUE = "4kb", "1mb"  # bytes that a link lets through at once, and bytes that may wait
INTERVAL = 5
NAME = f"hasfl{os.getpid() % 1000}"  # beginning of the names of namespaces, links and groups


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def namespace(index: int, rate: str) -> Iterator[str]:
    """A network namespace with a link to this machine, limited in both directions."""
    name, here, there = f"{NAME}-{index}", f"{NAME}h{index}", f"{NAME}d{index}"
    ip("netns", "add", name)
    try:
        ip("link", "add", here, "type", "veth", "peer", "name", there)
        ip("link", "set", there, "netns", name)
        ip("addr", "add", f"10.77.{index}.1/30", "dev", here)
        ip("link", "set", here, "up")
        ip("-n", name, "addr", "add", f"10.77.{index}.2/30", "dev", there)
        for device in (there, "lo"):
            ip("-n", name, "link", "set", device, "up")
        ip("-n", name, "route", "add", "default", "via", f"10.77.{index}.1")
        for words in (["-n", name, "qdisc", "add", "dev", there], ["qdisc", "add", "dev", here]):
            limit = ["root", "tbf", "rate", rate, "burst", BURST, "limit", QUEUE]
            subprocess.run(["tc", *words, *limit], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)
        subprocess.run(["ip", "link", "del", here], check=False, stderr=subprocess.DEVNULL)


@contextmanager
def quota(index: int, share: float, process: int) -> Iterator[None]:
    """A share of one core for a process and all its threads."""
    group = GROUPS / f"{NAME}-{index}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD))
        (group / "cpu.cfs_quota_us").write_text(str(round(share * PERIOD)))
        (group / "cgroup.procs").write_text(str(process))
        yield
    finally:
        for each in (group / "cgroup.procs").read_text().split():
            (GROUPS / "cgroup.procs").write_text(each)
        group.rmdir()


def compare(folder: Path, strategies: Sequence[str], rounds: int, quotas: bool) -> None:
    """Train with each strategy, and print the comparison of `hasfl clock`."""
    scenario = write_scenario(folder, devices=len(RATES), rounds=rounds, interval=INTERVAL)
    with ExitStack() as limits:
        spaces = [limits.enter_context(namespace(i, rate)) for i, rate in enumerate(RATES)]
        prefix = {i: ("ip", "netns", "exec", name) for i, name in enumerate(spaces)}
        hosts = ("10.77.0.1", "10.77.0.1")
        fleet = limits.enter_context(WorkerFleet(folder, scenario, hosts=hosts, prefix=prefix).running())
        if quotas:
            for i, share in enumerate(SHARES):
                limits.enter_context(quota(i, share, fleet.processes()[party_name(i)]))
        for number, strategy in zip(itertools.count(), strategies):
            records = fleet.train(strategy, f"run-{number}")
            outside = statistics.median(outside_steps(record) for record in records[INTERVAL:])
            print(f"\n## {strategy}, load {os.getloadavg()[0]:.1f}", flush=True)
            print(f"outside all steps: {1e3 * outside:.1f} ms a round", flush=True)
            subprocess.run(
                [sys.executable, "-m", "hasfl", "clock", str(folder / f"run-{number}")], check=False
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strategies", nargs="+", default=["b=16+cut=2"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--without-quotas", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), arguments.strategies, arguments.rounds, not arguments.without_quotas)


if __name__ == "__main__":
    main()
