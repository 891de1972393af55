"""Worked examples, number by number: of docs/decisions/0006, and in the docstrings of the planner."""

import numpy as np
import pytest

from hasfl.constants import BoundConstants
from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.planning.exact import cells
from hasfl.planning.exact.fixed_cuts import BatchLine, FixedCuts, Window, _Grid
from hasfl.planning.exact.planner import best_plan
from hasfl.planning.exact.relaxation import Choices, Relaxation, Tariff
from hasfl.planning.exact.search import price_is_to_blame
from hasfl.planning.exhaustive import best_of_all
from hasfl.planning.feasibility import AllowedPlans
from hasfl.planning.tables import CostTables
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.theory.objective import evaluate, law_of
from hasfl.theory.rounds import BatchNoise, Lines, MeasuredRounds

# ── the two devices of docs/decisions/0006 ───────────────────────────────────────────────────────────────

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
    relaxation = Relaxation(tables, AllowedPlans.anything(problem), law.noise, deepest_cut)
    exchange = (0.1, 0.5)[deepest_cut - 1]
    corners = (np.array([[each, each, exchange, exchange]]) for each in (lower, upper))
    lines = law.lines(VALUE, deepest_cut, np.ones(1), np.ones(1))
    assert lines.needed == pytest.approx(5.0625)
    choices = relaxation.choose(tuple(corners), lines, np.zeros(1), steps=0, forbidden=None)
    seconds = 2 * lower + 2 * exchange / 10
    assert float(choices.least[0]) + seconds == pytest.approx(expected, abs=6e-3)


# ── three devices, at the heads of relaxation.py, cells.py and fixed_cuts.py ─────────────────────────────

SECONDS = np.array([[1.0, 2.0], [2.0, 3.0], [3.0, 6.0]])  # devices A, B, C at cuts 1 and 2
BOX = np.array([[4.0, 4.0, 2.0, 2.0]]), np.array([[6.0, 6.0, 3.0, 3.0]])
LINES = Lines(np.ones(1), np.full(1, 8.0), np.full(1, 25.0), np.full(1, 25.0), np.zeros(1))
CORNER = 4 + 4 + (2 + 2) / 10


@pytest.fixture
def relaxation() -> Relaxation:
    tables = CostTables(
        up_seconds=SECONDS,
        down_seconds=SECONDS,
        up_rate=1 / SECONDS,
        down_rate=1 / SECONDS,
        server_seconds=np.array([1.0, 0.0]),
        largest_batch=np.full((3, 2), 100.0),
        smallest_batch_upto=np.ones(2, dtype=np.int64),
        submodel_bits=np.array([1.0, 5.0]),
        fed_up_rate=np.full(3, 10.0),
        fed_down_rate=np.full(3, 10.0),
        server_fed_up_rate=1.0,
        server_fed_down_rate=1.0,
        interval=10,
    )
    allowed = AllowedPlans(np.ones(3), np.full(3, 100.0), np.ones((3, 2), dtype=bool))
    return Relaxation(tables, allowed, BatchNoise(np.ones(2)), 2)


def at_price(relaxation: Relaxation, price: float, *, steps: int = 0) -> Choices:
    return relaxation.choose(BOX, LINES, np.array([price]), steps=steps, forbidden=None)


def test_limits_and_costs_of_the_relaxation(relaxation: Relaxation) -> None:
    assert relaxation._limits(BOX[1])[0].tolist() == [[6, 3], [3, 2], [2, 1]]
    cost, batch = relaxation._costs(BOX[1], LINES)
    assert batch[0].tolist() == [[3, 3], [3, 2], [2, 1]]
    assert cost[0] == pytest.approx(np.array([[17 / 3, 8 / 3], [17 / 3, 4], [6, 8]]))
    choices = at_price(relaxation, 0.0)
    assert choices.cuts[0].tolist() == [2, 2, 1]
    assert choices.least[0] + CORNER == pytest.approx(21.07, abs=5e-3)


