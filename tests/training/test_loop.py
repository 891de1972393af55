"""Algorithm 1: who is asked what and when, what a plan may change, and how a training goes wrong."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hasfl.arrays import IntN
from hasfl.constants import BoundConstants
from hasfl.errors import Diverged, Infeasible, InputError
from hasfl.fleet import PER_DEVICE, PER_SERVER, Fleet
from hasfl.goal import Goal
from hasfl.models.layered_model import LayeredModel
from hasfl.record import Evaluation, RoundRecord
from hasfl.theory.paradigms import CENTRALISED, FEDERATED
from hasfl.training.clock import Effort
from hasfl.training.loop import Training
from hasfl.world import World
from tests.learning.simulations import run, simulation, unequal_fleet, world_without
from tests.training.fakes import Call, small_fleet, training

CONSTANTS = BoundConstants(smoothness=1.0, initial_gap=1.0, variance_of=[1.0] * 4, moment_of=[1e-3] * 4)


def names(calls: Sequence[Call]) -> list[str]:
    return [f"{call[0]} {call[1]}" if call[0] in ("plan", "rebatch", "train") else call[0] for call in calls]


def test_calls_come_in_the_order_of_algorithm_1() -> None:
    calls: list[Call] = []
    list(training(interval=2, goal=Goal(rounds=6), evaluate_every=2, calls=calls).rounds())
    interval = ["split", "train {}", "watch", "rebatch {}", "train {}", "watch", "learn", "plan {}"]
    interval += ["aggregate", "evaluate"]
    first = [name.format(t) for name, t in zip(interval, (0, 1, 0, 2, 2, 0, 0, 3, 0, 0), strict=True)]
    second = [name.format(t) for name, t in zip(interval, (0, 3, 0, 4, 4, 0, 0, 5, 0, 0), strict=True)]
    assert names(calls)[: 1 + 2 * len(interval)] == ["plan 1", *first, *second]


def test_the_decider_sees_the_loss_of_every_round() -> None:
    calls: list[Call] = []
    losses = [3.0, 2.0, 2.5, 1.0, 0.5, 0.25]
    list(training(interval=2, goal=Goal(rounds=6), losses=losses, calls=calls).rounds())
    assert [call[1] for call in calls if call[0] == "watch"] == losses


def test_an_interval_of_one_round_plans_every_round() -> None:
    calls: list[Call] = []
    list(training(interval=1, goal=Goal(rounds=3), calls=calls).rounds())
    assert "rebatch" not in {name.split()[0] for name in names(calls)}
    assert names(calls).count("aggregate") == names(calls).count("split") == 3


def test_the_previous_plan_is_handed_on() -> None:
    calls: list[Call] = []
    records = list(training(cuts=lambda k: [1 + k % 3] * 3, calls=calls).rounds())
    asked = {call[1]: call[3] for call in calls if call[0] == "plan"}
    assert [asked[t] for t in (1, 3, 5)] == [None, records[1].plan, records[3].plan]


@pytest.mark.parametrize(
    ("paradigm", "depths"), [(None, [2, 3, 1]), (FEDERATED, [3, 3, 3]), (CENTRALISED, [0, 0, 0])]
)
def test_as_many_layers_are_private_as_the_paradigm_says(paradigm: object, depths: list[int]) -> None:
    calls: list[Call] = []
    given = {} if paradigm is None else {"paradigm": paradigm}
    list(training(cuts=lambda k: [[1, 2, 1], [3, 1, 1], [1, 1, 1]][k % 3], calls=calls, **given).rounds())
    assert [call[1] for call in calls if call[0] == "split"] == depths


def test_cuts_stay_within_an_interval_and_batches_need_not() -> None:
    records = list(
        training(
            interval=3,
            goal=Goal(rounds=9),
            cuts=lambda k: [[1, 1, 3], [2, 1, 2], [3, 1, 1], [1, 1, 1]][k],
            batches=lambda t: [t, 2 * t, 1],
        ).rounds()
    )
    assert [record.plan.cuts.tolist() for record in records] == [[1, 1, 3]] * 3 + [[2, 1, 2]] * 3 + [
        [3, 1, 1]
    ] * 3
    assert [record.plan.batch_sizes.tolist() for record in records] == [[t, 2 * t, 1] for t in range(1, 10)]
    assert [record.samples for record in records] == np.cumsum([3 * t + 1 for t in range(1, 10)]).tolist()


def leaving(t: int) -> list[int]:
    """Device 1 leaves in round 2 and is back in round 3, which is too late for the first interval."""
    return {1: [0, 1, 2], 2: [0, 2], 3: [0, 1, 2], 4: [0, 1, 2], 5: [1], 6: [1]}.get(t, [0, 1, 2])


def test_devices_join_when_an_interval_begins() -> None:
    calls: list[Call] = []
    records = list(training(interval=3, present=leaving, calls=calls).rounds())
    assert [record.devices.tolist() for record in records] == [[0, 1, 2], [0, 2], [0, 2], [0, 1, 2], [1], [1]]
    assert [call[2] for call in calls if call[0] == "split"] == [[0, 1, 2], [0, 1, 2]]
    drawn = [call[4] for call in calls if call[0] == "train"]
    assert drawn == [[0, 0, 0], [2, 4], [4, 8], [6, 3, 12], [6], [9]]


@pytest.mark.parametrize("strategy", ["rbs+rms", "sfl", "fl", "sl"])  # cl: test_centralised.py
def test_who_is_away_never_draws(strategy: str) -> None:
    """Whoever plans: who is there follows from the world and from the way of training."""
    world = world_without((0, 2, 3), (1, 4, 9), (2, 8, 8), (3, 5, 5))
    for record in run(strategy, world, rounds=10):
        assert set(record.devices) <= set(world.present(record.round)), record.round


@pytest.mark.parametrize("interval", [1, 2, 4])
def test_what_is_said_of_a_plan_is_noted_in_its_round(interval: int) -> None:
    """Whether an interval begins with the plan, or batch sizes alone were asked for."""
    notes = {1: "batch sizes: less", 3: "plan kept: too small", 4: "no good plan: too far"}
    records = list(training(interval=interval, goal=Goal(rounds=6), notes=notes).rounds())
    said = {record.round: record.notes for record in records if record.notes}
    assert said == {t: (note,) for t, note in notes.items()}


def test_what_is_said_of_a_plan_that_nobody_will_carry_out_is_not_asked_for() -> None:
    records = list(training(goal=Goal(rounds=4), notes={5: "too late"}).rounds())
    assert not any(record.notes for record in records)


@pytest.mark.parametrize("absence", [(0, 2, 3), (0, 4, 6)], ids=["within an interval", "at its beginning"])
def test_a_target_that_is_out_of_reach_for_those_who_are_left_does_not_end_training(
    absence: tuple[int, int, int],
) -> None:
    records = run("hasfl", world_without(absence), rounds=9, known_constants=CONSTANTS, target=0.007)
    assert len(records) == 9
    assert any(record.notes for record in records)


def test_a_first_plan_that_is_infeasible_is_an_error() -> None:
    with pytest.raises(Infeasible, match="too small"):
        list(training(trouble={1: Infeasible("too small")}).rounds())


def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(InputError, match="a fault"):
        list(training(trouble={3: InputError("a fault")}).rounds())


def test_the_last_round_needs_no_plan_for_the_next() -> None:
    """Nobody is there after it, but nobody is needed."""
    world = world_without(*((i, 7, 9) for i in range(4)))
    assert len(run("sfl", world, rounds=6)) == 6


@pytest.mark.parametrize("report_every", [1, 4])
@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_training(loss: float, report_every: int) -> None:
    rounds = training(goal=Goal(rounds=6), losses=[1.0, 0.5, loss], report_every=report_every).rounds()
    assert [next(rounds).loss, next(rounds).loss] == [1.0, 0.5]
    with pytest.raises(Diverged, match=r"the training loss is not a finite number any more in\s+round 3"):
        next(rounds)


def without_bounds() -> LayeredModel:
    """Nothing in it keeps numbers small."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = {
            "one": nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU()),
            "two": nn.Sequential(nn.Linear(8, 8), nn.ReLU()),
            "three": nn.Linear(8, 3),
        }
        return LayeredModel(layers, torch.empty(1, 1, 8, 8))


