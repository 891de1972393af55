"""Every strategy by name: its plans keep the constraints, and none beats hasfl; the grammar of names."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from hasfl.errors import Infeasible, InputError, TargetUnreachable
from hasfl.plan import Plan
from hasfl.planning.exact.planner import best_plan
from hasfl.planning.paper.algorithm_2 import algorithm_2, alternate
from hasfl.planning.strategies.catalogue import STRATEGIES, strategy
from hasfl.planning.strategies.rules import (
    GAP,
    FixedBatch,
    Situation,
    fixed_cut,
    habs,
    hams,
    largest_batches,
    random_batches,
    random_cuts,
    resource_aware_cuts,
)
from hasfl.planning.tables import largest_batch_in_memory
from hasfl.planning.verify import faults
from hasfl.theory.objective import evaluate, margins
from hasfl.theory.paradigms import CENTRALISED, FEDERATED, SEQUENTIAL, SPLIT
from tests.planning.random_problems import measured
from tests.planning.situations import hopeless, only, pair, random_situation, roomy, situation

SEEDS = st.integers(0, 10_000)
RANDOM = ("rbs+hams", "habs+rms", "rbs+rms", "rbs+rhams")
MIXTURES = ("habs+rhams", "habs+cut=1", "b=4+hams", "b=4+rms", "b=4+rhams", "rbs+cut=1", "fixed:b=2,cut=1")
BATCHES = st.sampled_from(["habs", "rbs"]) | st.integers(1, 999).map("b={}".format)
CUTS = st.sampled_from(["hams", "rms", "rhams"]) | st.integers(1, 999).map("cut={}".format)


def plan_of(name: str, now: Situation) -> Plan | None:
    try:
        return strategy(name).plan(now)
    except Infeasible:
        return None


def keeps_its_limits(plan: Plan, now: Situation) -> bool:
    left = margins(plan, now.problem)
    return bool((left.memory >= 0).all() and (left.max_batch >= 0).all())


@pytest.mark.parametrize("name", RANDOM)
@given(SEEDS)
@hypothesis_settings(max_examples=40)
def test_random_strategies_always_have_a_plan_that_fits(name: str, seed: int) -> None:
    now = random_situation(seed)
    plan = strategy(name).plan(now)
    assert keeps_its_limits(plan, now)
    assert strategy(name).plan(now) == plan
    try:
        assert not faults(evaluate(plan, now.problem), now.problem)
    except TargetUnreachable:
        assert not margins(plan, now.problem).kept


@pytest.mark.parametrize("name", ["hasfl", "hasfl-bcd", "habs+cut=1", "b=4+hams", "habs+rhams"])
@given(SEEDS)
@hypothesis_settings(max_examples=40)
def test_optimising_strategies_reach_the_target_or_say_that_they_cannot(name: str, seed: int) -> None:
    now = random_situation(seed)
    if plan := plan_of(name, now):
        assert not faults(evaluate(plan, now.problem), now.problem)
    elif name == "hasfl":
        assert plan_of("hasfl-bcd", now) is None


@given(SEEDS)
@hypothesis_settings(max_examples=40)
def test_nothing_beats_hasfl(seed: int) -> None:
    now = random_situation(seed)
    best = plan_of("hasfl", now)
    for name in (*STRATEGIES, *MIXTURES):
        plan = plan_of(name, now)
        if plan is not None and margins(plan, now.problem).kept:
            assert best is not None, name
            ours, theirs = (evaluate(each, now.problem).objective for each in (best, plan))
            assert ours * (1 - GAP) <= theirs * (1 + 1e-12), name


@pytest.mark.parametrize("name", ["fl", "sl", "sfl"])
@given(SEEDS)
@hypothesis_settings(max_examples=30)
def test_paradigms_use_one_cut_that_fits_or_name_the_device(name: str, seed: int) -> None:
    now = random_situation(seed)
    layers = len(now.problem.profile)
    cut = layers if name == "fl" else max(1, layers // 4)
    room = largest_batch_in_memory(now.problem, np.full(len(now.devices), cut - 1))
    plan = plan_of(name, now)
    if plan is None:
        assert (room < 1).any()
    else:
        assert set(plan.cuts.tolist()) == {cut}
        assert (plan.batch_sizes == np.minimum(room, min(16, now.problem.max_batch))).all()


def test_what_the_server_does_alone_needs_no_memory_of_devices() -> None:
    now = situation(roomy(1))
    fleet = replace(now.problem.fleet, memory=np.ones(len(now.devices)))
    tiny = replace(now, problem=replace(now.problem, fleet=fleet, max_batch=64))
    plan = strategy("cl:b=20").plan(tiny)
    assert plan == Plan.uniform(len(fleet), batch_size=20, cut=len(now.problem.profile))


def test_the_table_says_what_each_name_is() -> None:
    assert list(STRATEGIES) == [
        "hasfl", "hasfl-bcd", "proportional", "rbs+hams", "habs+rms", "rbs+rms", "habs+rms-alike",
        "rbs+rms-alike",
        "rbs+rhams", "fl", "sl", "sfl", "cl",
    ]  # fmt: skip
    paradigms = {name: strategy(name).paradigm for name in STRATEGIES}
    assert [paradigms.pop(name) for name in ("fl", "sl", "cl")] == [FEDERATED, SEQUENTIAL, CENTRALISED]
    assert set(paradigms.values()) == {SPLIT}
    reading = {name for name in (*STRATEGIES, *MIXTURES) if strategy(name).uses_constants}
    assert reading == {
        "hasfl", "hasfl-bcd", "proportional", "rbs+hams", "habs+rms", "habs+rms-alike", "habs+rhams",
        "habs+cut=1", "b=4+hams",
    }  # fmt: skip


def test_together_is_the_planner_of_that_name() -> None:
    now = random_situation(7)
    assert strategy("hasfl").plan(now) == best_plan(now.problem).plan
    assert strategy("hasfl-bcd").plan(now) == alternate(now.problem).plan
    now = situation(measured(roomy(7), 7))
    assert strategy("hasfl-bcd").plan(now) == algorithm_2(now.problem).plan


def test_pairs_ask_the_independent_rule_first() -> None:
    now = situation(roomy(5))
    ones = np.ones(len(now.devices), dtype=np.int64)
    drawn, cuts = random_batches(now, ones), random_cuts(now, ones)
    assert strategy("rbs+hams").plan(now) == Plan(drawn, hams(now, drawn))
    assert strategy("rbs+rhams").plan(now) == Plan(drawn, resource_aware_cuts(now, drawn))
    assert strategy("habs+rms").plan(now) == Plan(habs(now, cuts), cuts)
    assert strategy("rbs+rms").plan(now) == Plan(random_batches(now, cuts), cuts)
    assert strategy("b=3+cut=2").plan(now) == Plan.uniform(len(ones), batch_size=3, cut=2)


def test_random_choices_out_of_reach_of_the_target_still_give_a_plan() -> None:
    now = situation(hopeless(roomy(5)))
    ones = np.ones(len(now.devices), dtype=np.int64)
    drawn, cuts = random_batches(now, ones), random_cuts(now, ones)
    assert strategy("rbs+hams").plan(now) == Plan(drawn, resource_aware_cuts(now, drawn))
    largest = Plan(largest_batches(now, cuts), cuts)
    assert strategy("habs+rms").plan(now) == largest
    assert strategy("habs+rms").rebatch(now, largest) == largest
    for name in ("hasfl", "hasfl-bcd", "b=4+hams", "habs+cut=2"):
        with pytest.raises(Infeasible, match="no plan reaches target"):
            strategy(name).plan(now)


@pytest.mark.parametrize("name", ["rbs+hams", "rbs+rms", "rbs+rhams"])
def test_random_batches_are_redrawn_every_round_and_cuts_are_kept(name: str) -> None:
    now = situation(roomy(6))
    plan = strategy(name).plan(now)
    between = [strategy(name).rebatch(replace(now, round=t), plan) for t in range(2, 12)]
    assert all(np.array_equal(again.cuts, plan.cuts) for again in between)
    assert len({again.batch_sizes.tobytes() for again in between}) > 5
    assert strategy(name).rebatch(now, plan) == plan


@given(SEEDS)
@hypothesis_settings(max_examples=30)
def test_asking_hasfl_again_keeps_the_cuts_and_never_makes_it_worse(seed: int) -> None:
    now = random_situation(seed)
    if plan := plan_of("hasfl", now):
        again = strategy("hasfl").rebatch(replace(now, round=2), plan)
        assert np.array_equal(again.cuts, plan.cuts)
        best = best_plan(now.problem, gap=1e-6).plan
        replanned = strategy("hasfl").plan(replace(now, previous=best))
        values = [evaluate(each, now.problem).objective for each in (plan, again, best, replanned)]
        assert values[1] <= values[0] * (1 + 1e-9)
        assert values[3] <= values[2] * (1 + 1e-9)


@given(SEEDS)
@hypothesis_settings(max_examples=30)
def test_whoever_is_there_gets_a_plan_even_if_the_last_one_was_for_more(seed: int) -> None:
    now = random_situation(seed)
    for name in RANDOM:
        plan = strategy(name).plan(now)
        some = replace(only(now, now.devices[:1]), previous=plan)
        assert keeps_its_limits(strategy(name).plan(some), some)


@given(BATCHES, CUTS)
def test_pairs_round_trip(batch: str, cut: str) -> None:
    found = strategy(f"{batch}+{cut}")
    assert strategy(found.name) == found
    assert strategy(f" {batch.upper()}+{cut} ") == found
    assert found.name == ("hasfl" if (batch, cut) == ("habs", "hams") else f"{batch}+{cut}")


@given(st.integers(1, 999), st.integers(1, 999))
def test_options_set_the_rules(b: int, cut: int) -> None:
    assert strategy(f"fixed:cut={cut},b={b}") == strategy(f"b={b}+cut={cut}")
    for head in ("sl", "sfl"):
        found = pair(f"{head}:cut={cut}, b=0{b}")
        assert found.name == f"{head}:b={b},cut={cut}"
        assert (found.batch_rule, found.cut_rule) == (FixedBatch(b), fixed_cut(cut))
        assert found.paradigm is STRATEGIES[head].paradigm
        assert pair(f"{head}:cut={cut}").batch_rule is STRATEGIES[head].batch_rule
        assert pair(f"{head}:b={b}").cut_rule is STRATEGIES[head].cut_rule
    for head in ("fl", "cl"):
        found = pair(f"{head}:b={b}")
        assert found.name == f"{head}:b={b}"
        assert found.cut_rule is STRATEGIES[head].cut_rule


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("hasfi", "strategy 'hasfi' is not known: did you mean 'hasfl'"),
        ("habs+rsm", "did you mean 'habs\\+rms'"),
        ("rbs-hams", "did you mean 'rbs\\+hams'"),
        ("", "strategy '' is not known: expected one of hasfl, hasfl-bcd, "),
        ("zzzzzzz", "expected one of hasfl, "),
        ("hasfl:b=4", "is not known"),
        ("habs", "is not known"),
        ("rbs+rms+hams", "is not known"),
        ("b=0+hams", "b in a strategy must be a whole number of at least 1, got '0'"),
        ("b=1.5+hams", "b in a strategy must be a whole number of at least 1, got '1.5'"),
        ("b=-3+hams", "got '-3'"),
        ("b=+hams", "got ''"),
        ("b=" + "9" * 5000 + "+hams", "got '99999999999999999999'"),
        ("habs+cut=x", "cut in a strategy must be a whole number of at least 1, got 'x'"),
        ("sfl:b=²", "got '²'"),
        ("fl:cut=4", "strategy fl takes the options b, each once, got 'cut=4'"),
        ("sfl:b=4,b=5", "strategy sfl takes the options b and cut, each once, got 'b=5'"),
        ("sfl:", "strategy sfl takes the options b and cut, each once, got ''"),
        ("fixed:b=4", "strategy fixed needs b and cut, as in 'fixed:b=16,cut=4', got 'b=4'"),
    ],
)
def test_faults_are_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as fault:
        strategy(text)
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize("name", ["habs+cut=99", "b=4+cut=99", "sfl:cut=99", "rbs+cut=99"])
def test_a_cut_beyond_the_model_is_told_when_the_model_is_known(name: str) -> None:
    with pytest.raises(
        InputError, match=r"cut must be at most \d, the number of layers of the model, got 99"
    ):
        strategy(name).plan(situation(roomy(3)))
