"""Constants in whole runs: when they are estimated and recorded, that plans may stay, that runs go on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hasfl.constants import BoundConstants, Guesses, MeasuredConstants
from hasfl.errors import InputError
from hasfl.planning.exact.guess_ratios import weighed
from hasfl.planning.paper.algorithm_2 import algorithm_2
from hasfl.runs.build import SampleCounts, training_of
from hasfl.seeds import Seeds
from hasfl.settings import Planning, Settings
from hasfl.world import RandomWalk, World
from tests.cli.conftest import Hasfl, Outcome
from tests.lanes import quick_then_slow
from tests.learning.simulations import grouped, simulation, unequal_fleet
from tests.runs.scenarios import kept, press_control_c_in, rounds, write
from tests.training.fakes import FakeEngine, small_profile

pytestmark = pytest.mark.usefixtures("estimates_come_soon")
FIXED = {"training.interval": "2", "stop.rounds": "12"}
FIELDS = {"smoothness", "initial_gap", "variance_of", "moment_of", "single_noise"}


def run(
    hasfl: Hasfl, folder: Path, changes: dict[str, str], name: str = "run", *more: str
) -> list[dict[str, Any]]:
    scenario = write(folder, FIXED | changes)
    done = hasfl("train", scenario, "--out", folder, "--run", name, *more)
    assert done.code == 0, done.err
    return rounds(folder / name)


@pytest.mark.parametrize(
    ("changes", "due"),
    [
        ({}, ()),
        ({"training.constants": '"paper"'}, (2, 8)),
        ({"training.strategy": '"sfl"'}, ()),
        *(
            pytest.param(changes, due, marks=pytest.mark.slow)
            for changes, due in (
                ({"training.constants": '"measured"', "training.strategy": '"habs+cut=2"'}, ()),
                ({"training.strategy": '"hasfl-bcd"'}, (2, 8)),
                ({"training.strategy": '"hasfl-bcd"', "training.constants": '"measured"'}, ()),
                ({"training.target": "1000.0"}, (2, 8)),
                ({"training.strategy": '"rbs+rhams"'}, ()),
            )
        ),
    ],
    ids=str,
)
def test_constants_are_recorded_where_they_were_due(
    hasfl: Hasfl, tmp_path: Path, changes: dict[str, str], due: tuple[int, ...]
) -> None:
    """The paper's, in the round that ends an interval; guesses are made once, before the first round."""
    rows = run(hasfl, tmp_path, changes)
    found = {row["round"]: set(row["constants"]) for row in rows if row["constants"] is not None}
    assert found == dict.fromkeys(due, FIELDS)


def changing_rates(devices: int) -> World:
    """Rates that walk far, so that other plans are better later on; nobody leaves."""
    rates = RandomWalk(step=1.0, bound=20.0)
    return World(fleet=unequal_fleet(devices), seeds=Seeds(3), interval=2, rates=rates)


@pytest.mark.parametrize(("constants", "last"), [("measured", 1), ("paper", 9)])
def test_plans_may_stay(constants: str, last: int) -> None:
    """With guesses from the first round on; with the paper's estimates from the plan after the second one."""
    settings: dict[str, Any] = {"rounds": 24, "interval": 2, "max_batch": 8, "constants": constants}
    records = list(simulation("hasfl", changing_rates(4), **settings, plans="stay"))
    assert len({record.plan for record in records if record.round >= last}) == 1
    assert [record.round for record in records if record.constants] == ([2, 8] if last > 1 else [])
    over_time = list(simulation("hasfl", changing_rates(4), **settings))
    assert len({record.plan for record in over_time if record.round >= last}) > 1


def test_plans_over_time_are_asked_again() -> None:
    made = simulation("hasfl", unequal_fleet(), rounds=66, interval=2, max_batch=8, constants="paper")
    read = [record.round for record in made.training.rounds() if record.constants is not None]
    assert read == [2, 8, 48]


def stopped_often(
    hasfl: Hasfl, folder: Path, changes: dict[str, str], stops: set[int], monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    """The rounds of a run that was stopped after these rounds, the same to the last byte as a whole one."""
    whole = run(hasfl, folder, changes, "whole")
    press_control_c_in(monkeypatch, stops)
    scenario, outcomes = write(folder, FIXED | changes), list[Outcome]()
    while not outcomes or outcomes[-1].code == 130:
        resume = ("--resume",) if outcomes else ()
        outcomes.append(hasfl("train", scenario, "--out", folder, "--run", "stopped", *resume))
    assert (len(outcomes), outcomes[-1].code) == (len(stops) + 1, 0)
    assert kept(folder / "stopped") == kept(folder / "whole")
    return whole


@pytest.mark.parametrize(
    "changes",
    quick_then_slow(
        [
            {"training.optimizer": '"adam"', "training.learning_rate": "0.002", "model.norm": '"batch"'},
            {"world.rates": '"walk"', "world.leave": "0.2", "training.interval": "3"},
            {"training.plans": '"stay"'},
        ]
    ),
    ids=str,
)
def test_resumed_across_estimates(
    hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str]
) -> None:
    changes = {"training.constants": '"paper"'} | changes
    rows = stopped_often(hasfl, tmp_path, changes, {1, 2, 8}, monkeypatch)
    assert sum(row["constants"] is not None for row in rows) >= 2