@pytest.mark.parametrize("strategy", ["sfl", "hasfl", "rbs+hams"])
@pytest.mark.parametrize("interval", [1, 3])
def test_a_learning_rate_that_is_too_high_is_a_divergence(strategy: str, interval: int) -> None:
    """Whoever notices first: the loss, the evaluation or the constants."""
    with pytest.raises(Diverged):
        run(strategy, unequal_fleet(), model=without_bounds(), learning_rate=1e30, interval=interval)


def test_evaluations_come_when_they_are_due_and_at_the_end() -> None:
    records = list(training(goal=Goal(rounds=7), evaluate_every=3).rounds())
    assert [record.round for record in records if record.accuracy is not None] == [3, 6, 7]
    assert [record.round for record in records if record.test_loss is not None] == [3, 6, 7]
    assert [record.round for record in records if record.aggregated] == [2, 4, 6]


def test_the_test_set_decides_nothing() -> None:
    """There, accuracy is nine tenths of that on held-out samples."""
    accuracies = [0.1, 0.6, 0.7, 0.75, 0.8]
    records = list(training(goal=Goal(accuracy=0.7), accuracies=accuracies, evaluate_every=1).rounds())
    assert [record.held_out_accuracy for record in records] == [0.1, 0.6, 0.7]
    assert [record.accuracy for record in records] == [0.9 * accuracy for accuracy in (0.1, 0.6, 0.7)]
    assert {(record.held_out_loss, record.test_loss) for record in records} == {(1.0, 1.1)}


