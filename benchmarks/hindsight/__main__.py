"""Trains every fixed plan of a grid, or strategies that plan during training, until a target is reached.

    python -m benchmarks.hindsight digits-iid --what grid           # plans alike for all devices
    python -m benchmarks.hindsight digits-iid --what plans          # HASFL and other strategies
    python -m benchmarks.hindsight vgg-iid --what plans --contest main --give-up 3    # few trainings, short
    python -m benchmarks.hindsight vgg-iid vgg-shards --what plans --only "hasfl narrow mean" "proportional"
    python -m benchmarks.hindsight digits-iid --what grid --only "b=1 cut=2" b=4
    python -m benchmarks.hindsight.report                           # tables and pictures

Settings: digits-... (small CNN, on a CPU), vgg-... (VGG-16 on CIFAR-10) and resnet-... (ResNet-18 on
CIFAR-100), both on a GPU; the data are `cifar10` or `cifar100`, or a file named by --data. `settings.py`
defines the settings. Results go to benchmarks/hindsight/results, a file for each setting, kind of training
and seed. A new training replaces the same training in its file; all other trainings in the file stay. If
the running mean is served, the last model is evaluated too; serving does not change training.
"""

import argparse
import gzip
import json
import multiprocessing as mp
import queue
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.hindsight.runs import optimum, read_results
from benchmarks.hindsight.settings import RESULTS, SETTINGS, Task, contestants, grid, main_contest
from benchmarks.hindsight.training import Outcome, told, work

Identity = tuple[Any, ...]
POLL_SECONDS = 2  # seconds between two checks whether workers are alive; chosen by hand


def run(tasks: list[Task], folder: Path, what: str, *, processes: int, limit: float) -> None:
    """Train all tasks in several processes; after `limit` seconds, keep only the complete trainings."""
    context = mp.get_context("spawn")
    waiting: mp.Queue[Task] = context.Queue()
    outcomes: mp.Queue[Outcome] = context.Queue()
    for task in tasks:
        waiting.put(task)
    workers = [context.Process(target=work, args=(waiting, outcomes), daemon=True) for _ in range(processes)]
    for worker in workers:
        worker.start()
    deadline, left = time.monotonic() + limit, len(tasks)
    while left and time.monotonic() < deadline and any(w.is_alive() for w in workers):
        try:
            outcome = outcomes.get(timeout=POLL_SECONDS)
        except queue.Empty:
            continue
        left -= 1
        path = folder / f"{outcome['setting']}_{what}_{outcome['seed']}.json.gz"
        save(list((load(path) | {identity(outcome): outcome}).values()), path)
        print(told(outcome), flush=True)
    for worker in workers:
        worker.terminate()


def identity(outcome: Outcome) -> Identity:
    """The fields that distinguish trainings with the same setting and seed."""
    return tuple(outcome[name] for name in ("strategy", "fleet", "serve", "constants"))


def load(path: Path) -> dict[Identity, Outcome]:
    """Read the trainings in a file; empty if there is no file."""
    if not path.exists():
        return {}
    with gzip.open(path, "rt") as file:
        return {identity(outcome): outcome for outcome in json.load(file)}


def save(outcomes: list[Outcome], path: Path) -> None:
    """Write trainings into a file, as compressed JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".new")
    with gzip.open(unfinished, "wt") as file:
        json.dump(outcomes, file)
    unfinished.replace(path)


def picked(tasks: Iterable[Task], only: Sequence[str]) -> list[Task]:
    """The tasks that have all words of at least one of the phrases; every task if there is no phrase."""
    every = list(tasks)
    known = {word for task in every for word in task.words}
    unknown = {word for phrase in only for word in phrase.split()} - known
    if unknown:
        raise SystemExit(
            f"--only has no task with {', '.join(sorted(unknown))}: choose from {' '.join(sorted(known))}"
        )
    return [task for task in every if not only or any(set(p.split()) <= task.words for p in only)]


def bounded(task: Task, results: Path, factor: float) -> Task:
    """The task, limited to `factor` times the seconds of the best fixed plan, if that is known."""
    fixed = read_results(results, task.setting)
    target = SETTINGS[task.setting].targets[1]
    best = optimum(fixed, target, task.serve, task.fleet, seeds=[task.seed])
    return task if best is None else replace(task, most_seconds=factor * best.seconds)


def arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("settings", nargs="+", choices=list(SETTINGS), metavar="setting")
    parser.add_argument("--what", choices=["grid", "plans"], default="grid")
    parser.add_argument("--contest", choices=["main", "all"], default="all", help="which plans are trained")
    parser.add_argument("--seeds", help="such as 0,1; otherwise those of the setting")
    parser.add_argument("--data", help="another name or file for the data")
    only = 'train only tasks with all words of a phrase, such as "hasfl wide" or "b=1 cut=2"'
    parser.add_argument("--only", nargs="*", default=[], metavar="PHRASE", help=only)
    give_up = "end plans after this many times the virtual seconds of the best fixed plan, where it is known"
    parser.add_argument("--give-up", type=float, metavar="FACTOR", help=give_up)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which to stop")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder for the results")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    tasks = [task for name in options.settings for task in picked(tasks_of(name, options), options.only)]
    if options.what == "plans" and options.give_up is not None:
        tasks = [bounded(task, RESULTS, options.give_up) for task in tasks]
    run(tasks, options.out, options.what, processes=options.processes, limit=options.limit)


def tasks_of(name: str, options: argparse.Namespace) -> Iterator[Task]:
    """The tasks of a setting, for the seeds, the kind of training and the data of the command line."""
    of_plans = main_contest if options.contest == "main" else contestants
    make_tasks = grid if options.what == "grid" else of_plans
    setting = SETTINGS[name]
    for seed in map(int, options.seeds.split(",")) if options.seeds else setting.seeds:
        yield from make_tasks(name, seed, options.data or setting.data)


if __name__ == "__main__":
    main()
