"""Training by parties without a test set: held-out samples take its place, if there are any."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hasfl.cli.train import show_outcome
from hasfl.cli.training_view import TrainingView
from hasfl.errors import InputError
from hasfl.report.analysis import HELD_OUT, Curve, Outcome, finish, measured_on, outcome, speed_ups
from hasfl.report.figures import accuracy_against_time, race_picture
from hasfl.runs.build import Simulation
from hasfl.runs.overview import summary
from hasfl.runs.request import RunRequest
from hasfl.runs.run import Prepared, carry_out
from hasfl.runs.store import RunFolder
from hasfl.runs.task import shared_data, task_of
from tests.deployment.direct_fleets import Parties
from tests.report.runs import record
from tests.runs.scenarios import write

SHARE = 0.25


def trained(folder: Path, held_out: float) -> tuple[RunRequest, Outcome]:
    """A run of parties in this process, without a test set."""
    changes = {"training.strategy": '"sfl"', "data.held_out": str(held_out), "stop.rounds": "6"}
    request = RunRequest.of(write(folder, changes), folder / "runs", strategy_name="sfl", seed=0)

    def prepare(request: RunRequest, tell: Any) -> Prepared:
        scenario = request.scenario()
        made = Simulation.of(task_of(scenario, folder=request.folder, tell=tell))
        _, shares = shared_data(scenario, scenario.draw().names, folder=request.folder)
        job = replace(made.engine.job, test=None)
        parties = Parties(job, held_out=held_out, shares=shares)
        return SimpleNamespace(
            training=replace(made.training, engine=parties.engine),
            marks=made.marks,
            looped_layers={},
            model=lambda: job.model.state_names.state_dict(parties.engine.model()),
            model_input=made.model_input,
        )

    with TrainingView() as view:
        return request, carry_out(request, view, resume=False, prepare=prepare)


def test_held_out_samples_take_the_place_of_the_test_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request, reached = trained(tmp_path, SHARE)
    records = RunFolder.open(request.path).records()
    judged = [each.held_out_accuracy for each in records if each.held_out_accuracy is not None]
    assert all(each.accuracy is None for each in records)
    assert (reached.measured_on, reached.accuracy) == (HELD_OUT, judged[-1])
    assert reached.best_accuracy == max(judged)
    assert json.loads((request.path / "result.json").read_text())["measured_on"] == HELD_OUT
    assert (summary(request.path).accuracy, summary(request.path).measured_on) == (judged[-1], HELD_OUT)
    show_outcome(reached, request.path, request.scenario().stop.goal(), None)
    assert f"has {judged[-1]:.2%} on held-out samples (there is no test set)" in capsys.readouterr().out


def test_without_any_samples_to_judge_the_model_there_is_no_accuracy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request, reached = trained(tmp_path, 0.0)
    assert (reached.accuracy, reached.best_accuracy, reached.measured_on) == (None, None, None)
    assert (reached.converged, reached.rounds, reached.saved_round) == (False, 6, 6)
    assert (request.path / "model.safetensors").exists()
    assert summary(request.path).accuracy is None
    show_outcome(reached, request.path, request.scenario().stop.goal(), None)
    assert "was not evaluated: there is no test set, and no samples are held out" in capsys.readouterr().out
    with pytest.raises(InputError, match="neither a test set nor held-out samples"):
        speed_ups({"sfl": RunFolder.open(request.path).records()}, "sfl")


def held_out(accuracies: list[float]) -> list[Any]:
    return [
        record(t, held_out_accuracy=each, held_out_loss=1 / t, kept=True)
        for t, each in enumerate(accuracies, start=1)
    ]


def test_a_curve_of_held_out_samples_is_that_of_a_test_set_with_the_same_numbers() -> None:
    numbers = [0.1, 0.5, 0.4, *[0.7] * 8]
    without = held_out(numbers)
    tested = [
        replace(each, accuracy=each.held_out_accuracy, test_loss=each.held_out_loss) for each in without
    ]
    found, expected = outcome("sfl", without), outcome("sfl", tested)
    assert replace(found, measured_on=expected.measured_on) == expected
    assert found.converged
    assert Curve.of(without).reached(0.5) == Curve.of(tested).reached(0.5)
    assert finish("sfl", without, 0.5) == finish("sfl", tested, 0.5)
    assert (measured_on(without), measured_on(without[:0])) == (HELD_OUT, None)


def test_pictures_say_what_the_accuracy_is_about() -> None:
    runs = {"sfl": held_out([0.1, 0.6, 0.7])}
    assert accuracy_against_time(runs, 0).axes[0].get_ylabel() == "accuracy (%)"
    assert "held-out" in race_picture({"sfl": runs["sfl"][:2]}, 0.5, 0).axes[1].get_ylabel()
