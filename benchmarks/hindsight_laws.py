"""The law of rounds, fitted to what was trained; and rounds as constants foretold them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares
from scipy.stats import spearmanr

from benchmarks.hindsight import DEVICES, SETTINGS
from benchmarks.hindsight_numbers import Cell, Floats, Run, fleet_of, profile_of
from hasfl.constants import BoundConstants, Constants, MeasuredConstants
from hasfl.errors import TargetUnreachable
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.theory.laws import target_for_all
from hasfl.theory.objective import rounds_needed

NOISES = (1e-2, 1e4)  # samples, between which fits look


# ── the law of rounds ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Law:
    """R = R∞ (1 + s_J/b) for each cut J, and how far off it is at most."""

    endless: float
    noise: Mapping[int, float]
    misfit: Mapping[int, float]  # relative


def fitted_law(rounds: Mapping[Cell, float]) -> Law | None:
    """Least squares in logarithms with one R∞, over plans that reached the target."""
    reached = {cell: r for cell, r in rounds.items() if math.isfinite(r)}
    cuts = sorted({cut for _, cut in reached})
    if len(reached) < len(cuts) + 2:
        return None
    inverse = np.array([1 / b for b, _ in reached])
    which = np.array([cuts.index(cut) for _, cut in reached])
    seen = np.log(list(reached.values()))

    def errors(x: Floats) -> Floats:
        fitted: Floats = x[0] + np.log1p(np.exp(x[1:])[which] * inverse)
        return fitted - seen

    start = np.array([seen.min(), *np.full(len(cuts), math.log(8))])
    low, high = np.log(NOISES)
    limits = ([-np.inf] + [low] * len(cuts), [np.inf] + [high] * len(cuts))
    found = least_squares(errors, start, bounds=limits, xtol=1e-12, ftol=1e-12)
    misfit = np.expm1(np.abs(errors(found.x)))
    return Law(
        endless=math.exp(found.x[0]),
        noise=dict(zip(cuts, np.exp(found.x[1:]).tolist(), strict=True)),
        misfit={cut: float(misfit[which == k].max()) for k, cut in enumerate(cuts)},
    )


def laws_by_cut(rounds: Mapping[Cell, float]) -> dict[int, Law | None]:
    """A law for each cut on its own; none where fewer than three plans reached the target."""
    cuts = sorted({cut for _, cut in rounds})
    return {J: fitted_law({cell: r for cell, r in rounds.items() if cell[1] == J}) for J in cuts}


# ── forecasts ────────────────────────────────────────────────────────────────────────────────────────────


def constants_of(reading: Mapping[str, Any]) -> Constants:
    """Constants as they were read."""
    kind = MeasuredConstants if "noise" in reading else BoundConstants
    return kind(**{name: reading[name] for name in reading if name in kind.__dataclass_fields__})


def forecast(run: Run, reading: Mapping[str, Any], cells: Iterable[Cell]) -> dict[Cell, float]:
    """Rounds of fixed plans by the constants that a training read; ε by the rule of engines/observer.py."""
    setting, constants = SETTINGS[run.setting], constants_of(reading)
    how: dict[str, Any] = {"learning_rate": setting.learning_rate, "interval": setting.interval}
    fleet, profile = fleet_of(run.fleet, run.seed), profile_of(run.setting)
    target = target_for_all(constants, profile, devices=DEVICES, **how)
    problem = Problem(fleet=fleet, profile=profile, constants=constants, target=target, **how)
    return {cell: _rounds_or_never(cell, problem) for cell in cells}


def _rounds_or_never(cell: Cell, problem: Problem) -> float:
    try:
        return rounds_needed(Plan.uniform(DEVICES, batch_size=cell[0], cut=cell[1]), problem)
    except TargetUnreachable:
        return math.inf


def common_forecast(forecasts: Sequence[Mapping[Cell, float]]) -> dict[Cell, float]:
    """The geometric mean of what several trainings forecast."""
    return {cell: float(np.exp(np.mean([np.log(f[cell]) for f in forecasts]))) for cell in forecasts[0]}


@dataclass(frozen=True, slots=True)
class Judgement:
    """How good a forecast was."""

    spearman: float
    scale: float  # the median of real over forecast rounds
    median_factor: float  # off, once scaled
    worst_factor: float
    unreachable: int  # plans that it said would never reach the target
    plans: int
    reached: int  # of them


def judged(predicted: Mapping[Cell, float], real: Mapping[Cell, float]) -> Judgement | None:
    """A forecast against what came."""
    cells = [cell for cell in real if cell in predicted]
    said, came = (np.array([rounds[cell] for cell in cells]) for rounds in (predicted, real))
    both = np.isfinite(said) & np.isfinite(came)
    if both.sum() < 3:
        return None
    ratio = came[both] / said[both]
    scale = float(np.median(ratio))
    factors = np.exp(np.abs(np.log(ratio / scale)))
    rank = float(spearmanr(said, came).statistic)
    unreachable, reached = int(np.isinf(said).sum()), int(np.isfinite(came).sum())
    middle, worst = float(np.median(factors)), float(factors.max())
    return Judgement(rank, scale, middle, worst, unreachable, len(cells), reached)