def test_an_evaluation_without_held_out_samples_ends_nothing() -> None:
    made = training(goal=Goal(accuracy=0.5, loss=9.0, converged=True, rounds=12), evaluate_every=1)
    made.engine.evaluate = lambda **_: Evaluation(accuracy=1.0, test_loss=0.0)  # type: ignore[method-assign]
    records = list(made.rounds())
    assert len(records) == 12
    assert all(record.accuracy == 1.0 and record.held_out_accuracy is None for record in records)
    assert made.progress is not None
    assert (made.progress.accuracies, made.progress.losses) == ([], [])


def test_virtual_time_is_that_of_the_fleet_that_is_observed() -> None:
    """Not of the fleet that was planned for; in an aggregation, sub-models go down to the next one."""
    usual = list(training(goal=Goal(rounds=4)).rounds())
    made, asked = training(goal=Goal(rounds=4), present=leaving), list[tuple[int, list[int]]]()

    def twice_as_fast(round: int, devices: IntN) -> Fleet:
        asked.append((round, devices.tolist()))
        fleet = small_fleet()
        speeds = {name: 2 * getattr(fleet, name) for name in (*PER_DEVICE, *PER_SERVER)}
        return replace(fleet, **speeds).only(devices)

    made.observer.fleet = twice_as_fast  # type: ignore[method-assign]
    records = list(made.rounds())
    everyone = [0, 1, 2]
    assert asked == [(1, everyone), (2, [0, 2]), (3, everyone), (3, everyone), (4, everyone), (5, everyone)]
    assert [record.seconds for record in records if len(record.devices) == 3] == pytest.approx(
        [record.seconds / 2 for record in usual if record.round != 2], rel=1e-12
    )


def test_a_world_with_another_interval_is_refused() -> None:
    """Devices would come back, and rates change, in the middle of the training's intervals."""
    world = World(fleet=unequal_fleet(), seeds=simulation("sfl").engine.job.data.seeds, interval=5)
    with pytest.raises(InputError, match="interval"):
        simulation("sfl", world)


@pytest.mark.parametrize("devices", [2, 6])
def test_shares_for_another_number_of_devices_are_refused(devices: int) -> None:
    with pytest.raises(InputError, match="shares"):
        simulation("sfl", unequal_fleet(), shares=np.array_split(np.arange(60), devices))


def test_a_training_says_nothing_before_it_is_asked() -> None:
    calls: list[Call] = []
    made: Training = training(calls=calls)
    rounds = made.rounds()
    assert calls == []
    next(rounds)
    assert names(calls) == ["plan 1", "split", "train 1", "watch", "rebatch 2"]


def test_constants_are_recorded_where_an_interval_ends() -> None:
    made = training(interval=2, goal=Goal(rounds=6), evaluate_every=3, efforts=lambda order: Effort())
    records = list(made.rounds())
    read = {record.round: record.constants for record in records if record.constants is not None}
    assert read == {t: {"noise": t} for t in (2, 4, 6)}
    assert all(RoundRecord.from_json(record.as_json()).as_json() == record.as_json() for record in records)


def test_a_loop_that_was_left_goes_on_without_losing_a_round() -> None:
    made = training(goal=Goal(rounds=6), report_every=4, losses=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    first = next(made.rounds())
    rest = list(made.rounds())
    assert [record.round for record in (first, *rest)] == [1, 2, 3, 4, 5, 6]
    assert [record.loss for record in (first, *rest)] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [2, 3, 4]),  # not after round 6, which ends training
        ({"checkpoint_seconds": 1e9}, [3]),
        ({"report_every": 3}, [3]),  # round 2 is recorded when round 3 is over
        ({"interval": 3, "report_every": 3}, [3]),
    ],
    ids=str,
)
def test_a_checkpoint_is_due_after_an_aggregation_and_before_a_stop(
    changes: dict[str, float], expected: list[int]
) -> None:
    """Somebody wants training to stop after round 3, and it goes on nevertheless."""
    for can_save in (True, False):
        made, kept = training(goal=Goal(rounds=6)), list[int]()
        for name, value in changes.items():
            setattr(made, name, value)
        made.engine.can_save = can_save  # type: ignore[misc]

        def keep(arrays: object, values: Mapping[str, Any], kept: list[int] = kept) -> None:
            kept.append(values["rounds"])

        saved = [made.save_if_due(keep, each, stopping=each.round == 3) for each in made.rounds()]
        assert kept == (expected if can_save else [])
        assert saved == [t in kept for t in range(1, 7)]
