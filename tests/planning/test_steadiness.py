"""Plans that do not flap: against the sum done by hand, and by law."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from hasfl.constants import Guess, Guesses
from hasfl.errors import TargetUnreachable
from hasfl.plan import Plan
from hasfl.planning.exact.planner import best_plan
from hasfl.planning.strategies.catalogue import strategy
from hasfl.planning.strategies.decider import CAUTION, StrategyDecider
from hasfl.planning.strategies.decider import saving as saving_of
from hasfl.problem import Problem
from hasfl.seeds import Seeds
from hasfl.theory.objective import evaluate
from tests.lanes import quick_then_slow
from tests.planning.random_problems import measured, random_problem

SEEDS = st.integers(0, 10_000)
ERRORS = st.sampled_from([0.0, 0.05, 0.3, 1.0])
WIDTHS = st.integers(0, 20).map(lambda k: k / 20)


def random_plan(problem: Problem, rng: np.random.Generator) -> Plan:
    devices = len(problem.fleet)
    return Plan(
        rng.integers(1, problem.max_batch + 1, devices), rng.integers(1, len(problem.profile) + 1, devices)
    )


def case(
    seed: int, noise_error: float = 0.0, drift_error: float = 0.0, skew_error: float = 0.0
) -> tuple[Plan, Plan, Problem]:
    """Two plans of a problem with room for every plan; half the time the second is the best one."""
    rng = np.random.default_rng(seed)
    given = measured(random_problem(seed, devices=(1, 4)), seed)
    fleet = replace(given.fleet, memory=np.full(len(given.fleet), 1e15))
    errors = {"noise_error": noise_error, "drift_error": drift_error, "skew_error": skew_error}
    problem = replace(given, fleet=fleet, constants=replace(given.constants, **errors))
    old, other = random_plan(problem, rng), random_plan(problem, rng)
    return old, best_plan(problem, gap=1e-2).plan if rng.random() < 0.5 else other, problem


def with_errors(problem: Problem, noise: float, drift: float, skew: float = 0.0) -> Problem:
    errors = {"noise_error": noise, "drift_error": drift, "skew_error": skew}
    return replace(problem, constants=replace(problem.constants, **errors))


def moving_seconds(old: Plan, new: Plan, problem: Problem) -> float:
    """What the aggregation takes longer that turns one plan into the other, device by device."""

    def aggregation(before: Plan, after: Plan) -> float:
        delta = [0.0, *problem.profile.submodel_bits_upto]
        fleet, J, K = problem.fleet, before.deepest_cut, after.deepest_cut
        up = [delta[cut] / rate for cut, rate in zip(before.cuts, fleet.fed_up_rate, strict=True)]
        down = [delta[cut] / rate for cut, rate in zip(after.cuts, fleet.fed_down_rate, strict=True)]
        server_up = sum(delta[J] - delta[cut] for cut in before.cuts) + max(delta[K] - delta[J], 0.0)
        server_down = sum(delta[K] - delta[cut] for cut in after.cuts) + max(delta[J] - delta[K], 0.0)
        return max(*up, server_up / fleet.server_fed_up_rate) + max(
            *down, server_down / fleet.server_fed_down_rate
        )

    return max(aggregation(old, new) - aggregation(old, old), 0.0)


def saved_seconds(old: Plan, new: Plan, problem: Problem) -> float:
    """Of the work that a round of the old plan does: less rounds, or shorter ones; 1 ‰ is nothing."""
    before, after = evaluate(old, problem), evaluate(new, problem)
    rounds_of_new = after.rounds / before.rounds  # that do what a round of the old plan does
    return 0.999 * before.round_seconds - rounds_of_new * after.round_seconds


def off(problem: Problem, noisier: int, drifting: int, skewer: int = 0) -> Problem:
    """So many standard errors of noise, drift and skew away; layers share skew's error as skew."""
    constants = problem.constants
    noise = constants.noise * math.exp(noisier * constants.noise_error)
    drift = constants.drift_of * math.exp(drifting * constants.drift_error)
    shared = constants.skew_of if constants.skew_of.any() else constants.drift_of
    shares = shared / max(shared.sum(), 1e-300)
    skew = np.maximum(constants.skew_of + skewer * constants.skew_error * shares, 0.0)
    return replace(problem, constants=replace(constants, noise=noise, drift_of=drift, skew_of=skew))


def worth_changing(old: Plan, new: Plan, problem: Problem, *, rounds: int) -> bool:
    return saving_of(old, new, problem, rounds=rounds).pays


