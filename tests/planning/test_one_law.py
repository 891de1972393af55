"""One law of rounds for every part: prices of single samples, smallest batches, limits and round-off."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest

from hasfl.constants import MeasuredConstants
from hasfl.errors import Infeasible, TargetUnreachable
from hasfl.fleet import PER_DEVICE
from hasfl.plan import Plan
from hasfl.planning.exact import cells
from hasfl.planning.exact.planner import best_batches, best_cuts, best_plan
from hasfl.planning.exact.relaxation import Choice
from hasfl.planning.exact.search import price_is_to_blame
from hasfl.planning.exhaustive import best_of_all, objectives
from hasfl.planning.feasibility import AllowedPlans
from hasfl.planning.paper.algorithm_2 import alternate
from hasfl.planning.tables import CostTables
from hasfl.planning.verify import faults
from hasfl.problem import Problem
from hasfl.runs.questions import read_problem
from hasfl.theory.objective import evaluate, law_of
from tests.lanes import quick_then_slow
from tests.planning.random_problems import measured, priced, random_problem

PRICES = (1.5, 1.0, 3.0, 100.0)


def naive_objective(problem: Problem, plan: Plan) -> float:
    """Θ with the price, by plain loops; infinite where a constraint is broken."""
    constants, deepest = problem.constants, int(plan.cuts.max())
    norms = any(np.asarray(problem.profile.batch_norm_of)[j] for j in range(deepest))
    seen = range(deepest) if len(plan) > 1 else range(len(problem.profile))
    if min(plan.batch_sizes) < max(np.asarray(problem.profile.smallest_batch_of)[j] for j in seen):
        return np.inf
    noise = math.fsum(constants.single_noise if b == 1 and norms else 1 / b for b in plan.batch_sizes)
    apart = problem.interval > 1
    if isinstance(constants, MeasuredConstants):
        drift, skew = (
            sum(each[j] for j in range(deepest)) * apart
            for each in (constants.drift_of, np.asarray(constants.skew_of))
        )
        x = constants.noise * noise / len(plan) * (1 + drift)
        rounds = constants.rounds * (1 + skew + x + constants.curvature * x**2)
    else:
        steep = constants.smoothness * problem.learning_rate
        drift = (
            4 * steep**2 * problem.interval**2 * sum(constants.moment_of[j] for j in range(deepest)) * apart
        )
        margin = problem.target - drift - steep * sum(constants.variance_of) * noise / len(plan) ** 2
        if margin <= 0:
            return np.inf
        rounds = 2 * constants.initial_gap / (problem.learning_rate * margin)
    return float(rounds * evaluate_seconds(problem, plan))


def evaluate_seconds(problem: Problem, plan: Plan) -> float:
    free = replace(problem, constants=MeasuredConstants.unknown(len(problem.profile)), target=None)
    return evaluate(plan, free).round_seconds


@pytest.mark.parametrize("price", quick_then_slow(PRICES))
def test_exact_equals_enumeration_at_every_price(price: float) -> None:
    solved = mixed = 0
    for seed in range(150):
        problem = priced(seed, price)
        expected = best_of_all(problem)
        if expected is None:
            with pytest.raises(Infeasible):
                best_plan(problem)
            continue
        plan, least = expected
        assert least == pytest.approx(naive_objective(problem, plan), rel=1e-9)
        report = best_plan(problem, gap=1e-10)
        assert report.status == "optimal"
        assert report.objective == pytest.approx(least, rel=1e-9), seed
        assert report.lower_bound <= least * (1 + 1e-12)
        assert not faults(report, problem)
        assert best_batches(problem, plan.cuts, gap=1e-10).objective == pytest.approx(least, rel=1e-9), seed
        assert best_cuts(problem, plan.batch_sizes, gap=1e-10).objective == pytest.approx(least, rel=1e-9)
        solved += 1
        mixed += {1} < set(plan.batch_sizes.tolist())
    assert solved >= 75  # four prices: 300 problems
    assert mixed >= 2  # answers that mix single samples and larger batches


def test_single_samples_are_left_where_they_cost_too_much() -> None:
    """The case that showed the defect: three Table-I devices, a price of 100."""
    problem = read_problem("examples/table1.toml")
    fleet = replace(
        problem.fleet, names=(), **{field: getattr(problem.fleet, field)[:3] for field in PER_DEVICE}
    )
    layers = len(problem.profile)
    constants = MeasuredConstants(rounds=1.0, noise=0.5, drift_of=np.zeros(layers), single_noise=100.0)
    costly = replace(problem, fleet=fleet, constants=constants, target=None, samples=None)
    report = best_plan(costly)
    assert (report.plan.batch_sizes >= 2).all()
    assert report.objective < evaluate(Plan(np.ones(3, int), report.plan.cuts), costly).objective / 3
    cheap = replace(costly, constants=replace(constants, single_noise=1.0))
    assert (best_plan(cheap).plan.batch_sizes == 1).all()


def test_a_value_that_leaves_the_price_out_is_refused() -> None:
    problem = replace(priced(1, 3.0), interval=1)
    profile = replace(
        problem.profile, batch_norm_of=np.ones(len(problem.profile), bool), smallest_batch_of=None
    )
    problem = replace(
        problem, profile=profile, fleet=replace(problem.fleet, memory=problem.fleet.memory * 1e3)
    )
    singles = Plan.uniform(len(problem.fleet), batch_size=1, cut=1)
    told = evaluate(singles, replace(problem, constants=replace(problem.constants, single_noise=1.0)))
    assert any("objective" in fault for fault in faults(told, problem))
    assert not faults(evaluate(singles, problem), problem)


def test_a_batch_that_a_layer_cannot_train_on_is_refused() -> None:
    problem = random_problem(3001, devices=(3, 3), layers=(4, 4))
    roomy = replace(
        problem, fleet=replace(problem.fleet, memory=np.full(3, 1e15)), target=problem.target * 100
    )
    strict = replace(roomy, profile=replace(problem.profile, smallest_batch_of=np.array([1, 1, 2, 1])))
    shallow, deep = (Plan.uniform(3, batch_size=1, cut=cut) for cut in (2, 3))
    assert evaluate(shallow, strict).feasible
    assert not evaluate(deep, strict).feasible
    assert any("is not between 2 and" in fault for fault in faults(evaluate(deep, strict), strict))
    stricter = replace(strict.profile, smallest_batch_of=np.array([2, 2, 2, 2]))
    with pytest.raises(Infeasible, match="need 2 or more to train on"):
        best_batches(replace(strict, profile=stricter, samples=np.array([1, 5, 5])), deep.cuts)
    alone = replace(
        strict,
        fleet=replace(strict.fleet, names=(), **{f: getattr(strict.fleet, f)[:1] for f in PER_DEVICE}),
    )
    assert (alone.smallest_batch_upto == 2).all()  # one device: common layers see its samples alone


def test_algorithm_2_asks_the_same_law() -> None:
    compared = 0
    for seed in range(0, 120, 2):
        problem = priced(seed, 3.0)
        try:
            report = alternate(problem)
        except Infeasible:
            assert best_of_all(problem) is None
            continue
        assert not faults(report, problem)
        assert report.objective == pytest.approx(naive_objective(problem, report.plan), rel=1e-9)
        assert report.objective >= best_plan(problem, gap=1e-9).lower_bound * (1 - 1e-9)
        compared += 1
    assert compared >= 20


@pytest.mark.slow
def test_laws_of_the_optimum() -> None:
    checked = 0
    for seed in range(60):
        problem = measured(random_problem(seed, devices=(1, 3), max_batch=6), seed)
        try:
            best = best_plan(problem, gap=1e-9)
        except Infeasible:
            continue
        more_rounds = replace(
            problem, constants=replace(problem.constants, rounds=problem.constants.rounds * 7)
        )
        scaled = best_plan(more_rounds, gap=1e-9)
        assert scaled.plan == best.plan, seed
        assert scaled.objective == pytest.approx(7 * best.objective, rel=1e-9)
        noisier = replace(problem, constants=replace(problem.constants, noise=problem.constants.noise * 3))
        assert best_plan(noisier, gap=1e-9).objective >= best.objective * (1 - 1e-8)
        silent = replace(problem, constants=replace(problem.constants, noise=0.0))
        quickest = best_plan(silent, gap=1e-9)
        assert quickest.round_seconds <= best.round_seconds * (1 + 1e-8)
        assert set(quickest.plan.batch_sizes) == {1}
        checked += 1
    assert checked >= 30


# ── round-off, limits, small print ───────────────────────────────────────────────────────────────────────


def uneven(seed: int) -> Problem:
    """Costs of very different size: a server that is 1e8 times slower or faster, links likewise."""
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, devices=(1, 5), layers=(1, 5), max_batch=8)
    problem = measured(problem, seed) if seed % 2 else problem
    scale = {field: 10 ** float(rng.uniform(-8, 8)) for field in ("server_flops", "server_fed_up_rate")}
    fleet = replace(
        problem.fleet,
        memory=problem.fleet.memory * 50,
        up_rate=problem.fleet.up_rate * 10 ** rng.uniform(-4, 4),
        **{field: getattr(problem.fleet, field) * factor for field, factor in scale.items()},
    )
    return replace(problem, fleet=fleet)


@pytest.mark.parametrize("part", quick_then_slow(range(4)))
def test_a_gap_of_zero_ends_where_costs_are_of_very_different_size(part: int) -> None:
    ended = 0
    for seed in range(part * 100, part * 100 + 100):
        problem = uneven(seed)
        try:
            report = best_plan(problem, gap=0.0, time_limit=30)
        except Infeasible:
            continue
        assert report.status == "optimal", seed
        assert not faults(report, problem)
        if (len(problem.profile) * 8) ** len(problem.fleet) <= 40_000:
            expected = best_of_all(problem)
            assert expected is not None
            assert report.objective == pytest.approx(expected[1], rel=1e-11), seed
        ended += 1
        if ended == 50:
            return
    pytest.fail(f"only {ended} problems had a plan")


@pytest.mark.parametrize("of_training", [False, True])
def test_a_gap_of_one_asks_for_no_proof(of_training: bool) -> None:
    problem = random_problem(3001, devices=(6, 6), layers=(4, 4), max_batch=32)
    problem = measured(problem, 2) if of_training else problem
    for report in (best_plan(problem, gap=1.0), best_batches(problem, np.full(6, 2), gap=1.0)):
        assert not faults(report, problem)
        assert (report.status, report.lower_bound) == ("optimal", 0.0)


def test_the_grid_keeps_to_the_time_limit() -> None:
    problem = measured(random_problem(3001, devices=(3, 3), layers=(4, 4)), 2)
    constants = replace(problem.constants, noise=3e5)
    endless = replace(
        problem, constants=constants, max_batch=50_000, fleet=replace(problem.fleet, memory=np.full(3, 1e30))
    )
    began = time.monotonic()
    report = best_batches(endless, np.array([1, 2, 3]), gap=1e-9, time_limit=0.3)
    assert time.monotonic() - began < 5  # without the limit it takes many times as long
    assert not faults(report, endless)


def test_a_problem_with_a_single_plan_leaves_nothing_to_save() -> None:
    problem = random_problem(3001, devices=(4, 4), layers=(1, 1), max_batch=1)
    problem = replace(
        problem, fleet=replace(problem.fleet, memory=np.full(4, 1e15)), target=problem.target * 1e3
    )
    for report in (
        best_plan(problem),
        best_cuts(problem, np.ones(4, int)),
        best_batches(problem, np.ones(4, int)),
    ):
        assert report.gap == 0.0
    two = replace(problem, max_batch=2)
    assert not AllowedPlans.anything(two).leaves_one_plan(CostTables.of(two))


def test_a_target_at_the_floor_is_out_of_reach() -> None:
    problem = random_problem(3001, devices=(3, 3), layers=(3, 3))
    problem = replace(problem, fleet=replace(problem.fleet, memory=np.full(3, 1e15)))
    largest = Plan.uniform(3, batch_size=problem.max_batch, cut=1)
    floor = problem.target - law_of(problem).target_margin(largest)
    touched = replace(problem, target=float(np.nextafter(floor, np.inf)))
    with pytest.raises(Infeasible, match=r"\(C1\)"):
        best_plan(touched)
    with pytest.raises(TargetUnreachable):
        evaluate(largest, touched)


# ── large fleets ─────────────────────────────────────────────────────────────────────────────────────────


def hard_fleet(seed: int, devices: int) -> Problem:
    """Noise, server and links grow with N: many different devices at the edge of what pays."""
    problem = random_problem(seed, devices=(devices, devices), layers=(5, 5), max_batch=32)
    grown = {
        field: getattr(problem.fleet, field) * devices / 10
        for field in ("server_flops", "server_fed_up_rate", "server_fed_down_rate")
    }
    fleet = replace(problem.fleet, memory=np.full(devices, 1e15), **grown)
    return replace(problem, fleet=fleet, target=problem.target * 5, interval=15)


@pytest.mark.parametrize("of_training", [False, True])
def test_bounds_of_hard_fleets_agree_whatever_the_grid(
    of_training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A box that was closed by mistake shows as a bound above a plan that another grid finds."""
    for seed in (4001, 4003, 4005):
        problem = hard_fleet(seed, 60)
        problem = measured(problem, seed) if of_training else problem
        found = []
        for count in (16, 576, 2000):
            monkeypatch.setattr(cells, "CELLS", count)
            found.append(best_plan(problem, gap=1e-3, time_limit=60))
        assert max(report.lower_bound or 0.0 for report in found) <= min(report.objective for report in found)
        assert all(report.status == "optimal" and not faults(report, problem) for report in found)


