"""Every plan of a tiny problem: the oracle. Written from the formulas, without the planners' tables."""

from collections.abc import Iterator
from itertools import product

import numpy as np

from hasfl.arrays import IntN
from hasfl.errors import InputError
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.profile import MeasuredStats
from hasfl.theory.rounds import Floats

MOST_PLANS = 50_000_000
CHUNK = 1 << 18


def best_of_all(problem: Problem) -> tuple[Plan, float] | None:
    """The best of all plans and its Θ; None if none keeps the constraints."""
    options = problem.max_batch * len(problem.profile)
    devices = len(problem.fleet)
    if options**devices > MOST_PLANS:
        raise InputError(f"{options}^{devices} plans are too many to try: enumerate at most {MOST_PLANS:,}")
    best: tuple[Plan, float] | None = None
    for batch_sizes, cuts in all_plans(problem):
        values = objectives(problem, batch_sizes, cuts)
        k = int(values.argmin())
        if np.isfinite(values[k]) and (best is None or values[k] < best[1]):
            best = Plan(batch_sizes[k], cuts[k]), float(values[k])
    return best


def all_plans(problem: Problem) -> Iterator[tuple[IntN, IntN]]:
    """All batch sizes and cuts, as arrays (plans, N), in chunks."""
    choices = np.array(list(product(range(1, problem.max_batch + 1), range(1, len(problem.profile) + 1))))
    total, devices = len(choices) ** len(problem.fleet), len(problem.fleet)
    for first in range(0, total, CHUNK):
        number = np.arange(first, min(first + CHUNK, total))
        digits = np.array(np.unravel_index(number, (len(choices),) * devices)).T
        yield choices[digits, 0], choices[digits, 1]


def objectives(problem: Problem, batch_sizes: IntN, cuts: IntN) -> Floats:
    """Θ of plans (K, N), Eq. (43) term by term; infinite where C1 or C4 is broken."""
    fleet, profile = problem.fleet, problem.profile
    b, j, N = batch_sizes, cuts - 1, len(fleet)
    rho, varpi = profile.forward_flops_upto, profile.backward_flops_upto
    bits = profile.param_bits_upto[j] + profile.optimizer_bits_upto[j]
    up = (b * rho[j] / fleet.flops + b * profile.activation_bits_at[j] / fleet.up_rate).max(axis=1)
    down = (b * profile.gradient_bits_at[j] / fleet.down_rate + b * varpi[j] / fleet.flops).max(axis=1)
    server = (b * (rho[-1] - rho[j] + varpi[-1] - varpi[j])).sum(axis=1) / fleet.server_flops
    middle = N * bits.max(axis=1) - bits.sum(axis=1)
    fed_up = np.maximum((bits / fleet.fed_up_rate).max(axis=1), middle / fleet.server_fed_up_rate)
    fed_down = np.maximum((bits / fleet.fed_down_rate).max(axis=1), middle / fleet.server_fed_down_rate)
    seconds = up + server + down + (fed_up + fed_down) / problem.interval

    per_sample = (profile.activation_bits_at + profile.gradient_bits_at).cumsum()[j]
    fits = (b * per_sample + bits <= fleet.memory) & (b <= problem.largest_batch)
    return np.where(fits.all(axis=1), _rounds(problem, b, cuts) * seconds, np.inf)


def _rounds(problem: Problem, b: IntN, cuts: IntN) -> Floats:
    """Eq. (27), infinite where C1 is broken; or R∞ (1 + skew + noise · mean(1/b) · (1 + drift))."""
    stats, deepest = problem.stats, cuts.max(axis=1) - 1
    if isinstance(stats, MeasuredStats):
        apart = problem.interval > 1
        skew, drift = (apart * upto[deepest] for upto in (stats.skew_upto, stats.drift_upto))
        return stats.rounds * (1 + skew + stats.noise * (1 / b).mean(axis=1) * (1 + drift))
    stats, target = problem.bound_constants()
    beta_gamma = stats.smoothness * problem.learning_rate
    sampling = beta_gamma * stats.variance_of.sum() * (1 / b).sum(axis=1) / b.shape[1] ** 2
    moment = stats.moment_of.cumsum()[deepest]
    drift = 4 * beta_gamma**2 * problem.interval**2 * moment if problem.interval > 1 else 0.0
    margin = target - sampling - drift
    with np.errstate(divide="ignore"):
        return np.where(margin > 0, 2 * stats.initial_gap / (problem.learning_rate * margin), np.inf)
