"""Trace events: every party's steps follow each other, and together they take the seconds of the records."""

import json
import shutil
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hasfl.cli.training_view import TrainingView
from hasfl.plan import Plan
from hasfl.record import EDGE, MeasuredRound, RoundRecord
from hasfl.runs.request import RunRequest
from hasfl.runs.run import carry_out
from tests.cli.conftest import Hasfl
from tests.cli.test_clock import with_records
from tests.report.runs import record
from tests.runs.scenarios import MOVING, PIS, rounds, sentence, write

NANOSECOND = 1e-9
ROUNDING = 10 * NANOSECOND  # of sums of a few steps
UP, SERVER, DOWN = (
    ("a1 device_forward", "a2 activation_upload"),
    ("a3 server_forward", "a3 server_backward"),
    ("a4 gradient_download", "a5 device_backward"),
)
LONG = {"stop.rounds": "9", "training.interval": "3"}


def train(folder: Path, name: str, changes: dict[str, str], tables: str = "") -> Path:
    scenario = write(folder, {"training.strategy": f'"{name}"'} | changes, tables)
    request = RunRequest.of(scenario, folder / "runs", strategy_name=name, seed=0, name="run")
    with TrainingView() as view:
        carry_out(request, view, resume=False)
    return folder / "runs" / "run"


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine rounds of three devices of a kind; tests do not change its files."""
    return train(tmp_path_factory.mktemp("long"), "sfl", {"fleet.devices": "", **LONG}, PIS)


class Trace:
    """The events of a file, by process and thread."""

    def __init__(self, file: Path) -> None:
        self.events: list[dict[str, Any]] = json.loads(file.read_text())["traceEvents"]
        named = [event for event in self.events if event["ph"] == "M"]
        self.processes = {
            event["pid"]: event["args"]["name"] for event in named if event["name"] == "process_name"
        }
        self.threads = {
            (event["pid"], event["tid"]): event["args"]["name"]
            for event in named
            if event["name"] == "thread_name"
        }

    def steps(self, process: str) -> dict[str, list[tuple[int, str, float, float]]]:
        """By thread: round, name, start and end in seconds, in the order of time."""
        found = defaultdict(list)
        for event in self.events:
            if event["ph"] == "X" and self.processes[event["pid"]] == process:
                start, end = event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6
                thread = self.threads[event["pid"], event["tid"]]
                found[thread].append((event["args"]["round"], event["name"], start, end))
        return {thread: sorted(steps, key=lambda step: step[2:]) for thread, steps in found.items()}


def require_no_overlap(trace: Trace) -> None:
    for process in trace.processes.values():
        for steps in trace.steps(process).values():
            for before, after in pairwise(steps):
                assert before[3] <= after[2] + NANOSECOND / 2, (process, before, after)


def seconds(steps: list[tuple[int, str, float, float]], round: int, *names: str) -> float:
    return sum(end - start for t, name, start, end in steps if t == round and name in names)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("sfl", {"stop.rounds": "4"}),
        ("rbs+hams", MOVING | LONG),
        ("hasfl", LONG | {"training.participation": "0.5", "training.keep": '"best"'}),
        ("fl", LONG),
        ("sl", LONG),
        ("cl", LONG),
        ("hasfl-bcd", LONG),
    ],
)
def test_steps_take_the_seconds_of_the_records(
    hasfl: Hasfl, tmp_path: Path, name: str, changes: dict[str, str]
) -> None:
    run = train(tmp_path, name, changes)
    done = hasfl("export", run, "--to", "trace", "--json")
    assert done.code == 0, done.err
    rows, trace = rounds(run), Trace(run / "trace.json")
    assert json.loads(done.out) == {"format": "trace", "wrote": str(run / "trace.json"), "rounds": len(rows)}
    assert set(trace.processes.values()) == {"rounds", "devices", "edge server", "fed server"}
    require_no_overlap(trace)
    whole = trace.steps("rounds")["rounds"]
    assert [step[0] for step in whole] == [row["round"] for row in rows]
    assert sum(end - start for *_, start, end in whole) == pytest.approx(rows[-1]["clock"], abs=1e-7)
    assert whole[-1][3] == pytest.approx(rows[-1]["clock"], abs=ROUNDING)
    phases = trace.steps("rounds")["phases"]
    devices, edge = trace.steps("devices"), trace.steps("edge server").get("edge server", [])
    for row, (_, _, start, end) in zip(rows, whole, strict=True):
        t = row["round"]
        own = [step for step in phases if step[0] == t]
        assert own[0][2] == pytest.approx(start, abs=ROUNDING)
        assert own[-1][3] == pytest.approx(end, abs=ROUNDING)
        require_maxima(row, list(devices.values()), edge, last=row is rows[-1])


def require_maxima(row: dict[str, Any], devices: list[Any], edge: Any, *, last: bool) -> None:
    """Eqs. (38) and (39), from the steps of all parties: the slowest one gives the phase of the record."""
    t, of = row["round"], row["phases"]
    up = [seconds(steps, t, *UP) for steps in devices]
    down = [seconds(steps, t, *DOWN) for steps in devices]
    upward = of["device_forward"] + of["activation_upload"]
    downward = of["gradient_download"] + of["device_backward"]
    assert max(up, default=0.0) == pytest.approx(upward, abs=ROUNDING)
    assert max(down, default=0.0) == pytest.approx(downward, abs=ROUNDING)
    assert sum(each > 0 for each in up) == (len(row["devices"]) if upward else 0)
    served = of["server_forward"] + of["server_backward"]
    assert seconds(edge, t, *SERVER) == pytest.approx(served, abs=ROUNDING)
    if row["aggregated"] and of.get("submodel_upload"):
        parties = [*devices, edge]
        sent = [seconds(steps, t, "b1 submodel_upload") for steps in parties]
        assert max(sent) == pytest.approx(of["submodel_upload"], abs=ROUNDING)
        received = [seconds(steps, t, "b3 submodel_download") for steps in parties]
        if not last or max(received) > 0:  # of the last round, nobody knows the next plan
            assert max(received) == pytest.approx(of["submodel_download"], abs=ROUNDING)


def test_some_rounds_only(hasfl: Hasfl, tmp_path: Path, long_run: Path) -> None:
    run, whole_file, out = long_run, tmp_path / "whole.json", tmp_path / "some.json"
    assert hasfl("export", run, "--to", "trace", "--out", whole_file).code == 0
    assert hasfl("export", run, "--to", "trace", "--rounds", "3-5", "--out", out).code == 0
    whole, some = Trace(whole_file), Trace(out)
    wanted = [event for event in whole.events if event["ph"] == "M" or event["args"]["round"] in (3, 4, 5)]
    assert some.events == wanted
    assert set(some.steps("devices")) == {"pi-1", "pi-2", "pi-3"}
    marks = [event for event in whole.events if event["ph"] == "i"]
    assert [(mark["name"], mark["args"]["round"]) for mark in marks] == [
        ("b2 averaging", t) for t in (3, 6, 9)
    ]
    for wrong in ("0-2", "5-3", "10", "x", "1-2-3"):
        said = sentence(hasfl("export", run, "--to", "trace", "--rounds", wrong))
        assert "--rounds must be the first and the last round, as 10-20, of the 9 recorded" in said
    taken = hasfl("export", run, "--to", "trace", "--out", run / "rounds.jsonl")
    assert "is the rounds.jsonl of the run" in sentence(taken)


def test_a_trace_that_no_browser_opens_is_refused(
    hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long_run: Path
) -> None:
    monkeypatch.setattr("hasfl.runs.exports.trace.MOST_STEPS", 50)
    said = sentence(hasfl("export", long_run, "--to", "trace"))
    assert "at most 50 steps to be opened, but these 9 rounds have about 162" in said
    assert said.endswith("as --rounds 1-2")
    out = tmp_path / "two.json"
    assert hasfl("export", long_run, "--to", "trace", "--rounds", "1-2", "--out", out).code == 0


def on_machines(t: int) -> RoundRecord:
    """A round of two devices on machines; everything takes twice as long as predicted."""
    predicted = {
        "device_forward": {0: 1.0, 1: 2.0},
        "activation_upload": {0: 0.5, 1: 0.25},
        "server_forward": {EDGE: 0.5},
        "server_backward": {EDGE: 1.0},
        "gradient_download": {0: 0.25, 1: 0.5},
        "device_backward": {0: 2.0, 1: 4.0},
    }
    phases = {"device_forward": 2.0, "activation_upload": 0.25, "server_forward": 0.5, "server_backward": 1.0}
    phases |= {"gradient_download": 0.5, "device_backward": 4.0}
    spans = {"split_training": 2 * 8.25 + 1}
    if t % 2 == 0:
        predicted["submodel_upload"] = {0: 1.0, 1: 1.0, EDGE: 3.0}
        phases |= {"submodel_upload": 3.0, "submodel_download": 2.0}
        spans["submodel_upload"] = 6.5
    if t % 2 and t > 1:
        predicted["submodel_download"] = {0: 2.0, 1: 1.0}
        spans["submodel_download"] = 4.0
    found = {step: {party: 2 * each for party, each in of.items()} for step, of in predicted.items()}
    clocks = {1: 8.25, 2: 21.5, 3: 29.75, 4: 43.0}
    walls = {1: 20.0, 2: 50.0, 3: 75.0, 4: 105.0}
    return record(
        t,
        devices=np.arange(2),
        plan=Plan([4, 8], [1, 2]),
        aggregated=t % 2 == 0,
        phases=phases,
        seconds=clocks[t] - clocks.get(t - 1, 0.0),
        clock=clocks[t],
        measured=MeasuredRound(
            seconds=walls[t] - walls.get(t - 1, 0.0),
            clock=walls[t],
            spans=spans,
            measured=found,
            predicted=predicted,
        ),
    )


def test_machines_have_a_predicted_and_a_measured_side(hasfl: Hasfl, tmp_path: Path) -> None:
    simulated = train(tmp_path, "sfl", {})
    run = with_records(simulated, tmp_path / "machines", [on_machines(t) for t in range(1, 5)])
    assert hasfl("export", run, "--to", "trace").code == 0
    trace = Trace(run / "trace.json")
    require_no_overlap(trace)
    kinds = ("rounds", "devices", "edge server", "fed server")
    assert list(trace.processes.values()) == [
        f"{kind} ({side})" for side in ("predicted", "measured") for kind in kinds
    ]
    predicted, measured = trace.steps("devices (predicted)"), trace.steps("devices (measured)")
    assert seconds(predicted["device 1"], 3, *UP, *DOWN) == pytest.approx(6.75)
    assert seconds(measured["device 1"], 3, *UP, *DOWN) == pytest.approx(13.5)
    downloads = [step for step in predicted["device 0"] if step[1] == "b3 submodel_download"]
    assert downloads == [(2, "b3 submodel_download", 19.5, 21.5)]  # in virtual time, at the end of round 2
    downloads = [step for step in measured["device 0"] if step[1] == "b3 submodel_download"]
    assert downloads == [(3, "b3 submodel_download", 50.0, 54.0)]  # on the wall, when round 3 begins
    assert trace.steps("rounds (predicted)")["rounds"][-1][3] == 43.0
    assert trace.steps("rounds (measured)")["rounds"][-1][3] == 105.0
    edge = trace.steps("edge server (measured)")["edge server"]
    assert [step[1] for step in edge if step[0] == 2] == [*SERVER, "b1 submodel_upload"]
    # Of the last round, nobody knows the next plan, so no party is shown to receive a sub-model.
    assert not any(step[0] == 4 and step[1].startswith("b3") for step in predicted["device 0"])


def test_a_run_without_rounds_has_no_trace(hasfl: Hasfl, tmp_path: Path, long_run: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(long_run, run)
    (run / "rounds.jsonl").unlink()
    assert "must have recorded a round to be traced, but has none yet" in sentence(
        hasfl("export", run, "--to", "trace")
    )
