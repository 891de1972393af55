"""Train every fixed plan of a grid, or with plans that are made during training, until a target is reached.

    python -m benchmarks.hindsight digits-iid --what grid --seeds 0,1,2     # plans alike for all devices
    python -m benchmarks.hindsight digits-iid --what plans --seeds 0,1,2    # HASFL and other strategies
    python -m benchmarks.hindsight.report                                   # tables and pictures

Settings: digits-iid, digits-shards, digits-late (small CNN, on a CPU; the last one to 98 %), vgg-iid,
vgg-shards (VGG-16 on CIFAR-10, on a GPU; the data are `cifar10`, or a file named by --data). Results go to
benchmarks/hindsight/results, a file for each setting, kind of training and seed. A new training replaces the
same training in its file; all other trainings in the file stay. Where the running mean is served, the last
model is evaluated too; serving does not change training.
"""

import argparse
import gzip
import json
import multiprocessing as mp
import queue
import time
from pathlib import Path
from typing import Any

from benchmarks.hindsight.settings import RESULTS, SETTINGS, Task, contestants, grid
from benchmarks.hindsight.training import Outcome, work

Identity = tuple[Any, ...]
POLL_SECONDS = 2  # between two looks at whether the workers are still alive


def run(tasks: list[Task], path: Path, *, processes: int, limit: float) -> None:
    """Train all tasks, several at once; after `limit` seconds, keep the trainings that are complete."""
    context = mp.get_context("spawn")
    waiting: mp.Queue[Task] = context.Queue()
    outcomes: mp.Queue[Outcome] = context.Queue()
    for task in tasks:
        waiting.put(task)
    workers = [context.Process(target=work, args=(waiting, outcomes), daemon=True) for _ in range(processes)]
    for worker in workers:
        worker.start()
    deadline, left, kept = time.monotonic() + limit, len(tasks), load(path)
    while left and time.monotonic() < deadline and any(w.is_alive() for w in workers):
        try:
            outcome = outcomes.get(timeout=POLL_SECONDS)
        except queue.Empty:
            continue
        left -= 1
        kept[identity(outcome)] = outcome
        save(list(kept.values()), path)
    for worker in workers:
        worker.terminate()


def identity(outcome: Outcome) -> Identity:
    """The fields that tell a training from others with the same setting and seed."""
    names = ("strategy", "fleet", "serve", "constants")
    return *(outcome[name] for name in names), outcome.get("way", "over time")


def load(path: Path) -> dict[Identity, Outcome]:
    """The trainings that a file holds; none where there is no file."""
    if not path.exists():
        return {}
    with gzip.open(path, "rt") as file:
        return {identity(outcome): outcome for outcome in json.load(file)}


def save(outcomes: list[Outcome], path: Path) -> None:
    """Write trainings as compressed JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        json.dump(outcomes, file)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("setting", choices=list(SETTINGS))
    parser.add_argument("--what", choices=["grid", "plans"], default="grid")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--data", help="another name or file for the data")
    parser.add_argument(
        "--only", nargs="*", default=[""], help="train only strategies whose name contains one of these"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which to stop")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder for the results")
    options = parser.parse_args()
    data = options.data or SETTINGS[options.setting].data
    make_tasks = grid if options.what == "grid" else contestants
    for seed in map(int, options.seeds.split(",")):
        every = make_tasks(options.setting, seed, data)
        tasks = [task for task in every if any(part in task.strategy for part in options.only)]
        path = options.out / f"{options.setting}_{options.what}_{seed}.json.gz"
        run(tasks, path, processes=options.processes, limit=options.limit)


if __name__ == "__main__":
    main()
