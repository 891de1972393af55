"""A training that is killed or interrupted, however often, ends with the same bytes as one that was not."""

import random
import signal
import time
from pathlib import Path

import pytest

from hasfl.runs.store import RunFolder
from tests.cli.conftest import Hasfl, Outcome
from tests.runs.conftest import Forking
from tests.runs.scenarios import MOVING, files, kept, press_control_c_in, rounds, write

pytestmark = pytest.mark.slow  # real processes, stopped again and again
KILLS = 10
SEED = 14
LONG = 36  # rounds
PATIENCE = 60.0  # seconds for a few rounds, on the busiest machine
OFTEN = {"training.checkpoint_seconds": "0"}
GO_ON = "hasfl: interrupted after a whole round; --resume continues from there\n"
AT_THE_END = "hasfl: interrupted in the last round; the run is finished\n"


def lines(run: Path) -> int:
    path = run / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_round(run: Path, round: int) -> None:
    """Until so many rounds are recorded, or the run is over; but not for ever."""
    give_up = time.monotonic() + PATIENCE
    while lines(run) < round and not (run / "result.json").exists() and time.monotonic() < give_up:
        time.sleep(0.002)


def test_killed_ten_times_at_random_moments(forking: Forking, tmp_path: Path) -> None:
    scenario = write(tmp_path, MOVING | OFTEN | {"stop.rounds": str(LONG)})
    train, name = ("train", scenario, "--resume", "--out"), "small-rbs+hams-seed0"
    began = time.monotonic()
    assert forking.start(*train, tmp_path / "whole").end() == 0
    round_seconds = (time.monotonic() - began) / LONG
    recorded = rounds(tmp_path / "whole" / name)
    for field in ("devices", "batch_sizes", "cuts"):  # all that may go wrong is there
        assert len({str(sorted(set(row[field]))) for row in recorded}) > 1

    seed = SEED
    draw, kills, attempt, places = random.Random(seed), 0, 0, [tmp_path / "killed-0"]
    while kills < KILLS or not (places[-1] / name / "result.json").exists():
        run = places[-1] / name
        child = forking.start(*train, places[-1])
        if kills < KILLS:
            wait_for_round(run, draw.randrange(3) + 2 * kills)
            time.sleep(draw.uniform(0, 3 * round_seconds))
            child.kill()
        code = child.end()
        kills += code == -signal.SIGKILL
        assert code in (0, -signal.SIGKILL), (seed, child.output.read_text())
        if code == 0 and kills < KILLS:  # it was too quick for us
            places.append(tmp_path / f"killed-{(attempt := attempt + 1)}")
    for place in places:
        assert kept(place / name) == kept(tmp_path / "whole" / name), seed
        assert files(place / name) == files(tmp_path / "whole" / name), seed


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_run_goes_on(
    forking: Forking, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """Ctrl-C sends SIGINT; clusters send SIGTERM before they kill. The exit code is that of the signal."""
    scenario = write(tmp_path, MOVING | {"stop.rounds": "18", "training.interval": "5"})
    train = ("train", scenario, "--out", tmp_path, "--run")
    assert forking.start(*train, "whole").end() == 0
    child = forking.start(*train, "stopped")
    wait_for_round(tmp_path / "stopped", 7)
    child.kill(number)
    assert child.end() == code
    assert child.output.read_text().endswith(GO_ON)
    assert "Traceback" not in child.output.read_text()
    assert not (tmp_path / "stopped" / "result.json").exists()
    recorded = lines(tmp_path / "stopped")
    assert forking.start(*train, "stopped", "--resume").end() == 0
    assert f"from round {recorded} on" in child.output.read_text()
    assert kept(tmp_path / "stopped") == kept(tmp_path / "whole")


@pytest.mark.parametrize(
    "changes",
    [
        {"training.strategy": '"hasfl"', "training.optimizer": '"adam"', "training.learning_rate": "0.002"},
        {"training.strategy": '"rbs+rms"', "model.norm": '"batch"'},
        {"training.strategy": '"hasfl-bcd"'},
        {"training.strategy": '"sl"', "training.engine": '"reference"', "world.rates": '"redrawn"'},
    ],
    ids=lambda changes: changes["training.strategy"].strip('"'),
)
def test_control_c_in_every_round(
    hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str]
) -> None:
    scenario = write(tmp_path, MOVING | {"stop.rounds": "7"} | changes)
    assert hasfl("train", scenario, "--out", tmp_path, "--run", "whole").code == 0
    press_control_c_in(monkeypatch, set(range(1, 8)))
    outcomes: list[Outcome] = []
    while not outcomes or outcomes[-1].code == 130:
        resume = ("--resume",) if outcomes else ()
        outcomes.append(hasfl("train", scenario, "--out", tmp_path, "--run", "stopped", *resume))
        assert outcomes[-1].code == 0 or outcomes[-1].err.endswith((GO_ON, AT_THE_END))
        assert len(rounds(tmp_path / "stopped")) == min(len(outcomes), 7)
    assert (len(outcomes), outcomes[-1].code) == (8, 0)
    assert kept(tmp_path / "stopped") == kept(tmp_path / "whole")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_two_signals_stop_at_once_and_training_goes_on_from_the_last_checkpoint(
    hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    scenario = write(tmp_path, MOVING | OFTEN | {"stop.rounds": "7"})
    assert hasfl("train", scenario, "--out", tmp_path, "--run", "whole").code == 0
    with monkeypatch.context() as patch:
        press_control_c_in(patch, {5}, times=2, number=number)
        outcome = hasfl("train", scenario, "--out", tmp_path, "--run", "stopped")
    assert outcome.code == code
    assert outcome.err.endswith("hasfl: stopped at once; --resume continues from the last checkpoint\n")
    outcome = hasfl("train", scenario, "--out", tmp_path, "--run", "stopped", "--resume")
    assert "from round 3" in outcome.err
    assert kept(tmp_path / "stopped") == kept(tmp_path / "whole")


@pytest.mark.parametrize("step", ["append_timing", "save_checkpoint", "save_model", "save_result"])
def test_stopped_between_any_two_files(
    hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    scenario = write(tmp_path, OFTEN | {"training.strategy": '"rbs+rms"'})
    assert hasfl("train", scenario, "--out", tmp_path, "--run", "whole").code == 0

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, step, die)
        assert hasfl("train", scenario, "--out", tmp_path, "--run", "stopped").code == 130
    assert hasfl("train", scenario, "--out", tmp_path, "--run", "stopped", "--resume").code == 0
    assert kept(tmp_path / "stopped") == kept(tmp_path / "whole")


def test_a_comparison_that_is_stopped_says_how_to_go_on(
    hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = ("compare", write(tmp_path), "--out", tmp_path, "--strategies", "sfl,fl")
    with monkeypatch.context() as patch:
        press_control_c_in(patch, {3})
        outcome = hasfl(*compare)
    assert outcome.code == 130
    going_on = hasfl(*compare)
    assert going_on.code == 0
    begun = [line for line in going_on.err.splitlines() if ", seed " in line]
    assert begun == ["1 of 2: sfl, seed 0: training, from round 3 on", "2 of 2: fl, seed 0: training"]
    assert "--resume" not in outcome.err  # which compare does not have: it goes on by itself