def naive_error(old: Plan, new: Plan, problem: Problem) -> float:
    """Seconds of a round's saving that may be lost: errors of independent constants add up as squares."""
    variance = 0.0
    for one, other in (((1, 0), (-1, 0)), ((0, 1), (0, -1)), ((0, 0, 1), (0, 0, -1))):
        lost = [
            saved_seconds(old, new, problem) - saved_seconds(old, new, off(problem, *far))
            for far in (one, other)
        ]
        variance += max(*lost, 0.0) ** 2
    return math.sqrt(variance)


@given(SEEDS, ERRORS, ERRORS, ERRORS, st.integers(1, 5000))
def test_by_hand(seed: int, noise: float, drift: float, skew: float, rounds: int) -> None:
    old, new, problem = case(seed, noise, drift, skew)
    error, whole = naive_error(old, new, problem), rounds * evaluate(old, problem).round_seconds
    surplus = rounds * (saved_seconds(old, new, problem) - CAUTION * error)
    surplus -= moving_seconds(old, new, problem)
    found = saving_of(old, new, problem, rounds=rounds)
    assert found.error == pytest.approx(rounds * error / whole, rel=1e-6, abs=1e-9)
    assert found.pays == (surplus > 0) or abs(surplus) <= 1e-12 * whole


def close_calls(*errors: float) -> Iterator[tuple[Plan, Plan, Problem]]:
    """From single samples at the first cut to large batches at the last one, or back, over many noises."""
    for seed in range(20):
        _, _, problem = case(seed, *errors)
        deep, small = (
            Plan.uniform(len(problem.fleet), batch_size=b, cut=cut)
            for b, cut in ((problem.max_batch, len(problem.profile)), (1, 1))
        )
        for noise in 10.0 ** np.arange(-2, 3, 0.2):
            constants = replace(problem.constants, noise=noise, skew_of=np.zeros(len(problem.profile)))
            yield small, deep, replace(problem, constants=constants)
            yield deep, small, replace(problem, constants=constants)


@pytest.mark.parametrize("errors", [(1.0, 0, 0), (0, 1.0, 0), (0, 0, 1.0)], ids=["noise", "drift", "skew"])
def test_either_error_alone_may_speak_against_a_change(errors: tuple[float, float, float]) -> None:
    kept = 0
    for old, new, problem in close_calls(*errors):
        sure = worth_changing(old, new, with_errors(problem, 0.0, 0.0), rounds=10**9)
        kept += sure and not worth_changing(old, new, problem, rounds=10**9)
    assert kept > 3


@pytest.mark.slow
def test_errors_of_both_weigh_less_than_their_sum() -> None:
    """Both constants are seldom off in the worst way at once."""
    bold = 0
    for old, new, problem in close_calls(0.5, 1.0):
        worst = min(saved_seconds(old, new, off(problem, up, down)) for up in (-1, 1) for down in (-1, 1))
        bold += worst < 0 and worth_changing(old, new, problem, rounds=10**9)
    assert bold > 3


@pytest.mark.slow
def test_less_than_a_thousandth_is_not_worth_a_change() -> None:
    """However many rounds there are, and though nothing moves: the cuts stay."""
    little = 0
    for seed in range(300):
        old, _, problem = case(seed)
        more = old.batch_sizes.copy()
        more[0] += 1
        new = Plan(more, old.cuts)
        saving = 1 - evaluate(new, problem).objective / evaluate(old, problem).objective
        if more[0] <= problem.max_batch and abs(saving - 1e-3) > 1e-12:
            assert worth_changing(old, new, problem, rounds=10**9) == (saving > 1e-3)
            little += 0 < saving < 1e-3
    assert little > 3


def test_both_answers_come() -> None:
    answers = [worth_changing(*case(seed, 0.3, 0.3), rounds=200) for seed in range(60)]
    assert 10 < sum(answers) < 50


@given(SEEDS, ERRORS, st.integers(1, 10**9))
def test_a_plan_is_never_worth_changing_for_itself(seed: int, error: float, rounds: int) -> None:
    old, _, problem = case(seed, error, error)
    assert not worth_changing(old, Plan(old.batch_sizes.copy(), old.cuts.copy()), problem, rounds=rounds)


@given(SEEDS, ERRORS, ERRORS, st.integers(1, 1000), st.integers(1, 1000))
def test_more_rounds_never_speak_against_a_change(
    seed: int, noise_error: float, drift_error: float, rounds: int, more: int
) -> None:
    old, new, problem = case(seed, noise_error, drift_error)
    if worth_changing(old, new, problem, rounds=rounds):
        assert worth_changing(old, new, problem, rounds=rounds + more)


