"""Random problems that are neither trivial nor hopeless, from tiny to fifty devices."""

from dataclasses import replace

import numpy as np

from hasfl.constants import BoundConstants, MeasuredConstants
from hasfl.fleet import PER_DEVICE, Fleet
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.profile import PER_LAYER_COSTS, Profile
from hasfl.theory.bound import Theorem1


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
    constants = BoundConstants(
        smoothness=float(spread(0.3, 30, 1)[0]),
        initial_gap=2.3,
        variance_of=spread(1, 1e3, L) * N,
        moment_of=spread(1e-3, 1, L),
    )
    interval = int(rng.choice([1, 2, 15]))
    reference = Plan(rng.integers(1, max_batch + 1, N), rng.integers(1, L + 1, N))
    bound = Theorem1.of(constants, profile, devices=N, learning_rate=0.05, interval=interval)
    return Problem(
        fleet=fleet,
        profile=profile,
        constants=constants,
        learning_rate=0.05,
        interval=interval,
        target=bound.floor(reference).total * float(spread(0.3, 8, 1)[0]),
        max_batch=max_batch,
    )


def measured(problem: Problem, seed: int) -> Problem:
    """The same problem with rounds as if measured; sometimes without noise, drift, skew or curvature."""
    rng, of_curvature = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    layers = len(problem.profile)
    constants = MeasuredConstants(
        rounds=float(10 ** rng.uniform(-3, 5)),
        noise=float(10 ** rng.uniform(-2, 3)) * (rng.random() < 0.9),
        drift_of=10 ** rng.uniform(-3, 1, layers) * (rng.random(layers) < 0.7),
        skew_of=10 ** rng.uniform(-3, 0.5, layers) * (rng.random(layers) < 0.5),
    )
    if of_curvature.random() < 0.6:
        steepest = 1 / (1 + constants.skew_upto[-1])
        constants = replace(constants, curvature=steepest * float(10 ** of_curvature.uniform(-3, 0)))
    return replace(problem, constants=constants, target=None)


def priced(seed: int, price: float) -> Problem:
    """A tiny problem with some batch norms, some of which refuse single samples; of either law."""
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, devices=(1, 3), max_batch=6)
    problem = measured(problem, seed) if seed % 2 else problem
    layers = len(problem.profile)
    norms = rng.random(layers) < 0.6
    refuse = norms & (rng.random(layers) < 0.2)
    profile = replace(problem.profile, batch_norm_of=norms, smallest_batch_of=np.where(refuse, 2, 1))
    return replace(problem, profile=profile, constants=replace(problem.constants, single_noise=price))


def odd_problem(seed: int) -> Problem:
    """A tiny problem with something odd: layers that cost nothing, equal devices, a target hardly above the
    floor, statistics of another magnitude, a server that does nothing.
    """  # fmt: skip
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, devices=(1, 3), max_batch=int(rng.integers(1, 9)))
    profile, fleet, constants = problem.profile, problem.fleet, problem.constants
    if rng.random() < 0.6:
        free = {}
        for field in PER_LAYER_COSTS:
            if rng.random() < 0.4:
                layers = len(profile)
                per_layer = np.where(rng.random(layers) < 0.5, 0.0, rng.uniform(1e3, 1e6, layers))
                free[field] = per_layer.cumsum() if field.endswith("_upto") else per_layer
        profile = replace(profile, **free)
    if rng.random() < 0.3:
        fleet = replace(
            fleet, **{field: np.full(len(fleet), getattr(fleet, field)[0]) for field in PER_DEVICE}
        )
    target = problem.target
    if rng.random() < 0.3:
        most = Plan.uniform(len(fleet), batch_size=problem.max_batch, cut=1)
        bound = Theorem1.of(
            constants, profile, devices=len(fleet), learning_rate=0.05, interval=problem.interval
        )
        target = bound.floor(most).total * (1 + 10 ** rng.uniform(-8, 1))
    scale = 10.0 ** rng.choice([-9, 0, 9])
    constants = replace(
        constants,
        initial_gap=constants.initial_gap * scale,
        variance_of=constants.variance_of * scale,
        moment_of=constants.moment_of * scale,
    )
    return replace(problem, profile=profile, fleet=fleet, constants=constants, target=target * scale)
