"""Settings: one list of names, defaults and checks for the library and for scenario files."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hasfl import (
    Descent,
    Goal,
    InputError,
    Machine,
    MeasuredConstants,
    Planning,
    Serving,
    Settings,
    read_problem,
)
from hasfl.constants import BoundConstants
from hasfl.runs.build import Simulation
from hasfl.runs.files import read_toml
from hasfl.runs.scenario import Scenario, TrainingSection, read_scenario
from hasfl.runs.task import settings_from, task_of
from hasfl.settings import Recipe
from tests.cli.conftest import Hasfl
from tests.cli.conftest import hasfl as hasfl
from tests.learning.simulations import grouped, simulation
from tests.runs.scenarios import CONSTANTS, sentence, write

GROUPS = (Recipe, Descent, Planning, Serving, Machine)
MEASURED = "[constants]\nrounds = 500\nnoise = 20\ndrift_of = [0.1, 0.1, 0.1, 0.1, 0.1]\n"
OF_A_FILE = {"checkpoint_seconds"}  # a setting of runs that are kept, so not of the library


def written(folder: Path, text: str) -> Path:
    path = folder / "scenario.toml"
    path.write_text(text)
    return path


def settings_of(folder: Path, text: str) -> Settings:
    return read_toml(str(written(folder, text)), Scenario).settings()


def in_toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def names(group: type) -> set[str]:
    return {field.name for field in fields(group)}


def test_an_empty_scenario_has_the_defaults_of_the_library(tmp_path: Path) -> None:
    assert settings_of(tmp_path, "") == Settings()


@pytest.mark.parametrize("group", GROUPS)
def test_every_setting_has_one_default(group: Any) -> None:
    """In the section of a scenario, in the library's groups, and in the settings that a scenario gives."""
    section, settings = TrainingSection(), Scenario().settings()
    own = getattr(settings, group.__name__.lower(), settings)
    for name in names(group):
        assert getattr(section, name) == getattr(group(), name) == getattr(own, name), name


def test_a_scenario_and_the_library_know_the_same_settings() -> None:
    assert names(TrainingSection) - OF_A_FILE == set[str]().union(*map(names, GROUPS))
    elsewhere = {"goal", "seed", "held_out", "augment", "known_constants", "rounds_known"}
    assert names(Settings) == names(Recipe) | elsewhere | {"descent", "planning", "serving", "machine"}


VALUES: dict[str, Any] = {
    "strategy": "sfl",
    "learning_rate": 0.25,
    "interval": 7,
    "optimizer": "adam",
    "participation": 0.5,
    "loss": "own:loss",
    "metric": "own:metric",
    "aggregation": "own:rule",
    "local_term": "own:term",
    "schedule": "cosine",
    "warm_up": 3,
    "schedule_rounds": 40,
    "weight_decay": 0.01,
    "clip": 2.5,
    "max_batch": 9,
    "evaluate_every": 3,
    "constants": "paper",
    "target": 0.5,
    "plans": "stay",
    "serve": "last",
    "calibrate": True,
    "keep": "best",
    "score_last": False,
    "engine": "reference",
    "device": "cuda:1",
    "precision": "bfloat16",
    "report_every": 4,
    "wire": "float32",
}


STEPS = {"schedule": "step", "schedule_rounds": None, "step_every": 6, "step_factor": 0.5}
SCORED = {"serve": "mean", "score_last": True, "evaluate_every": 9}