@given(SEEDS, WIDTHS, WIDTHS, WIDTHS, WIDTHS, st.integers(1, 1000))
def test_larger_errors_never_speak_for_a_change(
    seed: int, noise: float, more_noise: float, drift: float, more_drift: float, rounds: int
) -> None:
    old, new, problem = case(seed)
    narrow = with_errors(problem, noise, drift)
    wide = with_errors(problem, noise + more_noise, drift + more_drift)
    if worth_changing(old, new, wide, rounds=rounds):
        assert worth_changing(old, new, narrow, rounds=rounds)
        assert worth_changing(old, new, problem, rounds=rounds)


@given(SEEDS, ERRORS, st.integers(1, 10**9))
@hypothesis_settings(max_examples=40)
def test_they_do_not_go_there_and_back(seed: int, error: float, rounds: int) -> None:
    old, new, problem = case(seed, error, error)
    there, back = (worth_changing(*pair, problem, rounds=rounds) for pair in ((old, new), (new, old)))
    assert not (there and back)


@given(SEEDS)
@hypothesis_settings(max_examples=40)
def test_a_plan_that_does_not_fit_any_more_is_changed_at_once(seed: int) -> None:
    old, _, problem = case(seed, 0.5, 0.5)
    one = Plan.uniform(len(problem.fleet), batch_size=1, cut=1)
    assume(old.batch_sizes.max() > 1)
    fewer = replace(problem, max_batch=int(old.batch_sizes.max()) - 1)
    assert worth_changing(old, one, fewer, rounds=1)
    bits = problem.profile.activation_bits_upto + problem.profile.gradient_bits_upto
    needed = old.batch_sizes * bits[old.cut_index]
    needed = needed + (problem.profile.param_bits_upto + problem.profile.optimizer_bits_upto)[old.cut_index]
    tight = replace(problem, fleet=replace(problem.fleet, memory=needed * (1 - 1e-6)))
    assert worth_changing(old, one, tight, rounds=1)


def reaches(plan: Plan, problem: Problem) -> bool:
    try:
        evaluate(plan, problem)
    except TargetUnreachable:
        return False
    return True


def test_a_plan_that_misses_the_target_is_changed_at_once() -> None:
    """The paper's constants have no errors, but a floor."""
    changed = 0
    for seed in range(200):
        problem = random_problem(seed)
        rng = np.random.default_rng(seed)
        one, other = random_plan(problem, rng), random_plan(problem, rng)
        if not reaches(one, problem) and reaches(other, problem):
            assert worth_changing(one, other, problem, rounds=1)
            changed += 1
    assert changed > 3


def measured_anew(seed: int, error: float) -> list[Problem]:
    """A problem by each of fifty measurements of its constants, whose errors are so large."""
    _, _, problem = case(seed)
    rng, true = np.random.default_rng(seed), problem.constants
    off = np.exp(rng.normal(0.0, error, (50, 2)))
    known = [true.times("noise", noise).times("drift_of", drift) for noise, drift in off]
    return [with_errors(replace(problem, constants=constants), error, error) for constants in known]


def changes(seed: int, error: float) -> list[int]:
    """How often the plan changed, and how often the best plan did."""
    seen = measured_anew(seed, error)
    decider, devices = StrategyDecider(strategy("hasfl"), Seeds(0)), np.arange(len(seen[0].fleet))
    plan, taken, found = None, [], []
    for k, each in enumerate(seen):
        plan = decider.plan(each, devices, 1 + k * each.interval, plan).plan
        taken.append(plan)
        found.append(decider.answer)
    return [sum(one != other for one, other in itertools.pairwise(row)) for row in (taken, found)]


@pytest.mark.parametrize("error", quick_then_slow([0.1, 0.4, 0.8]))
def test_plans_do_not_flap(error: float) -> None:
    """Measurements of the same truth seldom change a plan, though the best one by each changes often."""
    counted = np.array([changes(seed, error) for seed in range(6)])
    assert counted[:, 1].max() >= 10
    assert 2 * counted[:, 0].sum() < counted[:, 1].sum()


def test_guesses_have_no_errors() -> None:
    """They say themselves how far off the constants may be, so any saving of the mean ratio counts."""
    old, new, problem = case(1, 1.0, 1.0)
    each = [
        Guess(says=name, weight=1.0, constants=problem.constants.times("noise", factor))
        for name, factor in (("little", 0.5), ("much", 2.0))
    ]
    found = saving_of(old, new, replace(problem, constants=Guesses(tuple(each))), rounds=1000)
    assert found.error == 0
