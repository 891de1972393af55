"""A training that was stopped after any round goes on as if nothing had happened, to the last bit."""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from hasfl.constants import BoundConstants
from hasfl.errors import InputError
from hasfl.goal import Goal
from hasfl.record import RoundRecord
from hasfl.runs.build import Simulation
from tests.lanes import quick_then_slow
from tests.learning.simulations import changing_world, simulation, unequal_fleet, world_without

pytestmark = pytest.mark.usefixtures("estimates_come_soon")
ROUNDS = 7  # two aggregations, and a round of a third interval
CONSTANTS = BoundConstants(smoothness=1.0, initial_gap=1.0, variance_of=[1.0] * 4, moment_of=[1e-3] * 4)
EVERY, EVERY_OTHER = slice(None), slice(None, None, 2)  # the rounds whose checkpoints are tried
Kept = tuple[Mapping[str, Any], Mapping[str, Any], list[RoundRecord]]

CASES: dict[str, dict[str, Any]] = {
    "hasfl": {},
    "hasfl-bcd": {"optimizer": "momentum"},
    "habs+rms": {},
    "rbs+hams": {"optimizer": "adam", "learning_rate": 0.01},
    "rbs+rms": {"optimizer": "adam", "learning_rate": 0.01, "augment": True},
    "fl": {"optimizer": "momentum"},
    "sl": {"evaluate_every": 2},
    "cl": {"optimizer": "adam", "learning_rate": 0.01},
    "b=4+rms": {"serve": "last", "evaluate_every": 1},
    "sfl": {"calibrate": False, "evaluate_every": 1},
}


ALL_KNOBS = {"schedule": "cosine", "warm_up": 2, "weight_decay": 0.01, "clip": 0.5, "participation": 0.6}
KNOBS: dict[str, dict[str, Any]] = {
    "all of them": {"optimizer": "nesterov", **ALL_KNOBS},
    "adamw": {"optimizer": "adamw", "learning_rate": 0.01, **ALL_KNOBS},
    "step": {"schedule": "step", "step_every": 2},
    "clip": {"clip": 0.1, "engine": "reference"},
}


def kept_after_every_round(made: Simulation) -> tuple[list[RoundRecord], list[Kept], dict[str, Tensor]]:
    """All records, what a checkpoint after each would hold (as it comes back from a file), and the model."""
    records: list[RoundRecord] = []
    kept: list[Kept] = []
    for record in made.training.rounds():
        records.append(record)
        arrays, values = made.training.saved()
        kept.append((copy.deepcopy(arrays), json.loads(json.dumps(values)), list(records)))
    return records, kept, made.model()


def gone_on(made: Simulation, kept: Kept) -> tuple[list[RoundRecord], dict[str, Tensor]]:
    arrays, values, before = kept
    read = [RoundRecord.from_json(json.loads(json.dumps(record.as_json()))) for record in before]
    made.training.restore(arrays, values, read)
    return [*read, *made.training.rounds()], made.model()


def assert_same_bits(
    found: tuple[Sequence[RoundRecord], dict[str, Tensor]],
    expected: tuple[Sequence[RoundRecord], dict[str, Tensor]],
) -> None:
    assert [record.as_json() for record in found[0]] == [record.as_json() for record in expected[0]]
    assert found[1].keys() == expected[1].keys()
    assert all(torch.equal(tensor, expected[1][name]) for name, tensor in found[1].items())


def goes_on_to_the_last_bit(
    make: Callable[[], Simulation], some: slice = EVERY
) -> tuple[list[RoundRecord], list[Kept]]:
    """Train once without a stop, and go on from these checkpoints to the same records and the same model."""
    records, kept, model = kept_after_every_round(make())
    for each in kept[some]:
        assert_same_bits(gone_on(make(), each), (records, model))
    return records, kept


@pytest.mark.parametrize("strategy", quick_then_slow(list(CASES), quick=3))
def test_after_a_round(strategy: str) -> None:
    """After every round with hasfl, and after every other one with the rest."""
    some = EVERY if strategy == "hasfl" else EVERY_OTHER
    _, kept = goes_on_to_the_last_bit(lambda: simulation(strategy, rounds=ROUNDS, **CASES[strategy]), some)
    assert len(kept) == ROUNDS


@pytest.mark.parametrize("knob", quick_then_slow(list(KNOBS)))
def test_with_every_knob(knob: str) -> None:
    goes_on_to_the_last_bit(lambda: simulation("hasfl", rounds=ROUNDS, **KNOBS[knob]), EVERY_OTHER)


def test_where_a_plan_is_kept_because_none_reaches_the_target() -> None:
    records, _ = goes_on_to_the_last_bit(
        lambda: simulation("hasfl", unequal_fleet(), rounds=ROUNDS, target=0.009)
    )
    assert [record.round for record in records if record.notes] == [4, 7]


@pytest.mark.parametrize("goal", [{"converged": True}, {"accuracy": 0.4}, {"loss": 1.0}], ids=str)
def test_where_held_out_samples_end_training(goal: dict[str, Any]) -> None:
    """All evaluations before the pause count; the training ends in the same round."""
    settings = {"goal": Goal(rounds=40, **goal), "evaluate_every": 1, "serve": "last", "learning_rate": 0.1}
    records, _ = goes_on_to_the_last_bit(
        lambda: simulation("sfl", unequal_fleet(), **settings), slice(None, None, 5)
    )
    assert 2 < len(records) < 40
    assert all(record.held_out_accuracy is not None for record in records)


