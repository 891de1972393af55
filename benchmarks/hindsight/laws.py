"""Fits the law of rounds to trained runs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from benchmarks.hindsight.runs import Floats
from benchmarks.hindsight.settings import Cell

NOISES = (1e-2, 1e4)  # samples: the limits of a fitted noise. Chosen by hand, far beyond all batch sizes.
START_NOISE, START_DRIFT = 8.0, 8.0  # start of a fit: noise in samples, and drift. Chosen by hand.
FEWEST_FOR_CONSTANTS = 6  # least number of plans for a fit, which has four unknowns
TOLERANCE = 1e-12  # relative tolerance at which a fit stops


# ── the law of rounds ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Law:
    """The law R = R∞ (1 + s_J/b) of rounds R with batch size b, for each cut J."""

    endless: float  # R∞
    noise: Mapping[int, float]  # s_J in samples, by cut
    misfit: Mapping[int, float]  # largest relative error of the fitted rounds, by cut


def fitted_law(rounds: Mapping[Cell, float]) -> Law | None:
    """Fit one R∞ and an s_J for each cut to the plans that reached the target; None if they are too few.

    The fit minimises the squared errors of ln R. Its unknowns are ln R∞ and ln s_J for each cut.
    """
    reached = {cell: r for cell, r in rounds.items() if math.isfinite(r)}
    cuts = sorted({cut for _, cut in reached})
    if len(reached) < len(cuts) + 2:
        return None
    inverse = np.array([1 / b for b, _ in reached])
    which = np.array([cuts.index(cut) for _, cut in reached])
    real = np.log(list(reached.values()))

    def errors(x: Floats) -> Floats:
        fitted: Floats = x[0] + np.log1p(np.exp(x[1:])[which] * inverse)
        return fitted - real

    start = np.array([real.min(), *np.full(len(cuts), math.log(START_NOISE))])
    low, high = np.log(NOISES)
    limits = ([-np.inf] + [low] * len(cuts), [np.inf] + [high] * len(cuts))
    fit = least_squares(errors, start, bounds=limits, xtol=TOLERANCE, ftol=TOLERANCE)
    misfit = np.expm1(np.abs(errors(fit.x)))
    return Law(
        endless=math.exp(fit.x[0]),
        noise=dict(zip(cuts, np.exp(fit.x[1:]).tolist(), strict=True)),
        misfit={cut: float(misfit[which == k].max()) for k, cut in enumerate(cuts)},
    )


def shared_law(rounds: Mapping[Cell, float]) -> Law | None:
    """Fit one R∞ and an s_J for each cut to plans with batches of two samples or more.

    A private batch norm that sees a single sample costs extra rounds, which are not noise.
    """
    return fitted_law({cell: r for cell, r in rounds.items() if cell[0] > 1})


def laws_by_cut(rounds: Mapping[Cell, float]) -> dict[int, Law | None]:
    """Fit a law for each cut alone; None if fewer than three plans with this cut reached the target."""
    cuts = sorted({cut for _, cut in rounds})
    return {J: shared_law({cell: r for cell, r in rounds.items() if cell[1] == J}) for J in cuts}


def single_sample_factor(rounds: Mapping[Cell, float], law: Law | None, cut: int) -> float:
    """Rounds with single samples over those by a law; NaN if the law lacks the cut, or there is no plan."""
    if law is None or cut not in law.noise or (1, cut) not in rounds:
        return math.nan
    return rounds[1, cut] / (law.endless * (1 + law.noise[cut]))


@dataclass(frozen=True, slots=True)
class FittedConstants:
    """The constants of R = R∞ (1 + skew σ_J + noise/b (1 + drift σ_J)), where σ_J is the share of the layers
    1 to J in the drift.
    """

    endless: float  # R∞
    noise: float
    drift: float  # drift of the whole model
    skew: float  # skew of the whole model
    noise_error: float  # standard error of ln noise, from the scatter of the rounds around the law
    drift_error: float  # standard error of ln drift
    misfit: float  # largest relative error of the fitted rounds


def fitted_constants(
    rounds: Mapping[Cell, float], share_upto: Mapping[int, float], *, skewed: bool
) -> FittedConstants | None:
    """Fit the constants to the rounds of fixed plans, given σ_J; None if the plans are too few.

    Plans with single samples are left out, as for `shared_law`. Without skew, all cuts have one R∞.
    """
    reached = {
        cell: r for cell, r in rounds.items() if math.isfinite(r) and cell[0] > 1 and cell[1] in share_upto
    }
    if len(reached) < FEWEST_FOR_CONSTANTS:
        return None
    inverse = np.array([1 / b for b, _ in reached])
    share = np.array([share_upto[cut] for _, cut in reached])
    real = np.log(list(reached.values()))

    def errors(x: Floats) -> Floats:
        endless, noise, drift, *skew = x
        cost = np.exp(noise) * inverse * (1 + np.exp(drift) * share)
        fitted: Floats = endless + np.log(1 + sum(skew) * share + cost)
        return fitted - real

    start = np.array([real.min(), math.log(START_NOISE), math.log(START_DRIFT)] + [1.0] * skewed)
    low, high = np.log(NOISES)
    limits = ([-np.inf, low, low] + [0.0] * skewed, [np.inf, high, high] + [np.inf] * skewed)
    fit = least_squares(errors, start, bounds=limits, xtol=TOLERANCE, ftol=TOLERANCE)
    endless, noise, drift = np.exp(fit.x[:3]).tolist()
    spread = np.linalg.pinv(fit.jac.T @ fit.jac) * 2 * fit.cost / (len(reached) - len(start))
    noise_error, drift_error = np.sqrt(np.diag(spread)[1:3]).tolist()
    return FittedConstants(
        endless=endless,
        noise=noise,
        drift=drift,
        skew=float(sum(fit.x[3:])),
        noise_error=noise_error,
        drift_error=drift_error,
        misfit=float(np.expm1(np.abs(errors(fit.x))).max()),
    )
