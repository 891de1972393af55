"""Reads stored runs, and computes the rounds and the virtual seconds that they took to the targets.

A run that never reaches a target counts as infinitely many rounds. So a mean over seeds is infinite if one
seed fails, and all plans that fail share the last rank.
"""

import gzip
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.hindsight.settings import FLEETS, SETTINGS, Cell, main_contest
from hasfl import Seeds, draw_fleet
from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.profile import Profile
from hasfl.runs.model_costs import shipped_layers
from hasfl.theory.latency import aggregation_latency, mean_round_latency, split_training_latency

Floats = NDArray[np.float64]
KINDS = ("mean", "last")  # kinds of served models
# The columns of an evaluation: round, clock, accuracy of the last model, accuracy of the running mean, mean
# training loss since the evaluation before. The fourth is NaN in runs that serve the last model, unless an
# older version of hasfl trained them; the fifth is missing in older runs.
COLUMN = {"last": 2, "mean": 3}


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """One training."""

    setting: str
    seed: int
    strategy: str
    fleet: str
    serve: str
    constants: str | None
    evaluations: Floats  # a row for each evaluation
    plans: tuple[tuple[int, Plan], ...]  # plans, each with its first round
    gave_up: bool  # whether the training ended early because it took far longer than the best fixed plan

    @property
    def task(self) -> tuple[str, str, str, str | None]:
        """The fields that distinguish runs with the same setting and seed."""
        return self.strategy, self.fleet, self.serve, self.constants

    def rounds_to(self, target: float, kind: str) -> float:
        """Rounds until a kind of served model has the target accuracy."""
        return self._crossing(0, target, kind)

    def seconds_to(self, target: float, kind: str) -> float:
        """Virtual seconds until a kind of served model has the target accuracy."""
        return self._crossing(1, target, kind)

    def _crossing(self, column: int, target: float, kind: str) -> float:
        """The rounds or seconds to the target, interpolated between evaluations with the same plan."""
        firsts = [first for first, _ in self.plans[1:]]
        changed = np.diff(np.searchsorted(firsts, self.evaluations[:, 0], side="right"), prepend=0) > 0
        return crossing(self.evaluations[:, column], self.evaluations[:, COLUMN[kind]], target, changed)


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """All runs of a setting."""

    setting: str
    fixed: Mapping[Cell, Mapping[int, Run]]  # runs of each fixed plan, by seed
    made: tuple[Run, ...]  # runs whose plans were made during training

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the fixed plans."""
        return tuple(sorted({seed for runs in self.fixed.values() for seed in runs}))

    @property
    def whole_seeds(self) -> tuple[int, ...]:
        """The seeds with which most fixed plans were trained; other seeds have only some of the plans."""
        plans = {seed: len(self.cells([seed])) for seed in self.seeds}
        return tuple(seed for seed in self.seeds if plans[seed] == max(plans.values()))

    def cells(self, seeds: Iterable[int]) -> tuple[Cell, ...]:
        """The fixed plans that were trained with all of these seeds."""
        wanted = set(seeds)
        return tuple(cell for cell, runs in self.fixed.items() if wanted <= set(runs))

    def runs(self, **fields: Any) -> list[Run]:
        """The runs with these fields whose plans were made during training, sorted by seed."""
        matching = (run for run in self.made if all(getattr(run, k) == v for k, v in fields.items()))
        return sorted(matching, key=lambda run: run.seed)


def crossing(x: Floats, accuracy: Floats, target: float, broken: NDArray[np.bool_]) -> float:
    """The x at which the accuracy first reaches the target; infinite if it never does.

    Between two evaluations the accuracy is taken as linear, unless `broken` is true for the second one: then
    the second one's x is returned.
    """
    reached = np.flatnonzero(accuracy >= target)
    if not len(reached):
        return math.inf
    k = int(reached[0])
    if k == 0 or broken[k] or math.isnan(accuracy[k - 1]):
        return float(x[k])
    share = (target - accuracy[k - 1]) / (accuracy[k] - accuracy[k - 1])
    return float(x[k - 1] + share * (x[k] - x[k - 1]))


def read_results(folder: Path, setting: str) -> Results:
    """Read all runs of a setting from a folder."""
    fixed: dict[Cell, dict[int, Run]] = {}
    for run in _runs(folder, setting, "grid"):
        fixed.setdefault(cell_of(run.strategy), {})[run.seed] = run
    return Results(setting, dict(sorted(fixed.items())), tuple(_runs(folder, setting, "plans")))


def cell_of(strategy: str) -> Cell:
    """The batch size and the cut in the name of a fixed plan."""
    b, cut = re.findall(r"\d+", strategy)
    return int(b), int(cut)


def _runs(folder: Path, setting: str, what: str) -> list[Run]:
    runs: list[Run] = []
    for path in sorted(folder.glob(f"{setting}_{what}_*.json.gz")):
        with gzip.open(path, "rt") as file:
            runs += map(_run, json.load(file))
    return runs


def _run(row: Mapping[str, Any]) -> Run:
    task = {name: row[name] for name in ("strategy", "fleet", "serve", "constants")}
    return Run(
        **task,
        setting=row["setting"],
        seed=row["seed"],
        evaluations=np.array(row["evaluations"], dtype=np.float64),  # None becomes NaN
        plans=tuple((first, Plan(batches, cuts)) for first, batches, cuts in row["plans"]),
        gave_up=row.get("gave_up", False),
    )


def missing(results: Results) -> list[str]:
    """The missing fixed plans and runs of the main contest in words, a line for each seed."""
    name, lines = results.setting, []
    for seed in SETTINGS[name].seeds:
        cells = SETTINGS[name].cells(seed)
        untrained = [cell for cell in cells if seed not in results.fixed.get(cell, {})]
        if untrained:
            words = ", ".join(f"b={b} cut={c}" for b, c in untrained)
            lines.append(f"fixed plans, seed {seed}: {'all' if len(untrained) == len(cells) else words}")
        trained = {run.task for run in results.runs(seed=seed)}
        tasks = [(t.strategy, t.fleet, t.serve, t.constants) for t in main_contest(name, seed, "")]
        absent = [task for task in tasks if task not in trained]
        if absent:
            words = "all" if len(absent) == len(tasks) else "; ".join(in_words(task) for task in absent)
            lines.append(f"plans made in training, seed {seed}: {words}")
    return lines


def in_words(task: tuple[str, str, str, str | None]) -> str:
    """A task in words; options with their default are left out."""
    strategy, fleet, serve, constants = task
    options = [f"the {constants}'s constants"] * bool(constants)
    return ", ".join([strategy, f"{fleet} fleet", f"serves the {serve}", *options])


# ── seconds ──────────────────────────────────────────────────────────────────────────────────────────────


@cache
def fleet_of(setting: str, name: str, seed: int) -> Fleet:
    """The fleet that is drawn with a seed, as large as the setting says."""
    return draw_fleet(replace(FLEETS[name], devices=SETTINGS[setting].devices), Seeds(seed))


@cache
def profile_of(setting: str) -> Profile:
    """The costs of the network that a setting trains."""
    name, classes = SETTINGS[setting].network, SETTINGS[setting].classes
    layers = None if name == "small-vit" else shipped_layers(name, classes=classes, norm=None)
    if layers is None:  # hasfl has no table of this network
        from benchmarks.hindsight.training import network_of
        from hasfl.models.costs import count_layers

        layers = count_layers(network_of(SETTINGS[setting]))
    return Profile.of(layers)


def round_seconds(setting: str, plan: Plan, fleet: Fleet) -> float:
    """The mean seconds of a round, with its share of an aggregation: T_S + T_A/I."""
    profile = profile_of(setting)
    split = split_training_latency(plan, fleet, profile).total
    aggregation = aggregation_latency(plan, fleet, profile).total
    return mean_round_latency(split, aggregation, interval=SETTINGS[setting].interval)


@cache
def cell_seconds(setting: str, cell: Cell, fleet: str, seed: int) -> float:
    """The mean seconds of a round under a fixed plan."""
    plan = Plan.uniform(SETTINGS[setting].devices, batch_size=cell[0], cut=cell[1])
    return round_seconds(setting, plan, fleet_of(setting, fleet, seed))


def rounds_of(results: Results, cell: Cell, target: float, kind: str) -> dict[int, float]:
    """The rounds of a fixed plan to a target, by seed."""
    return {seed: run.rounds_to(target, kind) for seed, run in results.fixed[cell].items()}


def mean_rounds(results: Results, target: float, kind: str) -> dict[Cell, float]:
    """The mean rounds of fixed plans to a target, over the seeds with which most plans were trained."""
    seeds = results.whole_seeds
    rounds = {cell: rounds_of(results, cell, target, kind) for cell in results.cells(seeds)}
    return {cell: float(np.mean([by_seed[seed] for seed in seeds])) for cell, by_seed in rounds.items()}


def seconds_of(results: Results, cell: Cell, target: float, kind: str, fleet: str) -> dict[int, float]:
    """The virtual seconds of a fixed plan to a target, by seed."""
    rounds = rounds_of(results, cell, target, kind)
    return {seed: r * cell_seconds(results.setting, cell, fleet, seed) for seed, r in rounds.items()}


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best fixed plan, which is known only after training all of them."""

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
    """The fixed plan with the least mean seconds over the seeds, among plans trained with all seeds."""
    wanted = tuple(results.seeds if seeds is None else seeds)
    optima = []
    for cell in filter(among, results.cells(wanted) if wanted else ()):
        seconds = seconds_of(results, cell, target, kind, fleet)
        optima.append(Optimum(cell, float(np.mean([seconds[seed] for seed in wanted]))))
    best = min(optima, key=lambda optimum: optimum.seconds, default=None)
    return best if best is not None and best.seconds < math.inf else None


def undecided(results: Results, target: float, kind: str) -> list[str]:
    """Fixed plans that missed the target, but ended before the best plan: a line for each fleet and seed.

    With more rounds, such a plan might have been better.
    """
    lines = []
    for fleet, seed in itertools.product(FLEETS, results.seeds):
        best = optimum(results, target, kind, fleet, seeds=[seed])
        if best is None:
            continue
        early = []
        for cell in results.cells([seed]):
            run, seconds = results.fixed[cell][seed], cell_seconds(results.setting, cell, fleet, seed)
            missed = math.isinf(run.rounds_to(target, kind))
            if missed and run.evaluations[-1, 0] * seconds < best.seconds:
                early.append(f"b={cell[0]} cut={cell[1]}")
        if early:
            lines.append(f"{fleet} fleet, seed {seed}: {', '.join(early)}")
    return lines