@pytest.mark.parametrize("serve", ["mean", "last"])
def test_where_the_best_model_is_kept(serve: str) -> None:
    """It may be one from before the pause or from after it."""
    settings = {"rounds": 9, "keep": "best", "serve": serve, "evaluate_every": 1, "learning_rate": 0.5}
    records, _ = goes_on_to_the_last_bit(lambda: simulation("sfl", unequal_fleet(), **settings))
    assert 1 < max(record.round for record in records if record.kept) < 9


@pytest.mark.parametrize("engine", ["reference", "simulated"])
def test_where_devices_leave_and_come_back(engine: str) -> None:
    """Device 0 leaves within the first interval, device 2 is away for the second."""
    settings = {"rounds": ROUNDS, "engine": engine, "known_constants": CONSTANTS, "target": 0.012}
    world = world_without((0, 2, 2), (2, 4, 5))
    records, _ = goes_on_to_the_last_bit(lambda: simulation("hasfl", world, **settings))
    assert [len(record.devices) for record in records] == [4, 3, 3, 3, 3, 3, 4]


@pytest.mark.parametrize("calibrate", [False, True])
def test_a_running_mean_that_is_under_way(calibrate: bool) -> None:
    """Stopped after three aggregations, with one more to come, whose share depends on how many there were."""
    settings = {"rounds": 13, "calibrate": calibrate, "optimizer": "momentum"}
    _, kept = goes_on_to_the_last_bit(lambda: simulation("rbs+rms", **settings), slice(8, 12))
    assert all(values["split"]["averaged"] == len(before) // 3 for _, values, before in kept[8:12])


@pytest.mark.parametrize("rounds", [2, ROUNDS])
def test_what_is_served_otherwise_is_refused(rounds: int) -> None:
    """Also what an older version saved, which knew no other way; before an aggregation as well as after."""
    _, kept, _ = kept_after_every_round(simulation("sfl", rounds=ROUNDS))
    arrays, values, records = kept[rounds - 1]
    assert values["split"]["averaged"] == rounds // 3
    last = simulation("sfl", rounds=ROUNDS, serve="last")
    with pytest.raises(InputError, match=r"^this training has serve = 'last', but its checkpoint 'mean'$"):
        last.training.restore(arrays, values, records)
    split = {"depth": values["split"]["depth"], "devices": values["split"]["devices"]}
    mean = simulation("sfl", rounds=ROUNDS)
    with pytest.raises(
        InputError, match=r"^this training has serve = 'mean', but .* an older version wrote it$"
    ):
        mean.training.restore(arrays, {**values, "split": split}, records)


def test_a_running_mean_that_is_missing_is_refused() -> None:
    _, kept, _ = kept_after_every_round(simulation("sfl", rounds=ROUNDS))
    arrays, values, records = kept[-1]
    own = {name: array for name, array in arrays.items() if not name.startswith(".mean.")}
    assert len(own) < len(arrays)
    made = simulation("sfl", rounds=ROUNDS)
    with pytest.raises(InputError, match=r"^\.mean\.conv1\..* must be a tensor .* got nothing$"):
        made.training.restore(own, values, records)


def test_a_training_that_stops_twice() -> None:
    records, kept, model = kept_after_every_round(simulation("rbs+rms", rounds=ROUNDS))
    second = simulation("rbs+rms", rounds=ROUNDS)
    arrays, values, before = kept[1]
    second.training.restore(arrays, values, before)
    more = [*before]
    for record in second.training.rounds():
        more.append(record)
        if record.round == 5:
            break
    once_more = (*second.training.saved(), more)
    assert_same_bits(gone_on(simulation("rbs+rms", rounds=ROUNDS), once_more), (records, model))


def test_the_other_engine_can_go_on() -> None:
    """A checkpoint says what was trained, not by whom."""
    records, kept, _ = kept_after_every_round(simulation("rbs+rms", rounds=ROUNDS))
    found, _ = gone_on(simulation("rbs+rms", rounds=ROUNDS, engine="reference"), kept[3])
    for left, right in zip(found, records, strict=True):
        assert left.plan == right.plan
        assert left.loss == pytest.approx(right.loss, rel=1e-11)  # float64, sums in another order


@pytest.mark.parametrize(("strategy", "rounds"), [("hasfl", 3), ("rbs+rms", 7), ("sl", 7)])
def test_losses_may_be_read_seldom(strategy: str, rounds: int) -> None:
    """Five rounds at once, or one by one: the same records."""
    trainings = []
    for report_every in (1, 5, 100):
        made = simulation(strategy, rounds=rounds)
        made.training.report_every = report_every
        trainings.append((list(made.training.rounds()), made.model()))
    for found in trainings[1:]:
        assert_same_bits(found, trainings[0])
    assert len(trainings[0][0]) == rounds


def test_what_a_training_asked_before_does_not_matter() -> None:
    """Two trainings side by side in one world, round by round, are two trainings one after the other."""
    world = changing_world()
    alone = [record.as_json() for record in simulation("hasfl", world, rounds=6).training.rounds()]
    pair = [simulation("hasfl", world, rounds=6).training.rounds() for _ in range(2)]
    for expected, *found in zip(alone, *pair, strict=True):
        assert [record.as_json() for record in found] == [expected, expected]
