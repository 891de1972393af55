"""The problem that `hasfl plan` solves is the one that training begins with; and a run's constants."""

import json
import shutil
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hasfl.constants import BoundConstants, Conditions, Constants, Guesses, MeasuredConstants
from hasfl.errors import MissingExtra
from hasfl.plan import Plan
from hasfl.planning.exact.guess_ratios import ratios, weighed
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.record import RoundRecord
from hasfl.runs.build import Simulation
from hasfl.runs.files import read_toml
from hasfl.runs.questions import Question, read_question, solve
from hasfl.runs.run_constants import MeasuredRun, conditions_of, guessed, measured_run
from hasfl.runs.scenario import KNOWN_DATA, Scenario
from hasfl.runs.task import task_of
from hasfl.theory.objective import rounds_needed
from tests.cli.conftest import Hasfl
from tests.lanes import quick_then_slow
from tests.report.runs import record
from tests.runs.scenarios import CONSTANTS, PIS, sentence, write
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
    """Whether two values have the same numbers; guesses may have other weights."""
    if isinstance(one, Guesses):
        assert isinstance(other, Guesses)
        pairs = list(zip(one.each, other.each, strict=True))
        return all(a.says == b.says and equal(a.constants, b.constants) for a, b in pairs)
    names = [field.name for field in fields(one)]
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


@pytest.mark.parametrize("case", quick_then_slow(list(SCENARIOS), quick=9))
def test_a_plan_is_for_the_problem_that_training_begins_with(mine: Path, case: str) -> None:
    path = write(mine, SCENARIOS[case])
    asked = read_question(str(path))
    training = Simulation.of(task_of(read_toml(str(path), Scenario), folder=mine)).training
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
    pairs = zip(planned.constants.each, begins.constants.each, strict=True)
    read = SCENARIOS[case].get("data.name") == IMAGES["data.name"]
    for one, other in pairs:  # labels of data that hasfl knows by name count as balanced
        assert one.weight == pytest.approx(other.weight, abs=1e-12 if read else 0.02)
    known = "shards" not in case or "images" in case
    assert np.array_equal(planned.samples, begins.samples) if known else planned.samples is None
    if case in ("digits", "digits in shards", "digits with held-out samples", "images", "own model"):
        as_known = replace(planned, samples=begins.samples)
        assert solve(weighed(as_known)).plan == training.begin().order.plan


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
    monkeypatch.setattr("hasfl.runs.task.load_data", lambda *_, **__: pytest.fail("read"))
    problem = read_question(str(write(tmp_path, changes))).problem
    assert len(problem.profile) == layers
    assert problem.profile.activation_bits_at[-1] == 32 * outputs
    shipped = read_question(str(write(tmp_path, {"data.name": "", "model.name": '"small-cnn"'}))).problem
    assert problem.profile.forward_flops_upto[-1] > shipped.profile.forward_flops_upto[-1]


def test_what_is_known_of_data_is_so() -> None:
    from hasfl.data.sources import load_dataset

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


def weight_of_own_labels(asked: Question) -> float:
    constants = asked.problem.constants
    assert isinstance(constants, Guesses)
    return sum(guess.weight for guess in constants.each if guess.says.startswith("own labels"))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ('name = "cifar10"\npartition = "shards"', 0.8),  # nearly: 2 of 10 classes each
        ('name = "cifar10"\npartition = "shards"\nshards_per_device = 1', 0.9),
        ('name = "cifar10"', 0.02),
        ('name = "cifar10"\nsamples = 10000', 0.01),  # devices hold the same samples
    ],
)
def test_how_unlike_labels_are_is_known_without_data(tmp_path: Path, data: str, expected: float) -> None:
    path = tmp_path / "data.toml"
    path.write_text(f'model.name = "vgg16"\n[data]\n{data}\n')
    asked = read_question(str(path))
    assert asked.unlikeness == pytest.approx(expected, abs=0.03)
    assert weight_of_own_labels(asked) == pytest.approx(0.5 * asked.unlikeness)


