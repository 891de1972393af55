"""The two devices of docs/decisions/0006, number by number."""

import numpy as np
import pytest

from hasfl.constants import BoundConstants
from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.planning.exact.planner import best_plan
from hasfl.planning.exact.relaxation import Relaxation
from hasfl.planning.exhaustive import best_of_all
from hasfl.planning.feasibility import Asked
from hasfl.planning.tables import CostTables
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.theory.objective import evaluate, law_of

BELOW = 1 - 1e-9
VALUE = 3.375


@pytest.fixture
def problem() -> Problem:
    links = np.full(2, 80e6)
    return Problem(
        fleet=Fleet(
            flops=np.array([10e9, 2e9]),
            up_rate=links,
            down_rate=links,
            fed_up_rate=np.full(2, 10e6),
            fed_down_rate=np.full(2, 10e6),
            memory=np.full(2, 1e12),
            server_flops=20e9,
            server_fed_up_rate=10e6,
            server_fed_down_rate=10e6,
            names=("A", "B"),
        ),
        profile=Profile(
            forward_flops_upto=np.array([1e9, 2e9]),
            backward_flops_upto=np.array([1e9, 2e9]),
            activation_bits_at=np.array([8e6, 2e6]),
            gradient_bits_at=np.array([8e6, 2e6]),
            param_bits_upto=np.array([1e6, 5e6]),
            optimizer_bits_upto=np.zeros(2),
        ),
        constants=BoundConstants(
            smoothness=1.0, initial_gap=0.5, variance_of=np.array([2.0, 2.0]), moment_of=np.zeros(2)
        ),
        learning_rate=1.0,
        interval=10,
        target=1.5,
        max_batch=8,
    )


def test_the_table_of_costs(problem: Problem) -> None:
    tables = CostTables.of(problem)
    assert tables.up_seconds == pytest.approx(np.array([[0.2, 0.225], [0.6, 1.025]]))
    assert tables.down_seconds == pytest.approx(np.array([[0.2, 0.225], [0.6, 1.025]]))
    assert tables.server_seconds == pytest.approx(np.array([0.1, 0.0]))
    assert tables.submodel_bits / 10e6 == pytest.approx(np.array([0.1, 0.5]))


def test_the_plan_and_its_proof(problem: Problem) -> None:
    report = evaluate(Plan(np.array([5, 2]), np.array([2, 1])), problem)
    assert (report.rounds, report.round_seconds, report.objective) == pytest.approx((1.25, 2.7, VALUE))
    best = best_plan(problem, gap=0.0)
    assert best.plan == report.plan
    assert best.lower_bound == pytest.approx(VALUE)
    least = best_of_all(problem)
    assert least is not None
    assert least[1] == pytest.approx(VALUE)


@pytest.mark.parametrize(
    ("deepest_cut", "lower", "upper", "expected"),
    [
        (2, 0.6, 1.2 * BELOW, 5.35),
        (2, 1.2, 1.8 * BELOW, 4.87),
        (2, 1.2, 1.393, 4.95),
        (2, 1.2, 1.3125, 5.0625),
        (2, 1.8, 8.2, 4.54375),
        (2, 1.8, 2.319, 5.547),
        (1, 0.6, 1.2 * BELOW, 5.87),
        (1, 1.2, 1.8 * BELOW, 5.47),
        (1, 1.8, 8.2, 5.945),
    ],
)
def test_every_row_of_the_certificate(
    problem: Problem, deepest_cut: int, lower: float, upper: float, expected: float
) -> None:
    law, tables = law_of(problem), CostTables.of(problem)
    relaxation = Relaxation(tables, Asked.anything(problem), law.noise, deepest_cut)
    exchange = (0.1, 0.5)[deepest_cut - 1]
    corners = (np.array([[each, each, exchange, exchange]]) for each in (lower, upper))
    lines = law.lines(VALUE, deepest_cut, np.ones(1), np.ones(1))
    assert lines.needed == pytest.approx(5.0625)
    choices = relaxation.choose(tuple(corners), lines, np.zeros(1), steps=0, forbidden=None)
    seconds = 2 * lower + 2 * exchange / 10
    assert float(choices.least[0]) + seconds == pytest.approx(expected, abs=6e-3)
