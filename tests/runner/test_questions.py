"""The problem that `hasfl plan` solves is the one that training begins with; and a run's constants."""

import json
import shutil
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hasfl.constants import BoundConstants, Conditions, MeasuredConstants
from hasfl.documents.document import read_toml
from hasfl.documents.scenario import KNOWN_DATA, Scenario
from hasfl.errors import InputError, MissingExtra
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.readings.belief import Belief
from hasfl.record import RoundRecord
from hasfl.runner.questions import Question, read_question, solve
from hasfl.runner.run_readings import RunReadings, conditions_of, constants_for, converted, readings_of
from hasfl.runner.scenarios import simulation_of
from hasfl.theory.objective import rounds_needed
from tests.cli.conftest import Hasfl
from tests.lanes import quick_then_slow
from tests.planning.random_problems import measured, random_problem
from tests.reporting.runs import record
from tests.runner.scenarios import CONSTANTS, PIS, sentence, write
from tests.training.fakes import small_profile

MODEL = """
import torch
from torch import nn

def small():
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 20), nn.ReLU(), nn.Linear(20, 3))

def with_example():
    return small(), torch.empty(1, 1, 12, 12)

def other():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

class Slotted:
    def slots(self, weight):
        return {"a": torch.zeros_like(weight), "b": torch.zeros_like(weight)}

    def step(self, weight, gradient, slots, rate):
        weight.sub_(rate * gradient)
"""
IMAGES = {"data.name": '"images.npz"'}
SHARDS = {"data.partition": '"shards"', "data.shards_per_device": "1"}
SCENARIOS: dict[str, dict[str, str]] = {
    "digits": {},
    "digits in shards": {"data.partition": '"shards"'},
    "digits with held-out samples": {"stop.accuracy": "0.99"},
    "images": IMAGES,
    "images in shards, some held out": IMAGES | SHARDS | {"data.held_out": "0.2"},
    "own model": IMAGES | {"model.name": '"mine:small"'},
    "own model, no data named": {"data.name": "", "model.name": '"mine:other"'},
    "own optimiser": {"training.optimizer": '"mine:Slotted"'},
    "some participate": {"training.participation": "0.5"},
    "own model with its example": IMAGES | {"model.name": '"mine:with_example"'},
    "few samples": {"data.samples": "5", "training.max_batch": "64"},
    "momentum": {"training.optimizer": '"momentum"'},
    "without norms": {"model.norm": '"none"'},
    "an aggregation in every round": {"training.interval": "1"},
}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder with data and models of one's own, in which nobody works."""
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (60, 12, 12), dtype=np.uint8), np.arange(60) % 3
    np.savez(tmp_path / "images.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    (tmp_path / "mine.py").write_text(MODEL)
    return tmp_path


def equal(one: object, other: object) -> bool:
    """Whether two values have the same numbers."""
    names = [field.name for field in fields(one)]
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


@pytest.mark.parametrize("case", quick_then_slow(list(SCENARIOS), quick=9))
def test_a_plan_is_for_the_problem_that_training_begins_with(mine: Path, case: str) -> None:
    path = write(mine, SCENARIOS[case])
    asked = read_question(str(path))
    training = simulation_of(read_toml(str(path), Scenario), folder=mine).training
    everyone = np.arange(len(asked.problem.fleet))
    begins = training.observer.problem(1, everyone)
    if case == "some participate":  # the constants are those for the devices that take part
        some = training.observer.participants(1)
        begins = replace(begins, constants=training.observer.problem(1, some).constants)
    planned = asked.problem
    assert (asked.constants, asked.rounds_known) == ("guessed", False)
    for name in ("fleet", "profile", "constants"):
        assert equal(getattr(planned, name), getattr(begins, name)), name
    for name in ("learning_rate", "interval", "target", "max_batch"):
        assert getattr(planned, name) == getattr(begins, name), name
    known = "shards" not in case or "images" in case
    assert np.array_equal(planned.samples, begins.samples) if known else planned.samples is None
    if case in ("images", "own model"):
        assert solve(planned).plan == training.begin().order.plan


@pytest.mark.parametrize(
    ("changes", "layers", "outputs"),
    [
        ({"data.name": '"fashion-mnist"'}, 5, 10),
        ({"data.name": '"cifar100"', "model.name": '"small-cnn"'}, 5, 100),
        ({"data.name": '"cifar100"', "model.name": '"vgg16"'}, 16, 100),
    ],
)
def test_known_data_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], layers: int, outputs: int
) -> None:
    """But the model is counted for them: the shipped tables are for other shapes and classes."""
    monkeypatch.setattr("hasfl.runner.scenarios.load_data", lambda *_, **__: pytest.fail("read"))
    problem = read_question(str(write(tmp_path, changes))).problem
    assert len(problem.profile) == layers
    assert problem.profile.activation_bits_at[-1] == 32 * outputs
    shipped = read_question(str(write(tmp_path, {"data.name": "", "model.name": '"small-cnn"'}))).problem
    assert problem.profile.forward_flops_upto[-1] > shipped.profile.forward_flops_upto[-1]


