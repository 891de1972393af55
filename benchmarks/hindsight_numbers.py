"""What `benchmarks.hindsight` found, as numbers: rounds and seconds to targets.

A target that is not reached is reached at infinity: means stay honest, and such plans rank last, tied.
"""

import gzip
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.hindsight import DEVICES, FLEETS, SETTINGS, contestants, grid
from hasfl import Seeds, draw_fleet
from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.profile import Profile
from hasfl.profiling.shipped import shipped_layers
from hasfl.theory.latency import aggregation_latency, mean_round_latency, split_training_latency

Floats = NDArray[np.float64]
Cell = tuple[int, int]  # batch size and cut, alike for all devices
KINDS = ("mean", "last")  # of served models
COLUMN = {"last": 2, "mean": 3}  # of their accuracies in an evaluation: round, clock, last, mean
SEEDS = {name: (0,) if name.startswith("vgg") else (0, 1, 2) for name in SETTINGS}


# ── what was trained ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """One training."""

    setting: str
    seed: int
    strategy: str
    fleet: str
    serve: str
    constants: str | None
    way: str  # over time, or stay
    evaluations: Floats  # a row each
    plans: tuple[tuple[int, Plan], ...]  # with their first rounds
    readings: tuple[Mapping[str, Any], ...]

    @property
    def task(self) -> tuple[str, str, str, str | None, str]:
        """What tells it from others of its setting and seed."""
        return self.strategy, self.fleet, self.serve, self.constants, self.way

    def rounds_to(self, target: float, kind: str) -> float:
        """Rounds until the accuracy is there."""
        return self._crossing(0, target, kind)

    def seconds_to(self, target: float, kind: str) -> float:
        """Virtual seconds until the accuracy is there."""
        return self._crossing(1, target, kind)

    def _crossing(self, column: int, target: float, kind: str) -> float:
        """Between two evaluations only where the plan has not changed in between."""
        firsts = [first for first, _ in self.plans[1:]]
        changed = np.diff(np.searchsorted(firsts, self.evaluations[:, 0], side="right"), prepend=0) > 0
        return crossing(self.evaluations[:, column], self.evaluations[:, COLUMN[kind]], target, changed)

    def reading_before(self, target: float, kind: str) -> Mapping[str, Any] | None:
        """The last constants that were read before the target was reached."""
        before = [each for each in self.readings if each["round"] <= self.rounds_to(target, kind)]
        return before[-1] if before else None


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """All trainings of a setting."""

    setting: str
    fixed: Mapping[Cell, Mapping[int, Run]]  # by seed
    made: tuple[Run, ...]  # those whose plans were made on the way

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the fixed plans."""
        return tuple(sorted({seed for runs in self.fixed.values() for seed in runs}))

    def runs(self, **wanted: Any) -> list[Run]:
        """Trainings of the second sort with these properties, in the order of their seeds."""
        found = (run for run in self.made if all(getattr(run, k) == v for k, v in wanted.items()))
        return sorted(found, key=lambda run: run.seed)


def crossing(x: Floats, accuracy: Floats, target: float, broken: NDArray[np.bool_]) -> float:
    """Where the accuracy first reaches the target, linear between evaluations; infinite if nowhere.

    `broken` says after which of them the line before it must not be trusted.
    """
    there = np.flatnonzero(accuracy >= target)
    if not len(there):
        return math.inf
    k = int(there[0])
    if k == 0 or broken[k] or math.isnan(accuracy[k - 1]):
        return float(x[k])
    share = (target - accuracy[k - 1]) / (accuracy[k] - accuracy[k - 1])
    return float(x[k - 1] + share * (x[k] - x[k - 1]))


def read_results(folder: Path, setting: str) -> Results:
    """Everything that is there of a setting."""
    fixed: dict[Cell, dict[int, Run]] = {}
    for run in _runs(folder, setting, "grid"):
        fixed.setdefault(cell_of(run.strategy), {})[run.seed] = run
    return Results(setting, dict(sorted(fixed.items())), tuple(_runs(folder, setting, "plans")))


def cell_of(strategy: str) -> Cell:
    """Batch size and cut of a fixed plan, by its name."""
    b, cut = re.findall(r"\d+", strategy)
    return int(b), int(cut)


def _runs(folder: Path, setting: str, what: str) -> list[Run]:
    found: list[Run] = []
    for path in sorted(folder.glob(f"{setting}_{what}_*.json.gz")):
        with gzip.open(path, "rt") as file:
            found += map(_run, json.load(file))
    return found


def _run(row: Mapping[str, Any]) -> Run:
    task = {name: row[name] for name in ("strategy", "fleet", "serve", "constants")}
    return Run(
        **task,
        setting=row["setting"],
        seed=row["seed"],
        way=row.get("way", "over time"),
        evaluations=np.array(row["evaluations"], dtype=np.float64),
        plans=tuple((first, Plan(batches, cuts)) for first, batches, cuts in row["plans"]),
        readings=tuple(row["readings"]),
    )


def missing(results: Results) -> list[str]:
    """What was not trained, in words."""
    name, words = results.setting, []
    for seed in SEEDS[name]:
        wanted = [cell_of(task.strategy) for task in grid(name, seed, "")]
        lacking = [cell for cell in wanted if seed not in results.fixed.get(cell, {})]
        if lacking:
            listed = "all" if len(lacking) == len(wanted) else ", ".join(f"b={b} cut={c}" for b, c in lacking)
            words.append(f"fixed plans, seed {seed}: {listed}")
        there = {run.task for run in results.runs(seed=seed)}
        tasks = [(t.strategy, t.fleet, t.serve, t.constants, t.plans) for t in contestants(name, seed, "")]
        gone = [task for task in tasks if task not in there]
        if gone:
            listed = "all" if len(gone) == len(tasks) else "; ".join(in_words(task) for task in gone)
            words.append(f"plans made in training, seed {seed}: {listed}")
    return words


def in_words(task: tuple[str, str, str, str | None, str]) -> str:
    """A task without what is usual."""
    strategy, fleet, serve, constants, way = task
    unusual = [f"the {constants}'s constants"] * bool(constants) + ["plans that stay"] * (way == "stay")
    return ", ".join([strategy, f"{fleet} fleet", f"serves the {serve}", *unusual])


# ── seconds ──────────────────────────────────────────────────────────────────────────────────────────────


@cache
def fleet_of(name: str, seed: int) -> Fleet:
    """The fleet that a seed draws."""
    return draw_fleet(FLEETS[name], Seeds(seed))


@cache
def profile_of(setting: str) -> Profile:
    """The costs of the network that a setting trains."""
    layers = shipped_layers(SETTINGS[setting].network, classes=None, norm=None)
    assert layers is not None
    return Profile.of(layers)


def round_seconds(setting: str, plan: Plan, fleet: Fleet) -> float:
    """T_S + T_A/I."""
    profile = profile_of(setting)
    split = split_training_latency(plan, fleet, profile).total
    aggregation = aggregation_latency(plan, fleet, profile).total
    return mean_round_latency(split, aggregation, interval=SETTINGS[setting].interval)


@cache
def cell_seconds(setting: str, cell: Cell, fleet: str, seed: int) -> float:
    """Seconds of a round of a fixed plan."""
    plan = Plan.uniform(DEVICES, batch_size=cell[0], cut=cell[1])
    return round_seconds(setting, plan, fleet_of(fleet, seed))


def rounds_of(results: Results, cell: Cell, target: float, kind: str) -> dict[int, float]:
    """Rounds of a fixed plan, by seed."""
    return {seed: run.rounds_to(target, kind) for seed, run in results.fixed[cell].items()}


def mean_rounds(results: Results, target: float, kind: str) -> dict[Cell, float]:
    """Mean rounds of every fixed plan over its seeds."""
    return {
        cell: float(np.mean(list(rounds_of(results, cell, target, kind).values()))) for cell in results.fixed
    }


def seconds_of(results: Results, cell: Cell, target: float, kind: str, fleet: str) -> dict[int, float]:
    """Virtual seconds of a fixed plan, by seed."""
    rounds = rounds_of(results, cell, target, kind)
    return {seed: r * cell_seconds(results.setting, cell, fleet, seed) for seed, r in rounds.items()}


@dataclass(frozen=True, slots=True)
class Optimum:
    """The fixed plan that was best, seen from the end."""

    cell: Cell
    seconds: float


def optimum(
    results: Results,
    target: float,
    kind: str,
    fleet: str,
    *,
    seeds: Iterable[int] | None = None,
    among: Callable[[Cell], bool] = lambda cell: True,
) -> Optimum | None:
    """The one plan with the least mean seconds over the seeds, among those trained with all of them."""
    wanted = set(results.seeds if seeds is None else seeds)
    found = []
    for cell in filter(among, results.fixed):
        seconds = seconds_of(results, cell, target, kind, fleet)
        if wanted and wanted <= set(seconds):
            found.append(Optimum(cell, float(np.mean([seconds[seed] for seed in wanted]))))
    best = min(found, key=lambda each: each.seconds, default=None)
    return best if best is not None and best.seconds < math.inf else None
