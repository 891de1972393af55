"""The judges of `benchmarks.hindsight`: fits, the best fixed plan over seeds, and the choice of tasks."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.hindsight.__main__ import bounded, picked
from benchmarks.hindsight.guard import Replay
from benchmarks.hindsight.laws import fitted_constants, shared_law, single_sample_factor
from benchmarks.hindsight.report.tables import cells_in_words, trained_cells
from benchmarks.hindsight.report.verdicts import Verdict
from benchmarks.hindsight.runs import (
    Results,
    Run,
    cell_seconds,
    mean_rounds,
    optimum,
    undecided,
)
from benchmarks.hindsight.settings import FLEETS, RESULTS, SETTINGS, Cell, contestants, grid, main_contest
from hasfl.plan import Plan

SETTING = "digits-iid"
TARGET = SETTINGS[SETTING].targets[1]
SHARES = {1: 0.02, 2: 0.1, 3: 0.4, 4: 0.9}


def run_of(cell: Cell, seed: int, rounds: float, **fields: Any) -> Run:
    """A run that reaches the target in the given round, or ends in round 600 without it."""
    reached = math.isfinite(rounds)
    end = rounds if reached else 600.0
    accuracy = TARGET if reached else 0.5
    clock = end * cell_seconds(SETTING, cell, "narrow", seed)
    known: dict[str, Any] = {
        "setting": SETTING,
        "seed": seed,
        "strategy": f"fixed:b={cell[0]},cut={cell[1]}",
        "fleet": "narrow",
        "serve": "mean",
        "constants": None,
        "evaluations": np.array([[end, clock, accuracy, accuracy]]),
        "plans": ((1, Plan.uniform(20, batch_size=cell[0], cut=cell[1])),),
        "gave_up": False,
    }
    return Run(**(known | fields))


def results_of(rounds: dict[tuple[Cell, int], float], made: tuple[Run, ...] = ()) -> Results:
    fixed: dict[Cell, dict[int, Run]] = {}
    for (cell, seed), r in rounds.items():
        fixed.setdefault(cell, {})[seed] = run_of(cell, seed, r)
    return Results(SETTING, fixed, made)


# ── fits ─────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=25)
@given(
    noise=st.floats(0.3, 30),
    drift=st.floats(1, 30),
    skew=st.floats(0.1, 5),
    endless=st.floats(20, 500),
    skewed=st.booleans(),
)
def test_constants_of_an_exact_law_are_found_again(
    noise: float, drift: float, skew: float, endless: float, skewed: bool
) -> None:
    rounds = {
        (b, cut): endless * (1 + skew * share * skewed + noise / b * (1 + drift * share))
        for b, (cut, share) in itertools.product((2, 4, 8, 16, 64), SHARES.items())
    }
    rounds |= {(1, cut): 1e9 for cut in SHARES}  # single samples must not matter
    found = fitted_constants(rounds, SHARES, skewed=skewed)
    assert found is not None
    assert (found.noise, found.drift, found.endless) == pytest.approx((noise, drift, endless), rel=1e-3)
    assert found.skew == pytest.approx(skew if skewed else 0.0, rel=1e-3)
    assert found.misfit < 1e-4


def test_the_error_of_fitted_constants_covers_their_true_values() -> None:
    """With scattered rounds, about two thirds of the fits err by less than their standard error."""
    rng, inside = np.random.default_rng(0), 0
    for _ in range(60):
        rounds = {
            (b, cut): 100 * (1 + 5 / b * (1 + 8 * share)) * math.exp(0.1 * rng.standard_normal())
            for b, (cut, share) in itertools.product((2, 4, 8, 16, 64), SHARES.items())
        }
        found = fitted_constants(rounds, SHARES, skewed=False)
        assert found is not None
        inside += abs(math.log(found.drift / 8)) < found.drift_error
    assert 30 <= inside <= 52


def test_single_samples_are_compared_with_a_law_that_does_not_know_them() -> None:
    rounds: dict[Cell, float] = {(b, cut): 50 * (1 + 3 * cut / b) for b in (2, 4, 8) for cut in (1, 2)}
    rounds[1, 2] = 1.5 * 50 * (1 + 6)
    assert single_sample_factor(rounds, shared_law(rounds), 2) == pytest.approx(1.5, rel=1e-4)
    assert math.isnan(single_sample_factor(rounds, shared_law(rounds), 1))


# ── the best fixed plan ──────────────────────────────────────────────────────────────────────────────────

CELLS = [(1, 1), (4, 1), (4, 3), (16, 5)]
ROUNDS = st.one_of(st.just(math.inf), st.floats(10, 500))


@given(
    rounds=st.dictionaries(st.tuples(st.sampled_from(CELLS), st.integers(0, 2)), ROUNDS, min_size=1),
    seeds=st.sets(st.integers(0, 2), min_size=1),
    fleet=st.sampled_from(list(FLEETS)),
)
def test_the_best_fixed_plan_is_the_best_of_plans_that_have_all_seeds(
    rounds: dict[tuple[Cell, int], float], seeds: set[int], fleet: str
) -> None:
    means = {}
    for cell in CELLS:
        if all((cell, seed) in rounds for seed in seeds):
            each = [rounds[cell, seed] * cell_seconds(SETTING, cell, fleet, seed) for seed in seeds]
            means[cell] = sum(each) / len(each)
    best = optimum(results_of(rounds), TARGET, "mean", fleet, seeds=seeds)
    if not means or min(means.values()) == math.inf:
        assert best is None
    else:
        assert best is not None
        assert best.seconds == pytest.approx(min(means.values()))
        assert means[best.cell] == pytest.approx(best.seconds)


def test_means_for_laws_use_only_seeds_with_the_most_plans() -> None:
    rounds: dict[tuple[Cell, int], float] = {((1, 1), 0): 10, ((4, 1), 0): 20, ((4, 1), 1): 90}
    results = results_of(rounds)
    assert results.whole_seeds == (0,)
    assert mean_rounds(results, TARGET, "mean") == {(1, 1): 10, (4, 1): 20}
    assert trained_cells(results) == ["- seed 0: b = 1, 4 at cut 1", "- seed 1: b = 4 at cut 1"]


def test_cuts_with_the_same_batch_sizes_are_named_together() -> None:
    cells = [(1, 1), (2, 1), (1, 2), (2, 2), (2, 4)]
    assert cells_in_words(cells) == "b = 1, 2 at cut 1, 2; b = 2 at cut 4"


def test_a_plan_that_ended_before_the_best_plan_is_undecided() -> None:
    """b=64 cut=1 is slow, so 600 rounds of it are longer than 30 rounds of the best; b=1 is fast."""
    rounds: dict[tuple[Cell, int], float] = {((16, 1), 0): 300, ((1, 1), 0): math.inf, ((64, 1), 0): math.inf}
    early = [cell for cell in ((1, 1), (64, 1)) if 600 * seconds(cell) < 300 * seconds((16, 1))]
    assert early == [(1, 1)]
    lines = undecided(results_of(rounds), TARGET, "mean")
    assert lines == ["narrow fleet, seed 0: b=1 cut=1", "wide fleet, seed 0: b=1 cut=1"]


def seconds(cell: Cell) -> float:
    return cell_seconds(SETTING, cell, "narrow", 0)


# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────────────


def test_ratios_are_against_plans_of_the_same_seeds() -> None:
    rounds: dict[tuple[Cell, int], float] = {
        ((1, 1), 0): 40,
        ((1, 1), 1): 60,
        ((2, 1), 0): 40,
        ((2, 1), 1): 60,
        ((4, 1), 0): 1,  # the best plan of seed 0, which seed 1 does not have
    }
    made = tuple(run_of((1, 1), seed, 30, strategy="hasfl") for seed in (0, 1))
    slower = run_of((1, 1), 1, 45, strategy="hasfl-bcd")
    verdict = Verdict(results_of(rounds, (*made, slower)), "narrow")
    one, two = cell_seconds(SETTING, (1, 1), "narrow", 0), cell_seconds(SETTING, (1, 1), "narrow", 1)
    assert verdict.ratio() == pytest.approx(30 * (one + two) / (40 * one + 60 * two))
    assert verdict.ratio_by_seed() == pytest.approx([30 * one / seconds((4, 1)), 0.5])
    assert verdict.over("hasfl-bcd") == pytest.approx(30 / 45)


def test_a_rival_that_gave_up_is_beaten_only_by_a_run_that_was_faster_than_its_end() -> None:
    rival = run_of((1, 1), 0, math.inf, strategy="hasfl-bcd", gave_up=True)  # ends in round 600
    for rounds, expected in ((300, 0.5), (601, math.nan)):
        made = (run_of((1, 1), 0, rounds, strategy="hasfl"), rival)
        verdict = Verdict(results_of({((1, 1), 0): 40}, made), "narrow")
        assert verdict.missed_by("hasfl-bcd")
        assert verdict.over("hasfl-bcd") == pytest.approx(expected, nan_ok=True)


def test_a_run_that_never_arrives_is_behind() -> None:
    made = (run_of((1, 1), 0, math.inf, strategy="hasfl"), run_of((1, 1), 0, 45, strategy="hasfl-bcd"))
    verdict = Verdict(results_of({((1, 1), 0): 40}, made), "narrow")
    assert verdict.ratio() == math.inf
    assert verdict.over("hasfl-bcd") == math.inf
    assert math.isnan(Verdict(results_of({((1, 1), 0): 40}), "narrow").ratio())


@pytest.mark.parametrize(("own", "ahead"), [(0.45, True), (0.35, False)])
def test_where_nobody_arrives_the_better_model_in_the_same_second_is_ahead(own: float, ahead: bool) -> None:
    def ending(strategy: str, last: float, accuracy: float) -> Run:
        evaluations = np.array([[0.0, 0.0, 0.0, 0.0], [10.0, last, accuracy, accuracy]])
        return run_of((1, 1), 0, math.inf, strategy=strategy, evaluations=evaluations)

    made = (ending("hasfl", 40.0, 2 * own), ending("hasfl-bcd", 20.0, 0.4))  # half of hasfl's in second 20
    verdict = Verdict(results_of({((1, 1), 0): 40}, made), "narrow")
    assert math.isnan(verdict.over("hasfl-bcd"))
    assert np.allclose(verdict.accuracies_at_the_end_of("hasfl-bcd"), [(own, 0.4)])
    assert verdict.ahead_of("hasfl-bcd") is ahead
    assert Verdict(results_of({((1, 1), 0): 40}), "narrow").ahead_of("hasfl-bcd") is None


# ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────


def test_tasks_are_picked_by_whole_words() -> None:
    tasks = list(contestants(SETTING, 0, "digits"))
    assert picked(tasks, []) == tasks
    main = list(main_contest(SETTING, 0, "digits"))
    assert {task.strategy for task in main} == {"hasfl", "hasfl-bcd", "proportional"}
    assert picked(tasks, ["hasfl mean default", "hasfl-bcd", "proportional"]) == main
    plans = picked(grid(SETTING, 0, "digits"), ["b=1", "b=16 cut=2"])
    assert {task.strategy for task in plans} == {
        "fixed:b=16,cut=2",
        *(f"fixed:b=1,cut={cut}" for cut in range(1, 6)),
    }
    with pytest.raises(SystemExit, match="no task with hasf"):
        picked(tasks, ["hasf"])


def test_every_task_is_trained_once() -> None:
    for name, setting in SETTINGS.items():
        for seed in setting.seeds:
            for make in (grid, contestants):
                tasks = list(make(name, seed, ""))
                assert len(tasks) == len(set(tasks))


def test_a_task_without_a_known_best_plan_never_gives_up(tmp_path: Path) -> None:
    task = next(main_contest(SETTING, 0, "digits"))
    assert bounded(task, tmp_path, 3.0) == task
    known = bounded(task, RESULTS, 3.0)
    assert known.most_seconds is not None
    assert replace(known, most_seconds=None) == task


# ── the guard ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("loss", "fires"), [(lambda t: 2.3, "1500"), (lambda t: t**-0.5, "–")])
def test_the_guard_is_asked_after_every_evaluation(loss: Callable[[float], float], fires: str) -> None:
    rounds = np.arange(15.0, 2400.0, 15.0)
    columns = [rounds, rounds, rounds * 0, rounds * 0, np.array([loss(t) for t in rounds])]
    replay = Replay(run_of((2, 1), 0, math.inf, evaluations=np.stack(columns, axis=1)))
    assert (replay.can_fire, replay.has_losses) == (True, True)
    assert replay.row()[-2] == fires
    assert not Replay(run_of((64, 1), 0, math.inf, evaluations=np.stack(columns, axis=1))).can_fire
    assert not Replay(run_of((2, 1), 0, 300)).can_fire
