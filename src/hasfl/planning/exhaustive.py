"""Enumerate every plan of a tiny problem, to test planners against the true optimum.

The seconds of a round are written here directly from Eqs. (28) to (39), without the tables of the planners.
The rounds come from the law of the problem; tests compare the law with plain loops.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np

from hasfl.arrays import IntN
from hasfl.errors import InputError
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.theory.objective import law_of
from hasfl.theory.rounds import Floats

MOST_PLANS = 50_000_000  # plans that may be enumerated; chosen by hand: more take minutes
CHUNK = 1 << 18  # plans evaluated at once: an array for three devices has 6 MiB; chosen by hand


def best_of_all(problem: Problem) -> tuple[Plan, float] | None:
    """The best of all plans and its Θ; None if no plan satisfies the constraints."""
    options = problem.max_batch * len(problem.profile)
    devices = len(problem.fleet)
    if options**devices > MOST_PLANS:
        raise InputError(f"{options}^{devices} plans are too many to try: the limit is {MOST_PLANS:,}")
    best: tuple[Plan, float] | None = None
    for batch_sizes, cuts in all_plans(problem):
        values = objectives(problem, batch_sizes, cuts)
        k = int(values.argmin())
        if np.isfinite(values[k]) and (best is None or values[k] < best[1]):
            best = Plan(batch_sizes[k], cuts[k]), float(values[k])
    return best


def all_plans(problem: Problem) -> Iterator[tuple[IntN, IntN]]:
    """All plans in chunks: batch sizes and cuts as two arrays (plans, N)."""
    # Each plan has a number with N digits. A digit is the choice of one device: a pair (batch size, cut).
    choices = np.array(list(product(range(1, problem.max_batch + 1), range(1, len(problem.profile) + 1))))
    total, devices = len(choices) ** len(problem.fleet), len(problem.fleet)
    for first in range(0, total, CHUNK):
        number = np.arange(first, min(first + CHUNK, total))
        digits = np.array(np.unravel_index(number, (len(choices),) * devices)).T
        yield choices[digits, 0], choices[digits, 1]


def objectives(problem: Problem, batch_sizes: IntN, cuts: IntN) -> Floats:
    """The training times Θ of K plans (K, N), by Eq. (43); infinite where C1, C4 or C5 is violated."""
    fleet, profile = problem.fleet, problem.profile
    b, j, N = batch_sizes, cuts - 1, len(fleet)
    rho, varpi = profile.forward_flops_upto, profile.backward_flops_upto
    bits = profile.param_bits_upto[j] + profile.optimizer_bits_upto[j]
    # Seconds: T₃ by (28), (29); T₄ by (32), (33); edge server by (30), (31); T₅ and T₆ by (34) to (37).
    up = (b * rho[j] / fleet.flops + b * profile.activation_bits_at[j] / fleet.up_rate).max(axis=1)
    down = (b * profile.gradient_bits_at[j] / fleet.down_rate + b * varpi[j] / fleet.flops).max(axis=1)
    server = (b * (rho[-1] - rho[j] + varpi[-1] - varpi[j])).sum(axis=1) / fleet.server_flops
    middle = N * bits.max(axis=1) - bits.sum(axis=1)
    fed_up = np.maximum((bits / fleet.fed_up_rate).max(axis=1), middle / fleet.server_fed_up_rate)
    fed_down = np.maximum((bits / fleet.fed_down_rate).max(axis=1), middle / fleet.server_fed_down_rate)
    seconds = up + server + down + (fed_up + fed_down) / problem.interval  # (38) + (39) / I

    per_sample = (profile.activation_bits_at + profile.gradient_bits_at).cumsum()[j]
    deepest_cut = cuts.max(axis=1)
    smallest = problem.smallest_batch_upto[deepest_cut - 1]
    fits = (b * per_sample + bits <= fleet.memory) & (b <= problem.largest_batch) & (b >= smallest[:, None])
    return np.where(fits.all(axis=1), law_of(problem).rounds(b, deepest_cut) * seconds, np.inf)
