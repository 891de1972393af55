"""Random problems that are neither trivial nor hopeless, from tiny to fifty devices."""

import numpy as np

from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.profile import GradientStats, Profile
from hasfl.theory.bound import bound_floor


def random_problem(
    seed: int, *, devices: tuple[int, int] = (1, 4), layers: tuple[int, int] = (1, 5), max_batch: int = 8
) -> Problem:
    """A problem of random shape; some have tight memory, some a target that no plan reaches."""
    rng = np.random.default_rng(seed)
    N, L = int(rng.integers(devices[0], devices[1] + 1)), int(rng.integers(layers[0], layers[1] + 1))

    def spread(low: float, high: float, size: int) -> np.ndarray:
        return np.exp(rng.uniform(np.log(low), np.log(high), size))

    profile = Profile(
        forward_flops_upto=spread(1e6, 1e9, L).cumsum(),
        backward_flops_upto=spread(1e6, 2e9, L).cumsum(),
        activation_bits_at=spread(1e3, 3e6, L),
        gradient_bits_at=spread(1e3, 3e6, L),
        param_bits_upto=spread(1e4, 1e8, L).cumsum(),
        optimizer_bits_upto=spread(1e4, 1e8, L).cumsum() * rng.integers(0, 3),
    )
    whole_model = profile.param_bits_upto[-1] + profile.optimizer_bits_upto[-1]
    most = max_batch * (profile.activation_bits_upto + profile.gradient_bits_upto)[-1] + whole_model
    tight = rng.random() < 0.5
    fleet = Fleet(
        flops=spread(1e10, 2e12, N),
        up_rate=spread(3e6, 1e8, N),
        down_rate=spread(1e7, 4e8, N),
        fed_up_rate=spread(3e6, 1e8, N),
        fed_down_rate=spread(1e7, 4e8, N),
        memory=most * (spread(0.02, 1.2, N) if tight else np.full(N, 2.0)),
        server_flops=float(spread(1e11, 2e13, 1)[0]),
        server_fed_up_rate=float(spread(1e7, 4e8, 1)[0]),
        server_fed_down_rate=float(spread(1e7, 4e8, 1)[0]),
    )
    stats = GradientStats(
        smoothness=float(spread(0.3, 30, 1)[0]),
        initial_gap=2.3,
        variance_of=spread(1, 1e3, L) * N,
        moment_of=spread(1e-3, 1, L),
    )
    interval = int(rng.choice([1, 2, 15]))
    reference = Plan(rng.integers(1, max_batch + 1, N), rng.integers(1, L + 1, N))
    floor = bound_floor(reference, stats, learning_rate=0.05, interval=interval)
    return Problem(
        fleet=fleet,
        profile=profile,
        stats=stats,
        learning_rate=0.05,
        interval=interval,
        target=floor.total * float(spread(0.3, 8, 1)[0]),
        max_batch=max_batch,
    )
