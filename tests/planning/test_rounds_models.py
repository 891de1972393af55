"""The search does not care where the rounds come from: another model fits, and is solved as exactly."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given

from hasfl.arrays import FloatL
from hasfl.plan import Plan
from hasfl.planning.exhaustive import all_plans
from hasfl.planning.feasibility import Asked
from hasfl.planning.search import Search
from hasfl.planning.tables import CostTables
from hasfl.problem import Problem
from hasfl.theory.bound import rounds_to_target
from hasfl.theory.rounds import Corollary1, Floats, Lines
from tests.generators import settings as problem_settings
from tests.planning.random_problems import random_problem


@dataclass(frozen=True, eq=False)
class LinearRounds:
    """R = least · (1 + drift_J + w S): a product with the seconds, not a ratio.

    With A the seconds and B = 1 + drift + w S, Θ ≥ value is 2 √(AB) ≥ 2 √(value/least). A plan's slope
    is √(B/A); over a range of slopes, 2 √(AB) lies above the chord between its ends, which is linear.
    """

    least: float
    drift_upto: FloatL
    per_inverse_batch: float
    devices: int

    def rounds(self, inverse_batches: Floats, deepest_cut: Floats) -> Floats:
        drift = self.drift_upto[np.asarray(deepest_cut) - 1]
        return self.least * (1 + drift + self.per_inverse_batch * inverse_batches)

    def slopes(self, value: float, deepest_cut: int, *, least_seconds: float) -> tuple[float, float]:
        smallest = 1 + float(self.drift_upto[deepest_cut - 1])
        largest = smallest + self.per_inverse_batch * self.devices
        longest = value / self.least / smallest
        return float(np.sqrt(smallest / longest)), float(np.sqrt(largest / least_seconds))

    def lines(self, value: float, deepest_cut: int, low: Floats, high: Floats) -> Lines:
        fixed = 1 + float(self.drift_upto[deepest_cut - 1])
        per_rounds = 2 / (low + high)
        needed = 2 * np.sqrt(value / self.least) - per_rounds * fixed
        return Lines(low * high * per_rounds, per_rounds * self.per_inverse_batch, needed)

    def proved(self, value: float, lines: Lines, *, reached: Floats, least: Floats) -> Floats:
        root = np.sqrt(value / self.least) - np.maximum(lines.needed - reached, 0.0) / 2
        return self.least * np.maximum(root, 0.0) ** 2


def enumerated(problem: Problem, model: LinearRounds) -> float:
    """The least Θ over all plans that fit into memory."""
    tables, least = CostTables.of(problem), np.inf
    for batch_sizes, cuts in all_plans(problem):
        fits = (tables.largest_batch[np.arange(len(problem.fleet)), cuts - 1] >= batch_sizes).all(axis=1)
        if fits.any():
            b, c = batch_sizes[fits].astype(float), cuts[fits]
            values = model.rounds((1 / b).sum(axis=1), c.max(axis=1)) * tables.round_seconds(b, c)
            least = min(least, float(values.min()))
    return least


def test_a_product_is_solved_as_exactly_as_a_ratio() -> None:
    solved = 0
    for seed in range(120):
        problem = random_problem(seed, devices=(1, 3))
        rng = np.random.default_rng(seed)
        drift = rng.uniform(0, 0.5, len(problem.profile)).cumsum()
        model = LinearRounds(600.0, drift, rng.uniform(0.1, 8) / len(problem.fleet), len(problem.fleet))
        expected = enumerated(problem, model)
        if not np.isfinite(expected):
            continue
        tables, asked = CostTables.of(problem), Asked.anything(problem)
        search = Search(tables, model, asked, gap=1e-7, time_limit=20)
        search.consider(np.ones((1, len(problem.fleet))), np.ones((1, len(problem.fleet)), dtype=int))
        found = search.run()
        assert found.status == "optimal", seed
        value = float(search.values(found.plan.batch_sizes[None].astype(float), found.plan.cuts[None])[0])
        assert value == pytest.approx(expected, rel=1e-6), seed
        assert found.lower_bound <= expected * (1 + 1e-12)
        solved += 1
    assert solved >= 80


@given(problem_settings())
def test_corollary_1_says_what_the_theory_says(setting: tuple[Problem, Plan]) -> None:
    problem, plan = setting
    model = Corollary1.of(problem)
    expected = rounds_to_target(
        plan,
        problem.stats,
        learning_rate=problem.learning_rate,
        interval=problem.interval,
        target=problem.target,
    )
    found = model.rounds((1 / plan.batch_sizes).sum(), np.array(plan.deepest_cut))
    assert float(found) == pytest.approx(expected, rel=1e-6)