def test_no_neighbour_of_a_plan_for_a_hard_fleet_beats_its_bound() -> None:
    problem = hard_fleet(4001, 100)
    report = best_plan(problem, gap=1e-3)
    rng = np.random.default_rng(0)
    batches, cuts = (np.tile(each, (3000, 1)) for each in (report.plan.batch_sizes, report.plan.cuts))
    changed = rng.random(batches.shape) < 0.03
    batches = np.where(changed, np.clip(batches + rng.integers(-2, 3, batches.shape), 1, 32), batches)
    cuts = np.where(rng.random(cuts.shape) < 0.02, rng.integers(1, 6, cuts.shape), cuts)
    assert objectives(problem, batches, cuts).min() >= report.lower_bound


def test_stopped_early_the_plan_is_the_best_of_what_is_cheap() -> None:
    problem = hard_fleet(4001, 300)
    early = best_plan(problem, gap=1e-6, time_limit=0.0)
    assert early.status == "limit"
    assert early.lower_bound > 0  # the roots are bounded in any case
    again = best_batches(problem, early.plan.cuts, gap=1e-4)
    assert early.objective <= again.objective * (1 + 1e-4)


@pytest.mark.parametrize(
    ("unpaid", "device_worth", "given_away", "expected"),
    [
        (1.0, 0.0, 0.0, True),  # a point that holds several plans
        (0.0, 0.0, 0.0, False),  # a point that holds one plan
        (0.5, 9.0, 1.0, False),  # the choice stays below what is needed: narrower sides are needed
        (2.0, 0.0, 0.1, True),  # narrow sides
        (2.0, 0.0, 3.0, False),  # wide sides, and no single device matters
        (2.0, 9.0, 3.0, True),  # wide sides, but one device matters more than what is missing
    ],
)
def test_when_devices_are_split(
    unpaid: float, device_worth: float, given_away: float, expected: bool
) -> None:
    ones = np.ones(1)
    choice = Choice(ones.astype(np.int64), ones, 0.0, np.ones(4), unpaid=unpaid, device_worth=device_worth)
    assert price_is_to_blame(choice, given_away, missing=1.0, point=1e-12) is expected
