"""`hasfl clock`: what it says of known measurements, and of runs that have none."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hasfl.cli.clock import ClockReport, PredictionError
from hasfl.cli.training_view import TrainingView
from hasfl.record import EDGE, MeasuredRound, RoundRecord
from hasfl.runs.request import RunRequest
from hasfl.runs.run import carry_out
from hasfl.runs.store import Journal
from tests.cli.conftest import Hasfl
from tests.report.runs import record
from tests.runs.scenarios import PIS, write

INTERVAL, ROUNDS = 3, 12
PREDICTED = {"device_forward": {0: 1.0, 1: 4.0}, "server_forward": {EDGE: 0.5}}
# Device 1 is slower than predicted by so much, and everybody else by a quarter, in each round.
LATE = {t: 1 + t / 10 for t in range(1, ROUNDS + 1)}


def measured(t: int) -> RoundRecord:
    """A round in which everything takes longer than predicted."""
    predicted: dict[str, dict[int, float]] = dict(PREDICTED)
    spans = {"split_training": 4.5 * LATE[t]}
    if t % INTERVAL == 0:
        predicted["submodel_upload"] = {0: 2.0, 1: 3.0, EDGE: 1.0}
        spans["submodel_upload"] = 6.0
    found = {
        step: {party: seconds * (LATE[t] if party == 1 else 1.25) for party, seconds in of.items()}
        for step, of in predicted.items()
    }
    return record(
        t,
        devices=np.arange(2),
        plan=record(1).plan,
        aggregated=t % INTERVAL == 0,
        phases={"device_forward": 4.0, "server_forward": 0.5, "evaluation_passes": 7.0},
        seconds=10.0,
        measured=MeasuredRound(
            seconds=20.0 + t,
            clock=0.0,
            spans=spans,
            measured=found,
            predicted=predicted,
            dropped={1: "it did not answer [in 3 s]"} if t == 5 else {},
        ),
    )


COUNTED = range(INTERVAL + 1, ROUNDS + 1)  # the first interval does not count


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("simulated")
    scenario = write(folder, {"training.strategy": '"sfl"', "fleet.devices": ""}, PIS)
    with TrainingView() as view:
        carry_out(RunRequest.of(scenario, folder / "runs", strategy_name="sfl", seed=0), view, resume=False)
    return folder / "runs" / "small-sfl-seed0"


def with_records(simulated: Path, path: Path, records: list[RoundRecord]) -> Path:
    shutil.copytree(simulated, path)
    (path / "rounds.jsonl").unlink()
    journal = Journal(path / "rounds.jsonl")
    for each in records:
        journal.append(each.as_json())
    journal.close()
    return path


@pytest.fixture
def networked(simulated: Path, tmp_path: Path) -> Path:
    return with_records(simulated, tmp_path / "networked", [measured(t) for t in range(1, ROUNDS + 1)])


def told(hasfl: Hasfl, run: Path) -> dict[str, Any]:
    done = hasfl("clock", run, "--json")
    assert (done.code, done.err) == (0, "")
    report: dict[str, Any] = json.loads(done.out)
    return report


def test_numbers_are_those_that_one_finds_by_hand(hasfl: Hasfl, networked: Path) -> None:
    report = told(hasfl, networked)
    late = np.array([LATE[t] for t in COUNTED])
    errors = (late - 1) / late
    assert report["rounds"] == len(COUNTED)
    split = report["spans"]["split_training"]
    assert split["predicted"] == 4.5
    assert split["measured"] == pytest.approx(4.5 * np.median(late))
    assert split["error"] == pytest.approx(np.median(errors))
    assert split["error_90"] == pytest.approx(np.quantile(errors, 0.9))
    assert split["rounds"] == len(COUNTED)
    upload = {"predicted": 3.0, "measured": 6.0, "error": 0.5, "error_90": 0.5, "rounds": 3}
    assert report["spans"]["submodel_upload"] == upload
    whole = report["spans"]["whole_round"]  # means over rounds 4 to 6, 7 to 9, 10 to 12
    assert (whole["predicted"], whole["measured"], whole["rounds"]) == (10.0, 28.0, 3)
    assert whole["error"] == pytest.approx(18 / 28)


def test_steps_are_those_of_the_slowest_and_each_party_has_its_own(hasfl: Hasfl, networked: Path) -> None:
    report = told(hasfl, networked)
    median = float(np.median([LATE[t] for t in COUNTED]))
    assert report["steps"]["device_forward"]["predicted"] == 4.0
    assert report["steps"]["device_forward"]["measured"] == pytest.approx(4.0 * median)
    assert list(report["steps"]) == ["device_forward", "server_forward", "submodel_upload"]
    edge, first, second = report["devices"].items()
    assert (edge[0], set(edge[1])) == ("edge server", {"server_forward", "submodel_upload"})
    assert first[1]["device_forward"]["error"] == pytest.approx(0.2)
    assert second[1]["device_forward"]["measured"] == pytest.approx(4.0 * median)
    assert report["dropped"] == [[5, second[0], "it did not answer [in 3 s]"]]


def test_the_table_names_all_of_it(hasfl: Hasfl, networked: Path) -> None:
    done = hasfl("clock", networked)
    assert (done.code, done.err) == (0, "")
    for words in ("networked", "whole round", "split training", "device forward", "edge server", "predicted"):
        assert words in done.out
    assert "was dropped in round 5: it did not answer [in 3 s]" in done.out
    late = np.array([LATE[t] for t in COUNTED])
    assert f"off by {100 * np.median((late - 1) / late):.0f} % in the median" in done.out


def test_a_simulated_run_has_nothing_to_compare(hasfl: Hasfl, simulated: Path) -> None:
    for options in ([], ["--json"]):
        done = hasfl("clock", simulated, *options)
        assert (done.code, done.out) == (2, "")
        assert done.err.count("\n") == 1
        assert "nothing was measured in it, as in every simulation" in done.err


def test_a_run_in_its_first_interval_has_nothing_to_compare_yet(
    hasfl: Hasfl, simulated: Path, tmp_path: Path
) -> None:
    for rounds in (INTERVAL - 1, INTERVAL):
        run = with_records(simulated, tmp_path / str(rounds), [measured(t) for t in range(1, rounds + 1)])
        done = hasfl("clock", run)
        assert (done.code, done.out) == (2, "")
        assert "rounds after its first interval" in done.err


def test_a_party_without_a_measurement_does_not_count() -> None:
    """A device that was dropped has a prediction, and no measurement; nothing is divided by 0."""
    kept = record(
        4,
        measured=MeasuredRound(
            seconds=1.0,
            spans={"split_training": 0.0},
            measured={"device_forward": {0: 2.0, 7: 1.0}, "device_backward": {0: 0.0}},
            predicted={"device_forward": {0: 1.0, 1: 50.0}, "device_backward": {0: 1.0}},
        ),
    )
    report = ClockReport.of([kept], ["a", "b"])
    one = PredictionError(predicted=1.0, measured=2.0, error=0.5, error_90=0.5, rounds=1)
    assert report.steps == {"device_forward": one}
    assert report.devices == {"a": {"device_forward": one}, "device 7": {}}
    assert report.spans == {}


def test_evaluations_for_reports_are_left_out_and_named() -> None:
    """The second evaluation decides something, so virtual time counts it."""
    rounds = [
        record(
            t,
            aggregated=True,
            seconds=2.0,
            phases={"device_forward": 2.0} | phases,
            measured=MeasuredRound(seconds=seconds, spans={"evaluation": 4.0}, measured={}),
        )
        for t, phases, seconds in ((4, {}, 6.0), (5, {"evaluation_passes": 3.0}, 10.0))
    ]
    report = ClockReport.of(rounds, ["one", "two"])
    assert report.for_reports == pytest.approx(4.0 / 16.0)
    assert report.spans["evaluation"] == PredictionError(3.0, 4.0, 0.25, 0.25, 1)
    assert report.spans["whole_round"].measured == pytest.approx((2.0 + 10.0) / 2)