def test_what_is_known_of_data_is_so() -> None:
    from hasfl.data import load_dataset

    digits = load_dataset("digits")
    assert KNOWN_DATA["digits"] == (len(digits.y_train), digits.sample_shape, digits.classes)


def test_without_torch_one_is_told_what_a_plan_needs(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    for changes in (IMAGES, {"data.name": '"fashion-mnist"'}, {"model.name": '"mine:small"'}):
        with pytest.raises(
            MissingExtra, match=r"needs torch: pip install 'hasfl\[train\]', or set model.pro"
        ):
            read_question(str(write(mine, changes)))
    assert read_question(str(write(mine))).constants == "guessed"


# What a run has read.


def fake_run(
    records: list[RoundRecord], constants: Any, scenario: Scenario | None = None, interval: int = 15
) -> RunReadings:
    made = scenario or Scenario.model_validate({"fleet": {"devices": 3}, "training": {"interval": interval}})
    return RunReadings(
        path=Path("run"), scenario=made, folder=Path(), records=records, read=constants, read_in=1
    )


def some_constants(profile: Profile) -> MeasuredConstants:
    layers = np.arange(1, len(profile) + 1)
    return MeasuredConstants(rounds=1.0, noise=3.0, drift_of=0.1 * layers, skew_of=0.05 * layers)


def a_problem(constants: MeasuredConstants, profile: Profile, scenario: Scenario) -> Problem:
    training = scenario.training
    return Problem(
        fleet=scenario.draw(),
        profile=profile,
        constants=constants,
        learning_rate=training.learning_rate,
        interval=training.interval,
    )


@pytest.mark.parametrize("interval", [1, 15])
def test_the_law_gives_back_the_rounds_of_a_run_with_one_plan(interval: int) -> None:
    """R∞ B(p) is the number of rounds that the run took with the plan p."""
    profile = small_profile()
    plan = Plan([1, 4, 16], [1, 2, 2])
    run = fake_run([record(t, plan=plan) for t in range(1, 41)], some_constants(profile), interval=interval)
    known = some_constants(profile)
    constants = replace(known, rounds=run.endless_rounds(profile, 40))
    assert rounds_needed(plan, a_problem(constants, profile, run.scenario)) == pytest.approx(40, rel=1e-12)
    assert run.endless_rounds(profile, 20) == pytest.approx(constants.rounds / 2)


def test_rounds_of_several_plans_and_devices_add_up() -> None:
    profile = small_profile()
    known = some_constants(profile)
    rows: list[RoundRecord] = [
        record(1, plan=Plan([1, 2, 4], [1, 1, 2])),
        record(2, devices=np.array([0, 2]), plan=Plan([8, 2], [3, 1])),
        record(3, devices=np.array([1]), plan=Plan([5], [2])),
    ]
    run = fake_run(rows, known)
    expected = 0.0
    for row in rows:
        n, depth = len(row.devices), row.plan.deepest_cut
        noise = known.noise * 3 / n  # the mean over fewer devices is noisier
        drift = known.drift_of[:depth].sum() * (n - 1) / 2
        skew = np.sum(known.skew_upto[depth - 1]) if n > 1 else 0.0
        single = known.single_noise if profile.batch_norm_upto[depth - 1] else 1.0
        per_batch = [single if b == 1 else 1 / b for b in row.plan.batch_sizes]
        expected += 1 / (1 + skew + noise * np.mean(per_batch) * (1 + drift))
    assert run.endless_rounds(profile, 3) == pytest.approx(expected, rel=1e-12)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario and three runs: of hasfl, of a fixed plan, of the paper's constants."""
    from hasfl.cli.main import main

    folder = tmp_path_factory.mktemp("trained")
    goal = {"training.interval": "15", "stop.rounds": "30", "stop.accuracy": "0.2"}
    write(folder, goal)
    write(folder, goal | {"stop.accuracy": "", "training.constants": '"paper"'}, name="paper")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for scenario, name, strategy in (
        ("small", "read", "hasfl"),
        ("small", "fixed", "b=4+cut=2"),
        ("paper", "paper", "hasfl"),
    ):
        arguments = ["train", f"{folder}/{scenario}.toml", "--strategy", strategy]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("hasfl.readings.sources.FIRST_SHARE", 1e9)  # so that a short run has a reading
            patch.setattr(sys, "argv", ["hasfl", *arguments, "--out", str(folder / "runs"), "--run", name])
            with pytest.raises(SystemExit) as stop:
                main()
        assert not stop.value.code
    torch.set_num_threads(threads)
    return folder


def test_the_constants_of_a_run_are_those_that_it_read_last(trained: Path) -> None:
    run = readings_of(trained / "runs" / "read")
    asked = read_question(str(trained / "small.toml"), run=trained / "runs" / "read")
    known, planned = run.read, asked.problem.constants
    assert (asked.constants, asked.rounds_known, run.read_in) == ("read", True, 15)
    assert isinstance(planned, MeasuredConstants)
    assert isinstance(known, MeasuredConstants)
    assert (known.rounds, known.noise) == (1.0, planned.noise)
    assert np.array_equal(known.drift_of, planned.drift_of)
    reached = run.scenario.stop.goal().met_by(run.records)
    assert reached is not None
    assert planned.rounds == run.endless_rounds(asked.problem.profile, reached.round)
    told = " ".join(asked.remarks)
    assert f" % on held-out samples, which the run reached in round {reached.round}." in told
    assert "The training time, without judging and readings, is that to " in told
    alone = read_question(None, run=trained / "runs" / "read")
    assert equal(alone.problem.constants, planned)
    assert equal(alone.problem.profile, asked.problem.profile)


def remarks(asked: Question) -> str:
    return "\n".join(asked.remarks)


def test_another_goal_is_another_number_of_rounds(trained: Path) -> None:
    high = write(trained, {"training.interval": "15", "stop.accuracy": "0.9999"}, name="high")
    run = readings_of(trained / "runs" / "read")
    asked = read_question(str(high), run=run.path)
    assert asked.problem.constants.rounds == run.endless_rounds(asked.problem.profile, len(run.records))
    assert f"to where the run came in its {len(run.records)} rounds, to " in remarks(asked)
    assert "instead of" not in remarks(asked)


def test_what_differs_is_told_and_noise_follows_the_learning_rate(trained: Path) -> None:
    changes = {"training.interval": "5", "training.learning_rate": "0.1", "data.partition": '"shards"'}
    other = write(trained, changes | {"fleet.devices": "8"}, name="other")
    asked = read_question(str(other), run=trained / "runs" / "read")
    run = readings_of(trained / "runs" / "read")
    told = remarks(asked)
    assert "training.learning_rate 0.05 instead of 0.1" in told
    assert "training.interval 15 instead of 5" in told
    assert "data.partition 'iid' instead of 'shards'" in told
    assert "devices 4 instead of 8" in told
    assert run.read is not None
    scaled = run.read.under(Conditions(0.1, 8, 5), Conditions(0.05, 4, 15))
    assert asked.problem.constants.noise == scaled.noise
    np.testing.assert_array_equal(asked.problem.constants.drift_of, scaled.drift_of)


def read_with(drift: float, *, interval: int = 15, participants: int = 3) -> Question:
    """A question with constants as a run has read them."""
    problem = measured(random_problem(5, devices=(3, 3), layers=(4, 4)), 5)
    constants = replace(problem.constants, drift_of=np.full(4, drift))
    sections = {"fleet": {"devices": participants}, "training": {"interval": interval}}
    scenario = Scenario.model_validate(sections)
    rate = scenario.training.learning_rate
    problem = replace(problem, interval=interval, constants=constants, learning_rate=rate)
    run = fake_run([], replace(constants, rounds=1.0), scenario)
    return Question(problem=problem, constants="read", participants=participants, readings=run)


def test_another_interval_changes_the_drift_alone() -> None:
    asked = read_with(0.5)
    there = asked.at(60)
    assert there.interval == 60
    np.testing.assert_allclose(there.constants.drift_of, 0.5 * 4**0.4)
    unchanged = {"drift_of": asked.problem.constants.drift_of}
    assert equal(replace(there.constants, **unchanged), asked.problem.constants)
    assert there.fleet is asked.problem.fleet
    assert asked.at(15) is asked.problem


def test_a_run_without_drift_says_nothing_of_other_intervals() -> None:
    """It had one device, or an aggregation after every round; one device alone never drifts."""
    with pytest.raises(InputError, match="run read no drift, because it had one device or an aggreg"):
        read_with(0.0, interval=1).at(5)
    assert read_with(0.0).at(15).interval == 15
    assert read_with(0.0, participants=1).at(5).interval == 5
    given = replace(read_with(0.0), constants="given", readings=None)
    assert given.at(5).interval == 5


@pytest.mark.parametrize(
    ("ran", "now", "noise", "drift"),  # devices and interval
    [
        ((3, 15), (7, 1), 3 / 7, 3 * 15**-0.4),
        ((3, 15), (1, 15), 3.0, 0.0),
        ((3, 15), (11, 480), 3 / 11, 5 * 32**0.4),
        ((1, 15), (7, 1), 1 / 7, 0.0),
        ((3, 1), (1, 15), 3.0, 0.0),
        ((1, 15), (2, 2), None, None),
        ((3, 1), (3, 15), None, None),
    ],
)
def test_what_a_run_read_is_converted_or_refused(
    ran: tuple[int, int], now: tuple[int, int], noise: float | None, drift: float | None
) -> None:
    """Noise goes with 1/n, drift with (n − 1) I^0.4; no drift follows from a run in which nothing drifted."""
    profile, (devices, interval) = small_profile(), ran
    read = some_constants(profile)
    if 1 in ran:
        read = replace(read, drift_of=0 * read.drift_of, skew_of=None)
    sections = {"fleet": {"devices": devices}, "training": {"interval": interval}}
    run = fake_run([], read, Scenario.model_validate(sections))
    conditions = Conditions(run.scenario.training.learning_rate, *now)
    if noise is None:
        expected = f"run read no drift, .* about {now[0]} devices with an interval of {now[1]}: set the"
        with pytest.raises(InputError, match=expected):
            converted(run, profile, conditions)
        return
    found = converted(run, profile, conditions)
    assert isinstance(found, MeasuredConstants)
    assert found.noise == pytest.approx(read.noise * noise)
    np.testing.assert_allclose(found.drift_of, some_constants(profile).drift_of * drift)


def test_plans_and_trainings_refuse_a_run_without_drift(hasfl: Hasfl, trained: Path) -> None:
    """Unless nothing drifts in them either."""
    still = trained / "runs" / "still"
    shutil.copytree(trained / "runs" / "read", still)
    rows = [json.loads(line) for line in (still / "rounds.jsonl").read_text().splitlines()]
    for row in rows:
        if row["constants"] is not None:
            row["constants"]["drift_of"] = [0.0] * 5
    (still / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = '[constants]\nfrom = "runs/still"\n'
    for changes, fine in (
        ({"training.interval": "15"}, False),
        ({"training.interval": "1"}, True),
        ({"fleet.devices": "1"}, True),
    ):
        path = write(trained, changes, named, name="still")
        if fine:
            assert not read_question(str(path)).problem.constants.drift_of.any()
            assert simulation_of(read_toml(str(path), Scenario), folder=trained)
        else:
            for command in (("plan",), ("train", "--out", trained / "runs", "--run", "moving")):
                assert "still read no drift, because" in sentence(hasfl(*command, path))
    alone = write(trained, {"training.interval": "1"}, named, name="still")
    assert "still read no drift, because" in sentence(hasfl("plan", alone, "--interval", 15))


@pytest.mark.parametrize(
    ("strategy", "devices"), [("sl", 1), ("sl:b=4", 1), ("cl", 5), ("fl", 2), ("hasfl", 2)]
)
def test_constants_are_known_for_the_devices_of_the_paradigm(strategy: str, devices: int) -> None:
    """One after the other, all whose data the server has, or those that take part. Plans are for the last."""
    training = {"strategy": strategy, "participation": 0.4, "interval": 1}
    scenario = Scenario.model_validate({"fleet": {"devices": 5}, "training": training})
    assert conditions_of(scenario).devices == 2
    profile, plan = small_profile(), Plan([4] * devices, [2] * devices)
    known = replace(some_constants(profile), noise=3.7)
    run = fake_run([record(1, devices=np.arange(devices), plan=plan)], known, scenario)
    assert run.conditions == Conditions(scenario.training.learning_rate, devices, 1)
    assert run.endless_rounds(profile, 1) == pytest.approx(1 / (1 + 3.7 / 4))
    constants, told = constants_for(scenario, profile, run)
    assert constants.noise == pytest.approx(3.7 * devices / 2)
    assert (f"devices {devices} instead of 2" in " ".join(told)) == (devices != 2)


@pytest.mark.parametrize(("strategy", "depth"), [("cl", 0), ("sfl", 2), ("fl", 3)])
def test_a_round_is_worth_what_the_private_layers_of_its_paradigm_cost(strategy: str, depth: int) -> None:
    """The server's model is nowhere private, and federated devices hold all three layers."""
    profile, plan = small_profile(), Plan([4] * 3, [2] * 3)
    scenario = Scenario.model_validate({"fleet": {"devices": 3}, "training": {"strategy": strategy}})
    known, layers = some_constants(profile), np.arange(1, depth + 1)
    run = fake_run([record(1, plan=plan)], known, scenario)
    slowness = 1 + 0.05 * layers.sum() + known.noise / 4 * (1 + 0.1 * layers.sum())
    assert run.endless_rounds(profile, 1) == pytest.approx(1 / slowness)


@pytest.mark.parametrize(("strategy", "times"), [("sl", 4.0), ("cl", 1.0), ("hasfl", 2.0)])
def test_a_training_knows_constants_for_the_devices_of_its_paradigm(
    trained: Path, strategy: str, times: float
) -> None:
    """Of a run of four devices; half of them take part, but all in the data that the server has."""
    changes = {"training.strategy": f'"{strategy}"', "training.participation": "0.5"}
    named = '[constants]\nfrom = "runs/read"\n'
    path = write(trained, changes | {"training.interval": "15"}, named, name="paradigm")
    training = simulation_of(read_toml(str(path), Scenario), folder=trained).training
    devices = np.arange(round(4 / times))
    known, read = training.observer.problem(1, devices).constants, readings_of(trained / "runs" / "read").read
    assert known.noise == pytest.approx(read.noise * times)
    np.testing.assert_allclose(known.drift_of, read.drift_of * (len(devices) - 1) / 3)


def test_the_papers_constants_come_with_their_target(trained: Path) -> None:
    asked = read_question(None, run=trained / "runs" / "paper")
    assert isinstance(asked.problem.constants, BoundConstants)
    simulation = simulation_of(readings_of(trained / "runs" / "paper").scenario, folder=trained)
    assert asked.problem.target is not None
    assert simulation.training.observer.problem(1, np.arange(4)).target is not None
    given = write(trained, {"training.interval": "15", "training.target": "77.0"}, name="target")
    assert read_question(str(given), run=trained / "runs" / "paper").problem.target == 77.0


@pytest.mark.parametrize("place", ["beside", "working folder"])
def test_a_scenario_may_name_the_run(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Relative to itself, or to the working folder; training knows the same constants."""
    folder = trained if place == "beside" else tmp_path
    monkeypatch.chdir(tmp_path if place == "beside" else trained)
    path = write(folder, {"training.interval": "15"}, '[constants]\nfrom = "runs/read"\n', name="named")
    asked = read_question(str(path))
    assert (asked.constants, asked.rounds_known) == ("read", True)
    training = simulation_of(read_toml(str(path), Scenario), folder=folder).training
    begins = training.observer.problem(1, np.arange(4)).constants
    assert equal(replace(asked.problem.constants, rounds=1.0), begins)
    assert training.forecaster is not None
    assert training.forecaster.endless is None  # a run has read no R∞
    assert solve(asked.problem).plan == training.begin().order.plan


@pytest.mark.slow
def test_a_run_goes_on_with_the_constants_that_it_was_begun_with(hasfl: Hasfl, trained: Path) -> None:
    """Also if the run that they are from has read others since."""
    source = trained / "runs" / "source"
    shutil.copytree(trained / "runs" / "read", source)

    def train(name: str, rounds: int, *options: str) -> bytes:
        changes = {"training.interval": "1", "world.rates": '"walk"', "stop.rounds": str(rounds)}
        path = write(trained, changes, '[constants]\nfrom = "runs/source"\n', name="from")
        done = hasfl("train", path, "--out", trained / "runs", "--run", name, *options)
        assert done.code == 0, done.err
        return (trained / "runs" / name / "rounds.jsonl").read_bytes()

    whole = train("whole", 5)
    train("begun", 3)
    rows = [json.loads(line) for line in (source / "rounds.jsonl").read_text().splitlines()]
    for row in rows:
        if row["constants"] is not None:
            row["constants"]["noise"] *= 1000  # asks for larger batches
    (source / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert train("begun", 5, "--resume") == whole
    assert train("other", 5) != whole


BEYOND = {"training.interval": "15", "training.constants": '"paper"'}


@pytest.mark.parametrize(
    ("run", "changes", "tables", "expected"),
    [
        ("none", {}, "", "runs/none must be the folder of a run, but is not there"),
        ("fixed", {}, "", "its strategy is b=4+cut=2, and only strategies that look for the best plan"),
        ("read", {"model.name": '"vgg16"', "data.name": ""}, "", "a model of 5 layers, but vgg16 has 16"),
        ("read", {"training.target": "3.0"}, "", "target must be left out where the constants are measured"),
        (None, BEYOND, "", "[constants] is missing: the paper's law needs smoothness, initial_gap"),
        (None, {"training.target": "3.0"}, "", "[constants] is missing: the paper's law needs"),
        (None, {}, CONSTANTS, "training.target is missing: a plan needs the mean squared gradient"),
        (None, {}, '[constants]\nfrom = "runs/none"\n', "runs/none must be the folder of a run"),
        (None, {}, '[constants]\nfrom = "runs/read"\nnoise = 3.0\n', "so noise must be left out"),
        (None, {}, "[constants]\nfrom = 3\n", "constants.from must be a valid string, got 3"),
        (None, {}, '[constants]\nfrmo = "x"\n', "constants.frmo is not a known field: did you mean from?"),
        (None, {}, '[constants]\nfrom = "~nobody-here/x"\n', "begins with the home folder of nobody here"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    hasfl: Hasfl, trained: Path, run: str | None, changes: dict[str, str], tables: str, expected: str
) -> None:
    path = write(trained, changes, tables, name="wrong")
    options = () if run is None else ("--from", trained / "runs" / run)
    assert expected in sentence(hasfl("plan", path, *options))


def test_a_run_too_short_for_a_reading_gives_the_guess(hasfl: Hasfl, tmp_path: Path) -> None:
    """R∞ is such that the run's plan takes the run's rounds; another training guesses for itself."""
    path = write(tmp_path, {"training.interval": "15", "stop.rounds": "3"}, name="short")
    assert hasfl("train", path, "--out", tmp_path, "--run", "short").code == 0
    asked = read_question(str(path), run=tmp_path / "short")
    guess = read_question(str(path)).problem.constants
    assert equal(replace(asked.problem.constants, rounds=1.0), guess)
    assert "too short for a reading, so noise and drift are guessed" in remarks(asked)
    (plan,) = {each.plan for each in readings_of(tmp_path / "short").records}
    assert rounds_needed(plan, asked.problem) == pytest.approx(3)
    named = write(tmp_path, {"training.interval": "15"}, '[constants]\nfrom = "short"\n', name="named")
    training = simulation_of(read_toml(str(named), Scenario), folder=tmp_path).training
    assert equal(training.observer.problem(1, np.arange(4)).constants, guess)
    changes = {"training.interval": "1", "fleet.devices": "9"}
    other = read_question(str(write(tmp_path, changes, name="other")), run=tmp_path / "short")
    for interval in (1, 7):
        problem = other.at(interval)
        new_guess = Belief.guessed(problem.profile, 9, interval).constants()
        assert equal(problem.constants, replace(new_guess, rounds=asked.problem.constants.rounds))


def test_a_run_that_cannot_give_constants(hasfl: Hasfl, trained: Path, tmp_path: Path) -> None:
    path = write(tmp_path, {"training.target": "500.0", "stop.rounds": "3"}, CONSTANTS, name="given")
    assert hasfl("train", path, "--out", tmp_path, "--run", "given").code == 0
    assert "read no constants, because its scenario gives them: plan with that scenario" in sentence(
        hasfl("plan", "--from", tmp_path / "given")
    )
    assert "has its own constants" in sentence(
        hasfl("plan", "examples/problem.json", "--from", trained / "runs" / "read")
    )
    assert "plan needs a scenario (.toml) or a problem (.json), or a run" in sentence(hasfl("plan"))


def test_constants_that_cannot_be_used_are_told(hasfl: Hasfl, trained: Path) -> None:
    rows = (trained / "runs" / "read" / "rounds.jsonl").read_text().splitlines()
    broken = trained / "runs" / "broken"
    shutil.copytree(trained / "runs" / "read", broken)
    for entry in ({"noise": -1.0}, {}, {"noise": [1]}):
        last = json.loads(rows[14]) | {"constants": entry}
        (broken / "rounds.jsonl").write_text("\n".join([*rows[:14], json.dumps(last), *rows[15:]]) + "\n")
        said = sentence(hasfl("plan", "--from", broken))
        assert "must hold the constants that it read, but they cannot be used" in said


def test_devices_of_a_kind(tmp_path: Path) -> None:
    path = write(tmp_path, {"fleet.devices": ""}, PIS)
    assert read_question(str(path)).problem.fleet.names == ("pi-1", "pi-2", "pi-3")