@pytest.mark.parametrize("changes", [{}, STEPS | SCORED], ids=["cosine", "step"])
def test_whatever_is_set_arrives(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert set(VALUES | STEPS) == names(TrainingSection) - OF_A_FILE
    given = {name: value for name, value in (VALUES | changes).items() if value is not None}
    lines = [f"training.{name} = {in_toml(value)}" for name, value in given.items()]
    read = settings_of(
        tmp_path, "\n".join(["seed = 5", "data.augment = true", "data.held_out = 0.2", *lines])
    )
    assert read == settings_from(grouped({**given, "seed": 5, "augment": True, "held_out": 0.2}))
    assert read != Settings()


WRONG = [
    ("optimizer", "lion", "one of sgd, momentum, nesterov, adam, adamw, or one of your own as package"),
    ("schedule", "linear", r"one of constant, step, cosine|'constant', 'step' or 'cosine'"),
    ("keep", "last", r"one of final, best|'final' or 'best'"),
    *((name, 0, "a whole number from 1 to") for name in ("schedule_rounds", "step_every")),
    *(("warm_up", value, "a whole number from 1 to|a valid integer") for value in (-1, 2.5, True)),
    *(("weight_decay", value, "a finite number at least 0") for value in (-0.1, float("inf"))),
    *(("clip", value, "a finite number above 0") for value in (0.0, -1.0, float("inf"))),
    *((name, 1.5, "above 0 and at most 1") for name in ("participation", "step_factor")),
    *((name, 0.0, "above 0 and at most 1") for name in ("participation", "step_factor")),
    ("participation", -0.5, "a finite number at least 0"),
    ("constants", "guessed", r"one of measured, paper|'measured' or 'paper'"),
    ("plans", "never", r"one of over time, stay|'over time' or 'stay'"),
    ("serve", "best", r"one of mean, last|'mean' or 'last'"),
    ("engine", "fast", r"one of simulated, reference|'simulated' or 'reference'"),
    *(
        ("device", name, "cpu, cuda, or a GPU by its number as cuda:1")
        for name in ("gpu", "cuda:", "cuda:-1")
    ),
    ("precision", "float16", r"one of float32, bfloat16|'float32' or 'bfloat16'"),
    ("calibrate", "yes", r"true or false|a valid boolean"),
    *((name, 0, "a whole number from 1 to") for name in ("interval", "max_batch", "evaluate_every")),
    *((name, -3, "a whole number from 1 to") for name in ("interval", "report_every")),
    ("interval", 2.5, "a whole number from 1 to|a valid integer"),
    ("max_batch", True, "a whole number from 1 to|a valid integer"),
    ("max_batch", 10**10, "a whole number from 1 to 1,000,000,000"),
    ("learning_rate", 0.0, "a finite number above 0"),
    ("learning_rate", -0.1, "a finite number above 0"),
    ("learning_rate", float("nan"), "a finite number"),
    ("target", 0.0, "a finite number above 0"),
]


@pytest.mark.parametrize(("name", "value", "expected"), WRONG, ids=str)
def test_a_wrong_value_is_refused_in_the_library_and_in_a_scenario(
    tmp_path: Path, name: str, value: object, expected: str
) -> None:
    goes_with = {"schedule_rounds": {"schedule": "cosine"}, "step_every": {"schedule": "step"}}
    given = {name: value, **goes_with.get(name, {})}
    with pytest.raises(InputError, match=f"^{name} must be ({expected}).*, got ") as library:
        simulation("sfl", **given)
    path = written(tmp_path, "\n".join(f"training.{key} = {in_toml(each)}" for key, each in given.items()))
    with pytest.raises(InputError, match=rf"^{path}: training\.{name} must be ({expected}).*, got ") as file:
        read_scenario(path)
    assert "\n" not in f"{library.value}{file.value}"


NOT_TOGETHER: list[tuple[dict[str, Any], str]] = [
    ({"schedule": "step"}, "step_every is missing: "),
    ({"step_every": 5}, 'step_every belongs to a step schedule: leave it out, or set schedule = "step"'),
    ({"step_factor": 0.5, "schedule": "cosine"}, "step_factor belongs to a step schedule: "),
    ({"schedule_rounds": 9}, "schedule_rounds is the length of a cosine: "),
    (
        {"schedule": "cosine", "schedule_rounds": 9, "warm_up": 9},
        "warm_up must be shorter than the cosine of 9 rounds that it belongs to, got 9: ",
    ),
]


@pytest.mark.parametrize(("given", "expected"), NOT_TOGETHER, ids=str)
def test_knobs_that_do_not_go_together(tmp_path: Path, given: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError) as library:
        simulation("sfl", **given)
    assert str(library.value).startswith(expected)
    path = written(tmp_path, "\n".join(f"training.{key} = {in_toml(each)}" for key, each in given.items()))
    with pytest.raises(InputError) as file:
        read_scenario(path)
    assert str(file.value) == f"{path}: training.{library.value}"


def test_a_cosine_has_the_length_of_the_budget_or_its_own(tmp_path: Path) -> None:
    cosine = Descent(schedule="cosine", warm_up=4)
    assert Settings(goal=Goal(rounds=9), descent=cosine).rates.length == 9
    longer = Descent(schedule="cosine", schedule_rounds=50)
    assert Settings(goal=Goal(rounds=9), descent=longer).rates.length == 50
    with pytest.raises(InputError, match=r"^a cosine schedule needs a length: give schedule_rounds, or end "):
        Settings(goal=Goal(seconds=1.0), descent=cosine)
    with pytest.raises(InputError, match=r"^warm_up must be shorter than the cosine of 4 rounds"):
        Settings(goal=Goal(rounds=4), descent=cosine)
    with pytest.raises(InputError, match=r"scenario.toml: a cosine schedule needs a length"):
        settings_of(tmp_path, 'training.schedule = "cosine"')


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:7"])
def test_a_gpu_that_is_not_there_is_refused(device: str) -> None:
    if torch.cuda.is_available() and torch.cuda.device_count() > int(f"{device}:0".split(":")[1]):
        pytest.skip("this machine has that GPU")
    with pytest.raises(InputError, match=rf"^device \(.*\) is {device}, but torch finds "):
        simulation("sfl", device=device)


BOUND = BoundConstants(smoothness=1.0, initial_gap=2.0, variance_of=[20] * 5, moment_of=[1] * 5)
OTHER = MeasuredConstants(rounds=500, noise=20, drift_of=[0.1] * 5)
CLASHES: list[tuple[str, str, dict[str, Any], str]] = [
    (
        'training.constants = "measured"\ntraining.target = 0.5',
        "",
        {"planning": {"constants": "measured", "target": 0.5}},
        'the target ε belongs to the paper\'s constants: leave it out, or set constants = "paper"',
    ),
    (
        "training.target = 0.5",
        MEASURED,
        {"planning": {"target": 0.5}, "known_constants": OTHER},
        "the target ε belongs to the paper's constants: leave it out, or give the bound's constants in ",
    ),
    (
        'training.constants = "paper"',
        MEASURED,
        {"planning": {"constants": "paper"}, "known_constants": OTHER},
        'constants = "paper" is not the kind that [constants] holds: leave it out, or set it to "measured"',
    ),
    (
        'training.constants = "measured"',
        CONSTANTS,
        {"planning": {"constants": "measured"}, "known_constants": BOUND},
        'constants = "measured" is not the kind that [constants] holds: leave it out, or set it to "paper"',
    ),
]


@pytest.mark.parametrize(("keys", "tables", "given", "expected"), CLASHES, ids=[case[3] for case in CLASHES])
def test_settings_that_do_not_go_together_are_refused_in_the_library_and_in_a_scenario(
    tmp_path: Path, keys: str, tables: str, given: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InputError) as library:
        settings_from({**given, "planning": Planning(**given["planning"])})
    with pytest.raises(InputError) as file:
        settings_of(tmp_path, f"{keys}\n{tables}")
    place = "training." if str(library.value).startswith("constants") else ""
    assert str(file.value) == f"{tmp_path / 'scenario.toml'}: {place}{library.value}"
    assert str(library.value).startswith(expected)
    assert "\n" not in str(library.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("learnig_rate", "did you mean learning_rate?"),
        ("max_batches", "did you mean max_batch?"),
        ("strateg", "did you mean strategy?"),
        ("zzz", "expected one of "),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_one(tmp_path: Path, name: str, hint: str) -> None:
    with pytest.raises(InputError) as library:
        simulation("sfl", **{name: 1})
    assert str(library.value).startswith(f"{name} is not a setting of its own: {hint}")
    path = written(tmp_path, f"training.{name} = 1")
    with pytest.raises(InputError) as file:
        read_scenario(path)
    assert str(file.value).startswith(f"{path}: training.{name} is not a known field: {hint}")
    assert "\n" not in f"{library.value}{file.value}"


def test_a_section_that_is_no_table_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "training = 3")
    with pytest.raises(InputError, match=f"^{path}: training must be a table with named fields, got 3$"):
        read_scenario(path)


JUDGING = {"accuracy": 0.5, "loss": 0.5, "converged": True}
BUDGETS = {"rounds": 3, "samples": 1000, "seconds": 1e9}


@pytest.mark.parametrize("goal", JUDGING)
def test_samples_are_held_out_where_the_goal_judges_the_model(tmp_path: Path, goal: str) -> None:
    judged = Settings(goal=Goal(**{goal: JUDGING[goal], "rounds": 9}))
    assert judged.held_out_share == 0.1
    text = f"stop.{goal} = {in_toml(JUDGING[goal])}\nstop.rounds = 9\n"
    assert settings_of(tmp_path, text) == judged
    assert settings_of(tmp_path, text + "data.held_out = 0.5").held_out_share == 0.5
    fault = "held_out must be above 0 where accuracy, loss or convergence ends training, got 0: leave it out"
    with pytest.raises(InputError, match=f"^{fault}"):
        Settings(goal=judged.goal, held_out=0.0)
    with pytest.raises(InputError, match=rf"scenario.toml: data\.{fault}"):
        settings_of(tmp_path, text + "data.held_out = 0.0")


@pytest.mark.parametrize("goal", BUDGETS)
def test_no_samples_are_held_out_where_a_budget_ends_training(tmp_path: Path, goal: str) -> None:
    settings = Settings(goal=Goal(**{goal: BUDGETS[goal]}))
    assert settings.held_out_share == 0
    text = f"stop.{goal} = {BUDGETS[goal]}\n"
    assert settings_of(tmp_path, text) == settings
    assert settings_of(tmp_path, text + "data.held_out = 0.0").held_out_share == 0
    assert settings_of(tmp_path, text + "data.held_out = 0.25").held_out_share == 0.25


@pytest.mark.parametrize("share", [-0.1, 0.51, 1.0, float("nan")])
def test_a_share_that_makes_no_sense_is_refused(tmp_path: Path, share: float) -> None:
    for goal in (Goal(rounds=3), Goal(accuracy=0.5)):
        with pytest.raises(InputError, match=r"^held_out must be from 0 to 0\.5, got "):
            Settings(goal=goal, held_out=share)
    with pytest.raises(InputError, match=r"held_out must be from 0 to 0\.5, got "):
        settings_of(tmp_path, f"data.held_out = {share}")


def test_the_command_line_refuses_it_in_a_sentence(hasfl: Hasfl, tmp_path: Path) -> None:
    changes = {"data.held_out": "0.0", "stop.accuracy": "0.9", "training.target": "9.0"}
    scenario = write(tmp_path, changes, CONSTANTS)
    for command in (("train", scenario, "--out", tmp_path), ("plan", scenario)):
        said = sentence(hasfl(*command))
        assert "held_out must be above 0 where accuracy, loss or convergence ends training" in said, command


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"stop.accuracy": "0.9"},
        {"data.held_out": "0.3"},
        {"data.held_out": "0.3", "data.samples": "41"},
        {"data.samples": "41", "stop.loss": "0.1"},
        {"data.samples": "2", "stop.accuracy": "0.9", "data.held_out": "0.5"},
        {"data.samples": "30", "data.partition": '"shards"', "stop.converged": "true"},
        {"fleet.devices": "7", "stop.accuracy": "0.9"},
    ],
    ids=str,
)
def test_plan_and_train_know_the_same_number_of_training_samples(
    tmp_path: Path, changes: dict[str, str]
) -> None:
    """Also when a share of them is held out."""
    path = write(tmp_path, {"training.strategy": '"sfl"', "training.target": "9.0"} | changes, CONSTANTS)
    planned = read_problem(str(path))
    made = Simulation.of(task_of(read_scenario(path), folder=tmp_path))
    devices = np.arange(len(planned.fleet))
    trained = made.training.observer.problem(1, devices)
    assert planned.samples is not None
    assert planned.samples.tolist() == trained.samples.tolist() == made.engine.job.data.sizes.tolist()
    assert planned.largest_batch.tolist() == trained.largest_batch.tolist()
    held_out = made.engine.job.data.held_out
    judged = {"stop.accuracy", "stop.loss", "stop.converged", "data.held_out"} & set(changes)
    assert (held_out is not None) == bool(judged)


def test_a_goal_that_nobody_has_samples_for_is_refused(hasfl: Hasfl, tmp_path: Path) -> None:
    changes = {"data.samples": "1", "stop.accuracy": "0.9", "training.strategy": '"sfl"'}
    said = sentence(hasfl("train", write(tmp_path, changes), "--out", tmp_path))
    assert "no device has two samples, one of them to hold out: end training after a number of rounds" in said


def test_convergence_of_a_served_mean_is_not_judged_within_an_interval() -> None:
    with pytest.raises(InputError, match="evaluate_every must be at least the interval, 15"):
        Settings(evaluate_every=5)
    Settings(evaluate_every=5, serving=Serving(serve="last"))
    Settings(evaluate_every=5, goal=Goal(rounds=3))
