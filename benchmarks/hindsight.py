"""Is a plan good in hindsight? Every fixed plan of a grid, trained to a target, and those made on the way.

    python -m benchmarks.hindsight digits-iid --what grid --seeds 0,1,2     # every plan alike for all devices
    python -m benchmarks.hindsight digits-iid --what plans --seeds 0,1,2    # HASFL and others
    python -m benchmarks.hindsight_report                                   # tables and pictures

Settings: digits-iid, digits-shards, digits-late (small CNN, on a CPU; the last to 98 %), vgg-iid, vgg-shards
(VGG-16 on CIFAR-10, on a GPU; the data is `cifar10`, or a file given with --data). Results go to
benchmarks/hindsight_results, one file a setting, kind and seed; what a file has of other trainings stays
there. The rounds that a fixed plan needs do not depend on the fleet, so one grid serves every fleet. Both
kinds of served models are evaluated in every run; serving does not change training.
"""

import argparse
import gzip
import json
import math
import multiprocessing as mp
import queue
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hasfl import FleetRanges

if TYPE_CHECKING:
    from hasfl.engines.local import LocalEngine
    from hasfl.record import RoundRecord
    from hasfl.runner.simulation import Simulation

RESULTS = Path(__file__).parent / "hindsight_results"
BATCHES = (2, 4, 8, 16, 32, 64)
DEVICES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is trained, and how far."""

    data: str
    network: str
    partition: Literal["iid", "shards"]
    learning_rate: float
    cuts: tuple[int, ...]
    targets: tuple[float, float]  # the lower and the higher accuracy
    rounds: int  # at most
    evaluate_every: int = 15
    interval: int = 15
    augment: bool = False
    device: str = "cpu"
    patience: float = math.inf  # seconds of the narrow fleet that fixed plans have for the served last model


DIGITS = Setting(
    data="digits",
    network="small-cnn",
    partition="iid",
    learning_rate=0.05,
    cuts=(1, 2, 3, 4, 5),
    targets=(0.90, 0.95),
    rounds=600,
)
VGG = Setting(
    data="cifar10",
    network="vgg16",
    partition="iid",
    learning_rate=0.05,
    cuts=(1, 2, 4, 7, 10, 13),
    targets=(0.70, 0.75),
    rounds=2400,
    evaluate_every=30,
    augment=True,
    device="cuda",
)
SETTINGS = {
    "digits-iid": DIGITS,
    "digits-late": replace(DIGITS, targets=(0.95, 0.98)),
    "digits-shards": replace(DIGITS, partition="shards"),
    "vgg-iid": VGG,
    "vgg-shards": replace(VGG, partition="shards", targets=(0.40, 0.50), patience=120.0),
}
FLEETS = {
    "narrow": FleetRanges(devices=DEVICES),
    "wide": FleetRanges(devices=DEVICES, flops=(1e11, 2e12), up_rate=(1e7, 8e7), fed_up_rate=(1e7, 8e7)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One training."""

    setting: str
    seed: int
    strategy: str
    rounds: int  # at most
    data: str
    fleet: str = "narrow"  # Table I, or wide
    serve: str = "mean"
    constants: str | None = None
    plans: str = "over time"
    both: bool = False  # whether to go on until both kinds of served models have reached the higher target


def grid(name: str, seed: int, data: str) -> Iterator[Task]:
    """Every fixed plan; deep cuts with small batches are given up sooner."""
    setting = SETTINGS[name]
    for b in reversed(BATCHES):
        for cut in reversed(setting.cuts):
            rounds = setting.rounds if cut <= 4 or b > 4 else setting.rounds * 5 // 8
            strategy = f"fixed:b={b},cut={cut}"
            yield Task(setting=name, seed=seed, strategy=strategy, rounds=rounds, data=data, both=True)


def contestants(name: str, seed: int, data: str) -> Iterator[Task]:
    """HASFL in all its ways on both fleets, and its halves beside fixed ones."""
    task = Task(setting=name, seed=seed, strategy="hasfl", rounds=SETTINGS[name].rounds, data=data)
    for fleet in ("narrow", "wide"):
        yield replace(task, fleet=fleet)
        yield replace(task, fleet=fleet, plans="stay")
        yield replace(task, fleet=fleet, constants="paper")
        yield replace(task, fleet=fleet, serve="last")
        for strategy in ("habs+cut=4", "b=16+hams"):
            yield replace(task, fleet=fleet, strategy=strategy)
    yield replace(task, serve="last", plans="stay")


def train(task: Task) -> dict[str, Any]:
    """Train until the served model has reached the higher target, or rounds are used up."""
    simulation = prepared(task)
    began = time.perf_counter()
    evaluations: list[list[Any]] = []
    plans: list[list[Any]] = []
    readings: list[dict[str, Any]] = []
    for record in simulation.training.rounds():
        plan = [record.plan.batch_sizes.tolist(), record.plan.cuts.tolist()]
        if not plans or plans[-1][1:] != plan:
            plans.append([record.round, *plan])
        if record.constants is not None:
            readings.append({"round": record.round} | dict(record.constants))
        if record.accuracy is not None:
            last, mean = both_kinds(simulation.engine, record, task.serve)
            evaluations.append([record.round, record.clock, last, mean])
            if is_there(task, record.clock, last, mean or 0.0):
                break
    found: dict[str, Any] = {"evaluations": evaluations, "plans": plans, "readings": readings}
    found["way"] = task.plans  # whose name the plans have taken
    return asdict(task) | found | {"wall_seconds": time.perf_counter() - began}


