"""The law of rounds with measured constants, and the noise of batches: against plain loops, and by law."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.errors import InputError
from hasfl.fleet import PER_DEVICE
from hasfl.plan import Plan
from hasfl.planning.paper.algorithm_2 import alternate
from hasfl.problem import Problem
from hasfl.theory.bound import Corollary1
from hasfl.theory.objective import evaluate, law_of
from hasfl.theory.rounds import BatchNoise, MeasuredRounds
from tests.generators import settings as problem_settings
from tests.planning.random_problems import measured, random_problem


def naive_rounds(problem: Problem, plan: Plan) -> float:
    """R, device by device and layer by layer."""
    constants, private, skew = problem.constants, 1.0, 0.0
    for j in range(max(plan.cuts)):
        private += constants.drift_of[j] if problem.interval > 1 else 0.0
        skew += np.asarray(constants.skew_of)[j] if problem.interval > 1 else 0.0
    inverse = sum(1 / b for b in plan.batch_sizes) / len(plan)
    x = constants.noise * inverse * private
    return constants.rounds * (1 + skew + x + constants.curvature * x**2)


@given(problem_settings(), st.integers(0, 10**6))
def test_rounds_are_what_the_formula_says(setting: tuple[Problem, Plan], seed: int) -> None:
    problem, plan = measured(setting[0], seed), setting[1]
    report = evaluate(plan, problem)
    assert report.rounds == pytest.approx(naive_rounds(problem, plan), rel=1e-12)
    assert report.objective == pytest.approx(report.rounds * report.round_seconds, rel=1e-12)
    assert report.margins.target is None
    assert "C1" not in report.margins.by_constraint()


@given(problem_settings(), st.integers(0, 10**6), st.data())
def test_rounds_fall_with_batches_and_rise_with_the_deepest_cut(
    setting: tuple[Problem, Plan], seed: int, data: st.DataObject
) -> None:
    problem, plan = measured(setting[0], seed), setting[1]
    i = data.draw(st.integers(0, len(plan) - 1))
    more = plan.batch_sizes.copy()
    more[i] += 1
    rounds = evaluate(plan, problem).rounds
    noisy = problem.constants.noise > 0
    larger = evaluate(Plan(more, plan.cuts), problem).rounds
    assert larger < rounds if noisy else larger == rounds
    deepest = Plan(plan.batch_sizes, np.full(len(plan), len(problem.profile)))
    assert evaluate(deepest, problem).rounds >= rounds
    every_round = replace(problem, interval=1)
    assert evaluate(deepest, every_round).rounds == evaluate(plan, every_round).rounds


@given(problem_settings(), st.integers(0, 10**6), st.integers(2, 4))
def test_more_devices_of_the_same_kind_change_no_rounds(
    setting: tuple[Problem, Plan], seed: int, times: int
) -> None:
    problem, plan = measured(setting[0], seed), setting[1]
    columns = {field: np.tile(getattr(problem.fleet, field), times) for field in PER_DEVICE}
    many = replace(problem, fleet=replace(problem.fleet, names=(), **columns))
    copied = Plan(np.tile(plan.batch_sizes, times), np.tile(plan.cuts, times))
    expected = evaluate(plan, problem).rounds
    assert evaluate(copied, many).rounds == pytest.approx(expected, rel=1e-12)


def test_each_law_wants_its_own_constants() -> None:
    with pytest.raises(InputError, match="expected the paper's constants"):
        alternate(measured(random_problem(1), 1))
    with pytest.raises(InputError, match="expected constants measured in training"):
        MeasuredRounds.of(random_problem(1))
    assert isinstance(law_of(random_problem(1)), Corollary1)
    assert isinstance(law_of(measured(random_problem(1), 1)), MeasuredRounds)


@given(st.floats(1.0, 1e3), st.floats(1e-6, 1e6), st.floats(0.0, 1e6))
def test_the_best_batch_is_the_best_of_many(price: float, x: float, y: float) -> None:
    noise = BatchNoise(np.array([price]))
    best = float(noise.best_batch(np.array([x]), np.array([y]), 1)[0])
    tried = np.unique(np.clip(np.concatenate([np.arange(1.0, 50), best + np.arange(-3.0, 4)]), 1, None))
    costs = tried * x + y * noise.each(tried, 1)
    mine = best * x + y * float(noise.each(np.array([best]), 1)[0])
    assert mine <= costs.min() * (1 + 1e-12)


@given(st.floats(1.0, 1e3), st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_noise_adds_up(price: float, batch_sizes: list[int]) -> None:
    noise, b = BatchNoise(np.array([1.0, price])), np.array(batch_sizes, dtype=float)
    for deepest_cut in (1, 2):
        each = noise.each(b, deepest_cut)
        assert float(noise.total(b, deepest_cut)) == pytest.approx(each.sum(), rel=1e-12)
        saved = noise.saved_by_one_more(b, deepest_cut)
        assert saved == pytest.approx(each - noise.each(b + 1, deepest_cut), rel=1e-9)


def test_a_price_below_one_is_refused() -> None:
    with pytest.raises(InputError, match="single_noise must be at least 1"):
        replace(random_problem(1).constants, single_noise=0.5)