@pytest.mark.parametrize(
    "data", ['name = "mine.npz"', 'name = "digits"\npartition = "shards"\n[fleet]\ndevices = 900']
)
def test_unknown_labels_count_as_wholly_unlike(tmp_path: Path, data: str) -> None:
    """Those of one's own data that no model needs, and those of too many devices for the samples."""
    from hasfl.cli.main import main

    profile = tmp_path / "layers.json"
    with pytest.MonkeyPatch.context() as patch, profile.open("w") as written:
        patch.setattr(sys, "argv", ["hasfl", "profile", "small-cnn", "--json"])
        patch.setattr(sys, "stdout", written)
        with pytest.raises(SystemExit):
            main()
    path = tmp_path / "data.toml"
    path.write_text(f'model.profile = "layers.json"\n[data]\n{data}\n')
    asked = read_question(str(path))
    assert asked.unlikeness is None
    assert weight_of_own_labels(asked) == pytest.approx(0.5)


def test_the_noise_follows_the_learning_rate_of_plain_sgd_only(tmp_path: Path) -> None:
    def noise(**changes: str) -> float:
        path = write(tmp_path, {f"training.{name}": value for name, value in changes.items()})
        return read_question(str(path)).problem.constants.each[0].constants.noise

    assert noise(learning_rate="0.1") == pytest.approx(2 * noise())
    momentum = '"momentum"'
    assert noise(learning_rate="0.1", optimizer=momentum) == noise(optimizer=momentum) == noise()


def guesses_of(devices: int = 4, **training: object) -> Question:
    """A question with guesses, as a scenario has it."""
    sections = {"fleet": {"devices": devices}, "training": training, "data": {"name": "digits"}}
    scenario = Scenario.model_validate(sections)
    profile = small_profile()
    now = conditions_of(scenario)
    problem = Problem(
        fleet=scenario.draw(),
        profile=profile,
        constants=guessed(scenario, profile, now, 0.5),
        learning_rate=now.learning_rate,
        interval=now.interval,
    )
    return Question(
        problem=problem, constants="guessed", participants=now.devices, unlikeness=0.5, scenario=scenario
    )


def test_guesses_follow_the_interval_and_the_number_of_devices() -> None:
    """Times stay counted in those of the best plans of the question itself."""
    asked = guesses_of(4).weighed()
    there, anew = asked.constants_for(9, 60), guesses_of(9, interval=60).problem.constants
    assert equal(there, anew)
    for before, after in zip(asked.problem.constants.each, there.each, strict=True):
        assert (after.best_seconds, after.weight) == (before.best_seconds, before.weight)
        assert after.best_seconds != 1
    assert asked.at(15) is asked.problem
    assert asked.at(60).interval == 60


def test_guesses_for_one_device_have_no_drift_to_convert() -> None:
    """So those for more devices are made anew."""
    alone = guesses_of(1)
    assert not any(guess.constants.drift_of.any() for guess in alone.problem.constants.each)
    more = alone.constants_for(6, 15)
    assert all(guess.constants.drift_of.all() for guess in more.each)


# What a run tells.


def fake_run(
    records: list[RoundRecord],
    scenario: Scenario | None = None,
    interval: int = 15,
    estimated: BoundConstants | None = None,
) -> MeasuredRun:
    made = scenario or Scenario.model_validate({"fleet": {"devices": 3}, "training": {"interval": interval}})
    return MeasuredRun(
        path=Path("run"), scenario=made, folder=Path(), records=records, estimated=estimated, estimated_in=1
    )


def some_constants(profile: Profile) -> MeasuredConstants:
    layers = np.arange(1, len(profile) + 1)
    return MeasuredConstants(rounds=1.0, noise=3.0, drift_of=0.1 * layers, skew_of=0.05 * layers)


def a_problem(constants: Constants, profile: Profile, scenario: Scenario) -> Problem:
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
    profile, known = small_profile(), some_constants(small_profile())
    plan = Plan([1, 4, 16], [1, 2, 2])
    run = fake_run([record(t, plan=plan) for t in range(1, 41)], interval=interval)
    constants = replace(known, rounds=run.endless_rounds(known, profile, 40))
    assert rounds_needed(plan, a_problem(constants, profile, run.scenario)) == pytest.approx(40, rel=1e-12)
    assert run.endless_rounds(known, profile, 20) == pytest.approx(constants.rounds / 2)