def test_the_price_of_the_relaxation(relaxation: Relaxation) -> None:
    best = at_price(relaxation, 0.0, steps=6)
    assert best.price[0] == pytest.approx(0.5)
    assert best.least[0] + CORNER == pytest.approx(21.77, abs=5e-3)
    assert best.cuts[0].tolist() == [2, 2, 2]
    assert best.unpaid[0] == pytest.approx(1.3)
    assert best.least[0] + best.unpaid[0] + CORNER == pytest.approx(23.07, abs=5e-3)
    choice = best.of(0, 1.0)
    assert choice.device_worth == pytest.approx(2.0)
    assert relaxation.marginal_device(BOX[1][0], LINES, choice, None) == (2, 1)
    assert price_is_to_blame(choice, given_away=4.0, missing=22 - 21.77, point=1e-12)


def test_the_trials_of_the_tariff(relaxation: Relaxation) -> None:
    tariff = Tariff.of(relaxation.tables, BOX, LINES)
    assert tariff.bits[0] == pytest.approx([2, 2, 3])
    assert tariff.width[0] == pytest.approx([0.1, 0.1, np.inf])
    assert tariff.due(np.array([0.5]))[0] == pytest.approx(1.3)
    trials = [float(at_price(relaxation, 0.0, steps=steps).price[0]) for steps in range(5)]
    assert trials == pytest.approx([0, 0.1, 0.2, 0.3, 0.45])
    slopes = []
    for price in (0.45, 0.675):
        bits = relaxation.tables.submodel_bits[at_price(relaxation, price).cuts - 1].sum(axis=1)
        slopes.append(float((relaxation.server_bits(bits) - tariff.bits_at(np.array([price])))[0]))
    assert slopes == pytest.approx([1, -3])


def test_the_cells(relaxation: Relaxation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "CELLS", 4)
    monkeypatch.setattr(cells, "CELLS_A_SIDE", 2)
    grid = cells.bounded_cells(relaxation, (BOX[0][0], BOX[1][0]), LINES, 0.0, None)
    assert grid.bounds == pytest.approx(np.array([[27.4, 28.4], [28.4, 23.07]]), abs=5e-3)
    low, high = grid.rectangle(grid.bounds < 25)
    assert (low.tolist(), high.tolist()) == ([5, 5], [6, 6])


class Law:
    noise = BatchNoise(np.ones(1))


def test_the_batch_grid() -> None:
    cuts = FixedCuts(
        up_seconds=np.array([1.0, 1.0, 2.0]),
        down_seconds=np.array([1.0, 2.0, 1.0]),
        server_seconds=np.ones(3),
        largest_batch=np.full(3, 100.0),
        aggregation_seconds=0.0,
        deepest_cut=1,
        smallest_batch=1.0,
        law=Law(),
    )
    paying = Law.noise.best_batch(np.ones(3), np.array(12.0), 1)
    line = BatchLine(cuts, 0.0, 1.0, np.ones(3), 12.0, 33.0, 33.0, paying)
    window = Window(np.full(2, 2.0), np.full(2, 4.5))
    assert line.bound(window) == 27
    assert line.points_within(window) == 3
    assert line.cost(line.limit(window.low)) == 34
    grid = _Grid.of(line, window)
    assert grid.bounds.tolist() == [[38, 39, 35], [39, 39, 35], [35, 35, 31]]
    assert grid.batch_sizes_of_best_cell().tolist() == [3, 2, 2]
    still_open = grid.open_window()
    assert still_open is not None
    assert still_open.low.tolist() == [4, 4]


def test_the_line_of_the_measured_law() -> None:
    law = MeasuredRounds(
        endless=1.0,
        fixed_upto=np.ones(1),
        per_noise_upto=np.ones(1),
        per_square_upto=np.zeros(1),
        sampling=1.0,
        sampling_square=0.0,
        noise=BatchNoise(np.ones(1)),
    )
    seconds, noise = np.full(1, 4.0), np.full(1, 8.0)  # A = 4, B = 1 + 8
    assert law.slope(seconds, noise, 1)[0] == 1.5
    for low, high, expected in ((1.0, 2.0, 34 / 3), (1.5, 1.5, 12.0)):
        lines = law.lines(36.0, 1, np.full(1, low), np.full(1, high))
        assert lines.excess(seconds, noise)[0] + 12 == pytest.approx(expected)
