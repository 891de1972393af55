"""Hypothesis strategies: fleets, profiles, constants, problems and plans of every shape."""

import numpy as np
from hypothesis import strategies as st

from hasfl.arrays import FloatN
from hasfl.constants import BoundConstants
from hasfl.fleet import PER_DEVICE, Fleet
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.theory.bound import Theorem1


def numbers(low: float, high: float, size: int) -> st.SearchStrategy[FloatN]:
    """`size` numbers between `low` and `high`, spread over orders of magnitude."""
    exponents = st.floats(np.log10(low), np.log10(high))
    return st.lists(exponents, min_size=size, max_size=size).map(lambda found: 10.0 ** np.array(found))


@st.composite
def fleets(draw: st.DrawFn, devices: int) -> Fleet:
    ranges = {
        "flops": (1e10, 1e13),
        "up_rate": (1e5, 1e9),
        "down_rate": (1e5, 1e9),
        "fed_up_rate": (1e5, 1e9),
        "fed_down_rate": (1e5, 1e9),
        "memory": (1e6, 1e11),
    }
    columns = {field: draw(numbers(*ranges[field], devices)) for field in PER_DEVICE}
    server = draw(numbers(1e6, 1e13, 3))
    return Fleet(
        **columns,
        server_flops=server[0],
        server_fed_up_rate=server[1],
        server_fed_down_rate=server[2],
    )


@st.composite
def profiles(draw: st.DrawFn, layers: int) -> Profile:
    per_layer = [draw(numbers(1e2, 1e9, layers)) for _ in range(6)]
    forward, backward, activation, gradient, param, optimizer = per_layer
    return Profile(
        forward_flops_upto=forward.cumsum(),
        backward_flops_upto=backward.cumsum(),
        activation_bits_at=activation,
        gradient_bits_at=gradient,
        param_bits_upto=param.cumsum(),
        optimizer_bits_upto=optimizer.cumsum(),
    )


@st.composite
def bound_constants(draw: st.DrawFn, layers: int) -> BoundConstants:
    return BoundConstants(
        smoothness=draw(st.floats(1e-3, 1e3)),
        initial_gap=draw(st.floats(1e-2, 1e2)),
        variance_of=draw(numbers(1e-3, 1e4, layers)),
        moment_of=draw(numbers(1e-3, 1e4, layers)),
    )


@st.composite
def plans(draw: st.DrawFn, devices: int, layers: int, max_batch: int = 64) -> Plan:
    batch_sizes = draw(st.lists(st.integers(1, max_batch), min_size=devices, max_size=devices))
    cuts = draw(st.lists(st.integers(1, layers), min_size=devices, max_size=devices))
    return Plan(np.array(batch_sizes), np.array(cuts))


@st.composite
def settings(draw: st.DrawFn) -> tuple[Problem, Plan]:
    """A problem and a plan for it whose target lies above the floor of the bound."""
    devices, layers = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    constants, plan = draw(bound_constants(layers)), draw(plans(devices, layers))
    learning_rate, interval = draw(st.floats(1e-4, 1e-1)), draw(st.integers(1, 30))
    profile = draw(profiles(layers))
    bound = Theorem1.of(constants, profile, devices=devices, learning_rate=learning_rate, interval=interval)
    floor = bound.floor(plan)
    problem = Problem(
        fleet=draw(fleets(devices)),
        profile=profile,
        constants=constants,
        learning_rate=learning_rate,
        interval=interval,
        target=floor.total * draw(st.floats(1.01, 100)) + draw(st.floats(1e-6, 1)),
    )
    return problem, plan