def test_rounds_of_several_plans_and_devices_add_up() -> None:
    profile = small_profile()
    known = some_constants(profile)
    rows: list[RoundRecord] = [
        record(1, plan=Plan([1, 2, 4], [1, 1, 2])),
        record(2, devices=np.array([0, 2]), plan=Plan([8, 2], [3, 1])),
        record(3, devices=np.array([1]), plan=Plan([5], [2])),
    ]
    expected = 0.0
    for row in rows:
        n, depth = len(row.devices), row.plan.deepest_cut
        noise = known.noise * 3 / n  # the mean over fewer devices is noisier
        drift = known.drift_of[:depth].sum() * (n - 1) / 2
        skew = np.sum(known.skew_upto[depth - 1]) if n > 1 else 0.0
        single = known.single_noise if profile.batch_norm_upto[depth - 1] else 1.0
        per_batch = [single if b == 1 else 1 / b for b in row.plan.batch_sizes]
        expected += 1 / (1 + skew + noise * np.mean(per_batch) * (1 + drift))
    assert fake_run(rows).endless_rounds(known, profile, 3) == pytest.approx(expected, rel=1e-12)


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
        ("small", "hasfl", "hasfl"),
        ("small", "fixed", "b=4+cut=2"),
        ("paper", "paper", "hasfl"),
        ("paper", "fixed-paper", "b=4+cut=2"),
    ):
        arguments = ["train", f"{folder}/{scenario}.toml", "--strategy", strategy]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["hasfl", *arguments, "--out", str(folder / "runs"), "--run", name])
            with pytest.raises(SystemExit) as stop:
                main()
        assert not stop.value.code
    torch.set_num_threads(threads)
    return folder


def remarks(asked: Question) -> str:
    return "\n".join(asked.remarks)


@pytest.mark.parametrize("name", ["hasfl", "fixed"])
def test_by_each_guess_the_plan_of_a_run_takes_the_rounds_of_the_run(trained: Path, name: str) -> None:
    run = measured_run(trained / "runs" / name)
    asked = read_question(str(trained / "small.toml"), run=run.path)
    assert (asked.constants, asked.rounds_known) == ("measured", True)
    reached = run.scenario.stop.goal().met_by(run.records)
    assert reached is not None
    (plan,) = {each.plan for each in run.records[: reached.round]}
    constants = asked.problem.constants
    assert isinstance(constants, Guesses)
    for guess in constants.each:
        alone = replace(asked.problem, constants=guess.constants)
        assert rounds_needed(plan, alone) == pytest.approx(reached.round, rel=1e-12)
    assert f" % on held-out samples, which the run reached in round {reached.round}." in remarks(asked)
    assert "The training time, without judging, is that to " in remarks(asked)
    guessed_alone = read_question(str(trained / "small.toml"))
    unknown = [replace(guess.constants, rounds=1.0) for guess in constants.each]
    pairs = zip(unknown, guessed_alone.problem.constants.each, strict=True)
    assert all(equal(one, other.constants) for one, other in pairs)
    alone_question = read_question(None, run=run.path)
    assert equal(alone_question.problem.constants, constants)
    assert equal(alone_question.problem.profile, asked.problem.profile)


def test_the_rounds_of_a_run_change_no_plan_and_no_ratio(trained: Path) -> None:
    """They scale the times of all plans alike, guess by guess."""
    path, run = str(trained / "small.toml"), trained / "runs" / "hasfl"
    without, with_run = read_question(path).weighed(), read_question(path, run=run).weighed()
    plans = [solve(asked.problem).plan for asked in (without, with_run)]
    assert plans[0] == plans[1]
    one, other = (ratios(plans[0], asked.problem) for asked in (without, with_run))
    assert [each.ratio for each in one] == pytest.approx([each.ratio for each in other])


def test_another_goal_is_another_number_of_rounds(trained: Path) -> None:
    high = write(trained, {"training.interval": "15", "stop.accuracy": "0.9999"}, name="high")
    run = measured_run(trained / "runs" / "hasfl")
    asked = read_question(str(high), run=run.path)
    (plan,) = {each.plan for each in run.records}
    first = replace(asked.problem, constants=asked.problem.constants.each[0].constants)
    assert rounds_needed(plan, first) == pytest.approx(len(run.records))
    assert f"to where the run came in its {len(run.records)} rounds, to " in remarks(asked)
    assert "instead of" not in remarks(asked)