def test_a_run_goes_on_with_the_guesses_that_it_began_with(
    hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a newer `hasfl` goes on, which guesses that noise is larger, and in another number of ways."""
    changes = {"world.rates": '"walk"', "world.leave": "0.2"}
    run(hasfl, tmp_path, changes, "whole")
    with monkeypatch.context() as patch:
        press_control_c_in(patch, {4})
        stopped = hasfl("train", write(tmp_path, FIXED | changes), "--out", tmp_path, "--run", "stopped")
    assert stopped.code == 130
    monkeypatch.setattr("hasfl.guesses.NOISE", 100.0)
    monkeypatch.setattr("hasfl.guesses.NOISES", {"noise": 1.0})
    run(hasfl, tmp_path, changes, "stopped", "--resume")
    run(hasfl, tmp_path, changes, "newer")
    assert kept(tmp_path / "stopped") == kept(tmp_path / "whole") != kept(tmp_path / "newer")


CONSTANTS = BoundConstants(smoothness=1.0, initial_gap=1.0, variance_of=[1.0], moment_of=[1.0])


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({}, "measured"),
        ({"constants": "measured"}, "measured"),
        ({"constants": "paper"}, "paper"),
        ({"target": 1.0}, "paper"),
        ({"target": 1.0, "constants": "paper"}, "paper"),
        ({"known_constants": CONSTANTS}, "paper"),
        ({"known_constants": CONSTANTS, "target": 1.0}, "paper"),
        ({"known_constants": MeasuredConstants.unknown(1)}, "measured"),
    ],
    ids=str,
)
def test_which_constants_are_meant(given: dict[str, Any], kind: str) -> None:
    settings = Settings(**grouped(given))
    assert settings.kind_of_constants == settings.kind_for(of_the_paper=False) == kind
    assert settings.kind_for(of_the_paper=True) == (kind if given else "paper")


def test_algorithm_2_plans_with_measured_constants_if_they_are_asked_for() -> None:
    """The plan rests on the guesses, and nothing is estimated."""
    fleet = unequal_fleet()
    training = simulation("hasfl-bcd", fleet, rounds=9, constants="measured").training
    guessed = training.observer.problem(1, np.arange(len(fleet)))
    records = list(training.rounds())
    assert isinstance(guessed.constants, Guesses)
    assert records[0].plan == algorithm_2(weighed(guessed)).plan
    assert not any(record.constants for record in records)


def test_measured_constants_that_are_given_are_used(hasfl: Hasfl, tmp_path: Path) -> None:
    """They stay as they are, and noise that is large asks for larger batches."""
    sizes = []
    for noise in (0, 1000):
        tables = f"\n[constants]\nrounds = 100\nnoise = {noise}\ndrift_of = [0, 0, 0, 0, 0]\n"
        name = f"noise-{noise}"
        scenario = write(tmp_path, tables=tables, name=name)
        assert hasfl("train", scenario, "--out", tmp_path, "--run", name).code == 0
        rows = rounds(tmp_path / name)
        assert all(row["constants"] is None for row in rows)
        sizes.append(sum(rows[0]["batch_sizes"]))
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize(
    "constants",
    [
        "rounds = 100\nnoise = 2\ndrift_of = [0, 0, 0, 0, 0]",
        "rounds = 100\nnoise = 2\ndrift_of = [0, 0, 0, 0, 0]\nsingle_noise = 1",
        "rounds = 100\nnoise = 300\ndrift_of = [1, 1, 1, 1, 1]",
        "smoothness = 1\ninitial_gap = 2\nvariance_of = [20, 20, 20, 20, 20]\nmoment_of = [1, 1, 1, 1, 1]",
    ],
)
def test_the_first_plan_of_training_is_that_of_hasfl_plan(
    hasfl: Hasfl, tmp_path: Path, constants: str
) -> None:
    """Also where a device holds fewer samples than max_batch, and where single samples have a price."""
    changes = {
        "fleet.devices": "40",
        "training.max_batch": "64",
        "training.interval": "15",
        "stop.rounds": "1",
    }
    if "smoothness" in constants:
        changes["training.target"] = "30.0"
    scenario = write(tmp_path, changes, f"\n[constants]\n{constants}\n")
    planned = json.loads(hasfl("plan", scenario, "--json").out)
    assert hasfl("train", scenario, "--out", tmp_path, "--run", "run").code == 0
    (first,) = rounds(tmp_path / "run")
    assert (first["batch_sizes"], first["cuts"]) == (planned["batch_sizes"], planned["cuts"])
    assert max(planned["batch_sizes"]) <= 1438 // 40 + 1


@pytest.mark.parametrize(
    "given", [{"strategy": "hasfl-bcd"}, {"planning": Planning(constants="paper")}], ids=str
)
def test_devices_and_servers_cannot_estimate_the_papers_constants(given: dict[str, Any]) -> None:
    """They have no probe of the whole training."""
    no_samples = np.zeros(4, dtype=np.int64)
    holdings = SampleCounts.of(
        np.full(4, 20), held_out=no_samples, sample_bits=8.0, measures_norms=False, unlikeness=0.0
    )
    with pytest.raises(InputError, match="whole model of one device in one place: give \\[constants\\]"):
        training_of(
            FakeEngine(), None, holdings, changing_rates(4), small_profile(), Settings(interval=2, **given)
        )
