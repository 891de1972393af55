"""Batch rules and cut rules: against brute force, by law, and whoever else is there."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from hasfl.arrays import IntN
from hasfl.constants import MeasuredConstants
from hasfl.errors import Infeasible, InputError
from hasfl.fleet import PER_DEVICE
from hasfl.plan import Plan
from hasfl.planning.exact.planner import best_plan
from hasfl.planning.strategies.catalogue import strategy
from hasfl.planning.strategies.rules import (
    DEFAULT_BATCH,
    GAP,
    FixedBatch,
    Rule,
    Situation,
    fixed_cut,
    habs,
    hams,
    largest_batches,
    proportional,
    proportional_batches,
    quarter_cut,
    random_batches,
    random_common_cut,
    random_cuts,
    resource_aware_cuts,
    whole_model,
)
from hasfl.planning.tables import CostTables, largest_batch_in_memory
from hasfl.problem import Problem
from hasfl.theory.objective import evaluate, memory_needed
from tests.planning.random_problems import measured
from tests.planning.situations import hopeless, only, random_situation, roomy, situation

SEEDS = st.integers(0, 10_000)


def ones(given: Situation) -> IntN:
    return np.ones(len(given.devices), dtype=np.int64)


def value(problem_of: Situation, batch_sizes: IntN, cuts: IntN) -> float:
    """Θ, infinite for a plan that breaks a constraint."""
    try:
        report = evaluate(Plan(batch_sizes, cuts), problem_of.problem)
    except InputError:
        return np.inf
    return report.objective if report.feasible else np.inf


@given(SEEDS)
def test_the_largest_batches_fit_and_one_more_does_not(seed: int) -> None:
    now = random_situation(seed)
    cuts = random_cuts(now, ones(now))
    most = largest_batches(now, cuts)
    problem = now.problem
    assert (most >= 1).all()
    assert (memory_needed(Plan(most, cuts), problem.profile) <= problem.fleet.memory).all()
    more = memory_needed(Plan(most + 1, cuts), problem.profile)
    assert ((most == problem.max_batch) | (more > problem.fleet.memory)).all()


@given(SEEDS, st.integers(1, 99))
def test_batches_are_as_wanted_as_far_as_they_fit(seed: int, wanted: int) -> None:
    now = random_situation(seed)
    cuts = random_cuts(now, ones(now))
    most = largest_batches(now, cuts)
    wanted = min(wanted, now.problem.max_batch)
    assert (FixedBatch(wanted)(now, cuts) == np.minimum(wanted, most)).all()
    roomy_draw = random_batches(replace(now, problem=with_memory(now, 1e15)), cuts)
    assert (random_batches(now, cuts) == np.minimum(roomy_draw, most)).all()
    few = replace(now, problem=replace(now.problem, samples=np.full(len(cuts), 2)))
    assert (random_batches(few, cuts) <= 2).all()
    assert (FixedBatch(wanted, on_devices=False)(few, cuts) == min(wanted, 2)).all()


@pytest.mark.parametrize("on_devices", [True, False])
def test_a_fixed_batch_above_max_batch_is_refused_and_the_default_is_not(on_devices: bool) -> None:
    now = situation(replace(roomy(3), max_batch=8))
    for wanted in (9, 1000):
        expected = f"batch size {wanted} of the strategy is above max_batch, which is 8: choose a smaller"
        with pytest.raises(InputError, match=expected):
            FixedBatch(wanted, on_devices)(now, ones(now))
    assert (FixedBatch(8, on_devices)(now, ones(now)) == 8).all()
    assert (FixedBatch(None, on_devices)(now, ones(now)) == 8).all()
    roomier = replace(now, problem=replace(now.problem, max_batch=64))
    assert (FixedBatch(None, on_devices)(roomier, ones(now)) == DEFAULT_BATCH).all()


def test_a_note_names_the_devices_that_get_another_batch_size() -> None:
    problem = replace(roomy(3), max_batch=8)
    devices = len(problem.fleet)
    few = replace(problem, samples=np.array([9, 3, *[9] * (devices - 2)]))
    now, rule = situation(few), FixedBatch(4)
    plan = Plan(rule(now, ones(now)), ones(now))
    assert rule.note(plan, few) == (
        f"batch sizes: 1 of {devices} devices do not get 4 samples, because their memory or samples allow no "
        "more; device '2' gets 3"
    )
    assert rule.note(Plan(rule(situation(problem), ones(now)), ones(now)), problem) is None
    strict = replace(problem, profile=replace(problem.profile, smallest_batch_of=[2] * len(problem.profile)))
    two = Plan(FixedBatch(1)(situation(strict), ones(now)), ones(now))
    note = FixedBatch(1).note(two, strict) or ""
    assert note.endswith(
        "do not get 1 samples, because their layers cannot train on fewer; device '1' gets 2"
    )


def with_memory(now: Situation, bits: float) -> Problem:
    fleet = now.problem.fleet
    return replace(now.problem, fleet=replace(fleet, memory=np.full(len(fleet), bits)))


@pytest.mark.parametrize("rule", [random_batches, random_cuts])
@given(SEEDS, st.data())
def test_what_a_device_draws_does_not_depend_on_who_else_is_there(
    rule: Rule, seed: int, data: st.DataObject
) -> None:
    now = random_situation(seed)
    devices = data.draw(
        st.lists(st.sampled_from(range(len(now.devices))), min_size=1, unique=True).map(sorted)
    )
    drawn = rule(now, ones(now))
    some = only(now, np.array(devices))
    assert rule(some, ones(some)).tolist() == drawn[devices].tolist()
    assert rule(now, ones(now)).tolist() == drawn.tolist()


@given(SEEDS)
def test_a_common_random_cut_fits_every_device(seed: int) -> None:
    now = random_situation(seed)
    cuts = random_common_cut(now, ones(now))
    assert len(set(cuts.tolist())) == 1
    assert (memory_needed(Plan(ones(now), cuts), now.problem.profile) <= now.problem.fleet.memory).all()


@pytest.mark.parametrize(("rule", "choices"), [(random_batches, 8), (random_cuts, 5)])
def test_draws_are_uniform_and_fresh_in_every_round(rule: Rule, choices: int) -> None:
    problem = roomy(1)
    now = situation(replace(problem, max_batch=8))
    assert len(problem.profile) == 5
    rounds = 1500
    drawn = np.array([rule(replace(now, round=t), ones(now)) for t in range(1, rounds + 1)])
    expected = drawn.size / choices
    counted = Counter(drawn.ravel().tolist())
    assert sorted(counted) == list(range(1, choices + 1))
    assert all(abs(found - expected) < 5 * np.sqrt(expected) for found in counted.values())
    repeats = (drawn[1:] == drawn[:-1]).mean()
    assert repeats == pytest.approx(1 / choices, abs=5 / np.sqrt(drawn.size))
    alike = (drawn[:, 0] == drawn[:, 1]).mean()
    assert alike == pytest.approx(1 / choices, abs=5 * np.sqrt(1 / choices / rounds))


def test_a_common_random_cut_is_uniform_and_fresh_in_every_round() -> None:
    now, rounds = situation(roomy(1)), 1500
    drawn = np.array([random_common_cut(replace(now, round=t), ones(now))[0] for t in range(1, rounds + 1)])
    expected = rounds / len(now.problem.profile)
    assert all(abs((drawn == cut).sum() - expected) < 5 * np.sqrt(expected) for cut in range(1, 6))
    assert (drawn[1:] == drawn[:-1]).sum() == pytest.approx(expected, abs=5 * np.sqrt(expected))


def test_another_seed_draws_others() -> None:
    one, other = (situation(roomy(2), seed=seed) for seed in (0, 1))
    differs = [
        rule(replace(one, round=t), ones(one)).tolist() != rule(replace(other, round=t), ones(other)).tolist()
        for t in range(1, 6)
        for rule in (random_batches, random_cuts)
    ]
    assert any(differs)


@given(SEEDS)
def test_random_cuts_are_drawn_from_all_that_fit_and_no_others(seed: int) -> None:
    now = random_situation(seed)
    room = largest_batch_in_memory(now.problem, slice(None))
    drawn = np.array([random_cuts(replace(now, round=t), ones(now)) for t in range(1, 30)])
    for i, row in enumerate(room):
        fits = set((np.flatnonzero(row >= 1) + 1).tolist())
        assert set(drawn[:, i].tolist()) <= fits
        assert len(fits) == 1 or len(set(drawn[:, i].tolist())) > 1


@given(SEEDS, st.sampled_from([1e-3, 1e-2, 1.0]))
def test_resource_aware_cuts_are_each_devices_own_quickest(seed: int, server_speed: float) -> None:
    now = random_situation(seed)
    fleet = now.problem.fleet
    slower = replace(fleet, server_flops=fleet.server_flops * server_speed)
    now = replace(now, problem=replace(now.problem, fleet=slower))
    batch_sizes = random_batches(now, ones(now))
    cuts = resource_aware_cuts(now, batch_sizes)
    for i in range(len(cuts)):
        seconds = [own_seconds(now, i, int(batch_sizes[i]), j) for j in range(len(now.problem.profile))]
        assert seconds[cuts[i] - 1] == pytest.approx(min(seconds), rel=1e-9)
        assert np.isfinite(seconds[cuts[i] - 1])


def own_seconds(now: Situation, i: int, b: int, j: int) -> float:
    """What device i alone takes for a round with cut j + 1, by plain sums; infinite if it does not fit."""
    profile, device, problem = now.problem.profile, now.problem.fleet[i], now.problem
    held = sum(profile.activation_bits_at[k] + profile.gradient_bits_at[k] for k in range(j + 1))
    exchanged = profile.param_bits_upto[j] + profile.optimizer_bits_upto[j]
    if b * held + exchanged > device.memory:
        return np.inf
    forward, backward = profile.forward_flops_upto, profile.backward_flops_upto
    return float(
        b * (forward[j] + backward[j]) / device.flops
        + b * profile.activation_bits_at[j] / device.up_rate
        + b * profile.gradient_bits_at[j] / device.down_rate
        + b * (forward[-1] - forward[j] + backward[-1] - backward[j]) / problem.fleet.server_flops
        + (exchanged / device.fed_up_rate + exchanged / device.fed_down_rate) / problem.interval
    )


@given(SEEDS)
@hypothesis_settings(max_examples=40)
def test_the_best_batches_and_cuts_are_not_beaten(seed: int) -> None:
    now = random_situation(seed)
    cuts = random_cuts(now, ones(now))
    others = [random_batches(replace(now, round=t), cuts) for t in range(20)]
    try:
        found = habs(now, cuts)
    except Infeasible:
        assert all(value(now, b, cuts) == np.inf for b in others)
        return
    best = value(now, found, cuts)
    assert all(best * (1 - GAP) <= value(now, b, cuts) for b in others)
    best = value(now, found, hams(now, found))
    assert all(
        best * (1 - GAP) <= value(now, found, random_cuts(replace(now, round=t), found)) for t in range(20)
    )


@given(SEEDS)
@hypothesis_settings(max_examples=40)
def test_a_previous_plan_is_never_made_worse_and_one_that_does_not_fit_does_no_harm(seed: int) -> None:
    now = random_situation(seed)
    cuts = random_cuts(now, ones(now))
    previous = Plan(random_batches(now, cuts), cuts)
    after = replace(now, previous=previous)
    if (worth := value(now, previous.batch_sizes, cuts)) < np.inf:
        assert value(now, habs(after, cuts), cuts) <= worth * (1 + 1e-9)
        b = previous.batch_sizes
        assert value(now, b, hams(after, b)) <= worth * (1 + 1e-9)
        for other in (
            Plan.uniform(len(cuts) + 1, batch_size=1, cut=1),
            Plan.uniform(len(cuts), batch_size=1, cut=99),
        ):
            odd = replace(now, previous=other)
            assert odd.start is None
            assert value(now, habs(odd, cuts), cuts) * (1 - GAP) <= worth


def test_rules_for_one_cut() -> None:
    now = situation(roomy(3))
    layers = len(now.problem.profile)
    assert set(fixed_cut(layers)(now, ones(now)).tolist()) == {layers}
    assert set(whole_model(now, ones(now)).tolist()) == {layers}
    assert set(quarter_cut(now, ones(now)).tolist()) == {max(1, layers // 4)}
    assert fixed_cut(4) is fixed_cut(4)
    with pytest.raises(InputError, match=f"cut must be at most {layers}, .* got {layers + 1}"):
        fixed_cut(layers + 1)(now, ones(now))


def test_a_device_without_memory_is_named() -> None:
    now = situation(roomy(3))
    tiny = replace(now, problem=with_memory(now, 1.0))
    for rule in (FixedBatch(1), random_batches, random_cuts, largest_batches):
        with pytest.raises(
            Infeasible, match=r"device '1' has 0.125 B of memory, but cut 1 needs .* cut earlier"
        ):
            rule(tiny, ones(tiny))
    with pytest.raises(Infeasible, match="device '1' cannot train on 1 samples at any cut"):
        resource_aware_cuts(tiny, ones(tiny))


def test_blind_rules_do_not_see_the_target() -> None:
    now = situation(roomy(4))
    blind = replace(now, problem=hopeless(now.problem))
    for rule in (random_batches, random_cuts, resource_aware_cuts, FixedBatch(3), quarter_cut):
        assert rule(now, ones(now)).tolist() == rule(blind, ones(now)).tolist()


def test_devices_are_counted() -> None:
    with pytest.raises(InputError, match=r"devices has 1 entries but problem\.fleet has"):
        replace(situation(roomy(4)), devices=np.array([0]))


def with_batch_norm(problem: Problem, price: float) -> Problem:
    layers = len(problem.profile)
    constants = MeasuredConstants(rounds=1.0, noise=1e-4, drift_of=np.zeros(layers), single_noise=price)
    profile = replace(problem.profile, batch_norm_of=np.ones(layers, dtype=bool))
    return replace(problem, profile=profile, constants=constants, target=None)


def test_a_device_that_leaves_does_not_drive_the_others_from_single_samples() -> None:
    """Batch sizes within an interval follow the same law as the plan at its beginning."""
    whole = situation(with_batch_norm(roomy(5), 1.5))
    plan = strategy("hasfl").plan(whole)
    assert (plan.batch_sizes == 1).all()
    rest = only(whole, np.arange(1, len(whole.devices)))
    cuts = plan.cuts[1:]
    assert (habs(rest, cuts) == 1).all()
    costly = replace(rest, problem=with_batch_norm(rest.problem, 1e9))
    assert (habs(costly, cuts) >= 2).all()


def test_no_rule_gives_fewer_samples_than_layers_can_train_on() -> None:
    problem = roomy(5)
    layers = len(problem.profile)
    strict = replace(problem, profile=replace(problem.profile, smallest_batch_of=np.full(layers, 2)))
    now, cuts = situation(strict), np.ones(len(problem.fleet), dtype=np.int64)
    assert (FixedBatch(1)(now, cuts) == 2).all()
    assert all((random_batches(replace(now, round=t), cuts) >= 2).all() for t in range(1, 40))
    poor = situation(replace(strict, samples=np.ones(len(problem.fleet), dtype=np.int64)))
    with pytest.raises(Infeasible, match="need 2 samples to train on"):
        FixedBatch(1)(poor, cuts)


# ── one cut for all, and batch sizes in proportion to speed ──────────────────────────────────────────────


@given(SEEDS)
def test_a_proportional_plan_is_feasible_and_never_better_than_the_best_plan(seed: int) -> None:
    now = random_situation(seed)
    now = replace(now, problem=measured(now.problem, seed))
    try:
        plan = proportional(now)
    except Infeasible:
        with pytest.raises(Infeasible):
            best_plan(now.problem)
        return
    assert len(set(plan.cuts.tolist())) == 1
    report = evaluate(plan, now.problem)
    assert report.feasible
    assert report.objective >= best_plan(now.problem, gap=1e-6).objective * (1 - 1e-5)


@given(SEEDS)
def test_a_quicker_device_never_gets_fewer_samples(seed: int) -> None:
    now = situation(measured(roomy(seed), seed))
    plan = proportional(now)
    tables = CostTables.of(now.problem)
    seconds = (tables.up_seconds + tables.down_seconds)[np.arange(len(plan)), plan.cut_index]
    assert (np.diff(plan.batch_sizes[np.argsort(seconds)]) <= 0).all()
    assert (proportional_batches(now, plan.cuts) == plan.batch_sizes).all()


def test_equal_devices_get_equal_batches_and_the_best_cut_for_these() -> None:
    problem = measured(roomy(4), 4)
    first = {field: np.full(len(problem.fleet), getattr(problem.fleet, field)[0]) for field in PER_DEVICE}
    now = situation(replace(problem, fleet=replace(problem.fleet, **first)))
    plan = proportional(now)
    assert len(set(plan.batch_sizes.tolist())) == 1
    found = evaluate(plan, now.problem).objective
    for cut in range(1, len(problem.profile) + 1):
        cuts = np.full(len(problem.fleet), cut)
        other = replace(plan, cuts=cuts, batch_sizes=proportional_batches(now, cuts))
        assert found <= evaluate(other, now.problem).objective


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(Infeasible, match="reach the target"):
        proportional(situation(hopeless(roomy(2))))
    tiny = roomy(2)
    none = replace(tiny, fleet=replace(tiny.fleet, memory=np.ones(len(tiny.fleet))))
    with pytest.raises(Infeasible, match="of memory"):
        proportional(only(situation(none), np.array([0])))