def test_what_differs_is_told_and_the_guesses_are_those_of_the_scenario(trained: Path) -> None:
    changes = {"training.interval": "5", "training.learning_rate": "0.1", "data.partition": '"shards"'}
    other = write(trained, changes | {"fleet.devices": "8"}, name="other")
    run = measured_run(trained / "runs" / "hasfl")
    asked, anew = read_question(str(other), run=run.path), read_question(str(other))
    told = remarks(asked)
    assert "training.learning_rate 0.05 instead of 0.1" in told
    assert "training.interval 15 instead of 5" in told
    assert "data.partition 'iid' instead of 'shards'" in told
    assert "devices 4 instead of 8" in told
    upto, conditions = run.upto(run.scenario.stop.goal()), run.conditions
    assert conditions == Conditions(0.05, 4, 15)
    profile = asked.problem.profile
    of_run = guessed(run.scenario, profile, conditions, 1.0)
    pairs = zip(asked.problem.constants.each, anew.problem.constants.each, of_run.each, strict=True)
    for found, guess, before in pairs:
        assert equal(replace(found.constants, rounds=1.0), guess.constants)
        assert found.constants.rounds == run.endless_rounds(before.constants, profile, upto)


@pytest.mark.parametrize(
    ("strategy", "devices"), [("sl", 1), ("sl:b=4", 1), ("cl", 5), ("fl", 2), ("hasfl", 2)]
)
def test_a_run_is_for_the_devices_of_its_paradigm(strategy: str, devices: int) -> None:
    """One after the other, all whose data the server has, or those that take part. Plans are for the last."""
    training = {"strategy": strategy, "participation": 0.4, "interval": 1}
    scenario = Scenario.model_validate({"fleet": {"devices": 5}, "training": training})
    assert conditions_of(scenario).devices == 2
    profile, plan = small_profile(), Plan([4] * devices, [2] * devices)
    known = replace(some_constants(profile), noise=3.7)
    run = fake_run([record(1, devices=np.arange(devices), plan=plan)], scenario)
    assert run.conditions == Conditions(scenario.training.learning_rate, devices, 1)
    assert run.endless_rounds(known, profile, 1) == pytest.approx(1 / (1 + 3.7 / 4))


@pytest.mark.parametrize(("strategy", "depth"), [("cl", 0), ("sfl", 2), ("fl", 3)])
def test_a_round_is_worth_what_the_private_layers_of_its_paradigm_cost(strategy: str, depth: int) -> None:
    """The server's model is nowhere private, and federated devices hold all three layers."""
    profile, plan = small_profile(), Plan([4] * 3, [2] * 3)
    scenario = Scenario.model_validate({"fleet": {"devices": 3}, "training": {"strategy": strategy}})
    known, layers = some_constants(profile), np.arange(1, depth + 1)
    run = fake_run([record(1, plan=plan)], scenario)
    slowness = 1 + 0.05 * layers.sum() + known.noise / 4 * (1 + 0.1 * layers.sum())
    assert run.endless_rounds(known, profile, 1) == pytest.approx(1 / slowness)


def test_the_papers_constants_come_with_their_target(trained: Path) -> None:
    run = measured_run(trained / "runs" / "paper")
    asked = read_question(None, run=run.path)
    assert (asked.constants, asked.rounds_known) == ("estimated", True)
    assert asked.problem.constants is not None
    assert equal(asked.problem.constants, run.estimated)
    assert f"estimated in round {run.estimated_in}." in remarks(asked)
    simulation = Simulation.of(task_of(run.scenario, folder=trained))
    assert asked.problem.target is not None
    assert simulation.training.observer.problem(1, np.arange(4)).target is not None
    given = write(trained, {"training.interval": "15", "training.target": "77.0"}, name="target")
    assert read_question(str(given), run=run.path).problem.target == 77.0