def is_there(task: Task, clock: float, last: float, mean: float) -> bool:
    """Whether what counts has reached the higher target; the served last model may be waited for in vain."""
    setting = SETTINGS[task.setting]
    if not task.both:
        return (mean if task.serve == "mean" else last) >= setting.targets[1]
    return mean >= setting.targets[1] and (last >= setting.targets[1] or clock > setting.patience)


def prepared(task: Task) -> "Simulation":
    """The training of a task."""
    import torch

    from hasfl import Goal, Seeds, draw_fleet
    from hasfl.data import load_dataset, partition
    from hasfl.networks import network
    from hasfl.runner.simulation import simulate
    from hasfl.settings import Settings

    torch.set_num_threads(1)
    setting, seeds = SETTINGS[task.setting], Seeds(task.seed)
    data = load_dataset(task.data)
    torch.manual_seed(task.seed)
    settings = Settings(
        strategy=task.strategy,
        learning_rate=setting.learning_rate,
        interval=setting.interval,
        goal=Goal(rounds=task.rounds, accuracy=None if task.both else setting.targets[1]),
        evaluate_every=setting.evaluate_every,
        seed=task.seed,
        augment=setting.augment,
        device=setting.device,
        constants=task.constants,
        serve=task.serve,
        plans=task.plans,
    )
    shares = partition(data.y_train.numpy(), DEVICES, seeds, kind=setting.partition)
    fleet = draw_fleet(FLEETS[task.fleet], seeds)
    return simulate(network(setting.network), data, fleet, settings, shares=shares)


def both_kinds(engine: "LocalEngine", record: "RoundRecord", serve: str) -> tuple[float, float | None]:
    """Accuracy of the last model as it is, and of the running mean."""
    from hasfl.serving.evaluation import evaluate

    assert record.accuracy is not None
    if serve == "last":
        return record.accuracy, record.mean_accuracy
    last, _ = evaluate(engine.job.model, engine.state.mean(), engine.job.test, engine.job.sample_loss)
    return last, record.accuracy


def work(tasks: "mp.Queue[Task]", done: "mp.Queue[dict[str, Any]]") -> None:
    """Train what is left to do, one after the other."""
    while True:
        try:
            task = tasks.get_nowait()
        except queue.Empty:
            return
        found = train(task)
        done.put(found)
        clock, last, mean = found["evaluations"][-1][1:]
        print(
            f"{task.strategy} {task.fleet} {task.serve} {task.plans} {task.constants or ''} {task.seed}: "
            f"{clock:.4g} virtual s, last {last:.3f}, mean {mean}, {found['wall_seconds']:.0f} s",
            flush=True,
        )


def run(tasks: list[Task], out: Path, *, processes: int, limit: float) -> None:
    """Train all tasks, several at once, and keep what is ready when time is up."""
    context = mp.get_context("spawn")
    waiting: mp.Queue[Task] = context.Queue()
    done: mp.Queue[dict[str, Any]] = context.Queue()
    for task in tasks:
        waiting.put(task)
    workers = [context.Process(target=work, args=(waiting, done), daemon=True) for _ in range(processes)]
    for worker in workers:
        worker.start()
    deadline, left, kept = time.monotonic() + limit, len(tasks), load(out)
    while left and time.monotonic() < deadline and any(w.is_alive() for w in workers):
        try:
            found = done.get(timeout=2)
        except queue.Empty:
            continue
        left -= 1
        kept[identity(found)] = found
        save(list(kept.values()), out)
    for worker in workers:
        worker.terminate()


def identity(found: dict[str, Any]) -> tuple[Any, ...]:
    """What tells a training from others of its setting and seed."""
    names = ("strategy", "fleet", "serve", "constants")
    return *(found[name] for name in names), found.get("way", "over time")


def load(out: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Results that are there already."""
    if not out.exists():
        return {}
    with gzip.open(out, "rt") as file:
        return {identity(found): found for found in json.load(file)}


def save(found: list[dict[str, Any]], out: Path) -> None:
    """Write results, compressed."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(out, "wt") as file:
        json.dump(found, file)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("setting", choices=list(SETTINGS))
    parser.add_argument("--what", choices=["grid", "plans"], default="grid")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--data", help="another name or file for the data")
    parser.add_argument(
        "--only", nargs="*", default=[""], help="only strategies with one of these in the name"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which to stop")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    data = given.data or SETTINGS[given.setting].data
    make = grid if given.what == "grid" else contestants
    for seed in map(int, given.seeds.split(",")):
        every = make(given.setting, seed, data)
        tasks = [task for task in every if any(part in task.strategy for part in given.only)]
        out = given.out / f"{given.setting}_{given.what}_{seed}.json.gz"
        run(tasks, out, processes=given.processes, limit=given.limit)


if __name__ == "__main__":
    main()