@pytest.mark.parametrize("place", ["beside", "working folder"])
def test_a_scenario_may_name_the_run(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Relative to itself, or to the working folder; training plans with the same guesses."""
    folder = trained if place == "beside" else tmp_path
    monkeypatch.chdir(tmp_path if place == "beside" else trained)
    path = write(folder, {"training.interval": "15"}, '[constants]\nfrom = "runs/hasfl"\n', name="named")
    asked = read_question(str(path)).weighed()
    assert (asked.constants, asked.rounds_known) == ("measured", True)
    training = Simulation.of(task_of(read_toml(str(path), Scenario), folder=folder)).training
    begins = training.observer.problem(1, np.arange(4)).constants
    pairs = zip(asked.problem.constants.each, begins.each, strict=True)
    assert all(equal(replace(one.constants, rounds=1.0), other.constants) for one, other in pairs)
    assert training.forecaster is not None
    assert training.forecaster.endless is None  # it depends on the guess
    assert solve(asked.problem).plan == training.begin().order.plan


def test_a_training_may_take_the_constants_that_a_run_estimated(trained: Path) -> None:
    named = '[constants]\nfrom = "runs/paper"\n'
    path = write(trained, {"training.interval": "15"}, named, name="named-paper")
    training = Simulation.of(task_of(read_toml(str(path), Scenario), folder=trained)).training
    estimated = measured_run(trained / "runs" / "paper").estimated
    assert equal(training.observer.problem(1, np.arange(4)).constants, estimated)


BEYOND = {"training.interval": "15", "training.constants": '"paper"'}


@pytest.mark.parametrize(
    ("run", "changes", "tables", "expected"),
    [
        ("none", {}, "", "runs/none must be the folder of a run, but is not there"),
        (
            "fixed-paper",
            {},
            "",
            "estimated no constants in its 30 rounds: train longer, with a strategy that",
        ),
        ("hasfl", {"model.name": '"vgg16"', "data.name": ""}, "", "but the plan is for vgg16 with 16 layers"),
        ("paper", {"model.name": '"vgg16"', "data.name": ""}, "", "runs/paper trained small-cnn with cuts"),
        ("hasfl", {"training.target": "3.0"}, "", "target must be left out where the constants are measured"),
        (None, BEYOND, "", "[constants] is missing: the paper's law needs smoothness, initial_gap"),
        (None, {"training.target": "3.0"}, "", "[constants] is missing: the paper's law needs"),
        (None, {}, CONSTANTS, "training.target is missing: a plan needs the mean squared gradient"),
        (None, {}, '[constants]\nfrom = "runs/none"\n', "runs/none must be the folder of a run"),
        (None, {}, '[constants]\nfrom = "runs/hasfl"\nnoise = 3.0\n', "so noise must be left out"),
        (None, {}, "[constants]\nfrom = 3\n", "constants.from must be a valid string, got 3"),
        (None, {}, '[constants]\nfrmo = "x"\n', "constants.frmo is not a known field: did you mean from?"),
        (
            None,
            {},
            '[constants]\nfrom = "~nobody-here/x"\n',
            "names the home folder of a user whom this machine does not know",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    hasfl: Hasfl, trained: Path, run: str | None, changes: dict[str, str], tables: str, expected: str
) -> None:
    path = write(trained, changes, tables, name="wrong")
    options = () if run is None else ("--from", trained / "runs" / run)
    assert expected in sentence(hasfl("plan", path, *options))


def test_a_run_that_cannot_give_constants(hasfl: Hasfl, trained: Path, tmp_path: Path) -> None:
    path = write(tmp_path, {"training.target": "500.0", "stop.rounds": "3"}, CONSTANTS, name="given")
    assert hasfl("train", path, "--out", tmp_path, "--run", "given").code == 0
    assert "given has the constants of its scenario: plan with that scenario" in sentence(
        hasfl("plan", "--from", tmp_path / "given")
    )
    assert "has its own constants" in sentence(
        hasfl("plan", "examples/problem.json", "--from", trained / "runs" / "hasfl")
    )
    assert "plan needs a scenario (.toml) or a problem (.json), or a run" in sentence(hasfl("plan"))


def test_constants_that_cannot_be_used_are_told(hasfl: Hasfl, trained: Path) -> None:
    rows = (trained / "runs" / "paper" / "rounds.jsonl").read_text().splitlines()
    broken = trained / "runs" / "broken"
    shutil.copytree(trained / "runs" / "paper", broken)
    for entry in ({"smoothness": -1.0}, {}, {"smoothness": [1]}):
        last = json.loads(rows[-1]) | {"constants": entry}
        (broken / "rounds.jsonl").write_text("\n".join([*rows[:-1], json.dumps(last)]) + "\n")
        said = sentence(hasfl("plan", "--from", broken))
        assert "must hold the constants that it estimated, but they cannot be used" in said


def test_devices_of_a_kind(tmp_path: Path) -> None:
    path = write(tmp_path, {"fleet.devices": ""}, PIS)
    assert read_question(str(path)).problem.fleet.names == ("pi-1", "pi-2", "pi-3")
