"""Records for other programs: what they read is what rounds.jsonl says, during a run and after it."""

import json
import shutil
import signal
import struct
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hasfl.cli.training_view import TrainingView
from hasfl.record import MeasuredRound
from hasfl.runs.exports import following
from hasfl.runs.exports.following import export_rounds
from hasfl.runs.exports.values import parameters_of, values_of
from hasfl.runs.request import RunRequest
from hasfl.runs.run import carry_out
from hasfl.runs.store import FolderLock, RunFolder, RunState
from tests.cli.conftest import Hasfl
from tests.extras import extra
from tests.report.runs import no_file_above, record
from tests.runs.conftest import Forking
from tests.runs.scenarios import rounds, sentence, write
from tests.runs.tracking import FakeServer

NAMES = ("loss", "accuracy", "held_out_accuracy", "clock", "seconds", "samples")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("trained")
    scenario = write(folder, {"training.strategy": '"sfl"', "stop.rounds": "6"})
    with TrainingView() as view:
        carry_out(RunRequest.of(scenario, folder / "runs", strategy_name="sfl", seed=0), view, resume=False)
    return folder / "runs" / "small-sfl-seed0"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as started:
        yield started


def checksum(content: bytes) -> int:
    """CRC-32C bit by bit, then turned and shifted, as TensorFlow's format of records defines it."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def events(folder: Path) -> list[Any]:
    """The events of the only file in a folder, read as TensorBoard does: length, check, bytes, check."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2", reason="tensorboardX is not installed")
    (file,) = folder.iterdir()
    content, found = file.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        sums = struct.unpack("<I", content[8:12]) + struct.unpack("<I", content[12 + length : 16 + length])
        assert sums == (checksum(content[:8]), checksum(content[12 : 12 + length]))
        found.append(event_pb2.Event.FromString(content[12 : 12 + length]))
        content = content[16 + length :]
    return found


def scalars(folder: Path, name: str) -> dict[int, tuple[float, float]]:
    """The value and the time of every step."""
    return {
        event.step: (value.simple_value, event.wall_time)
        for event in events(folder)
        for value in event.summary.value
        if value.tag == name
    }


def expected(run: Path, name: str) -> dict[int, float]:
    return {row["round"]: row[name] for row in rounds(run) if row[name] is not None}


def test_every_number_of_a_record_has_its_own_name() -> None:
    row = record(
        3,
        accuracy=0.5,
        measured=MeasuredRound(
            seconds=2.0, clock=6.0, spans={"reading": 0.5}, measured={}, dropped={1: "late"}
        ),
    )
    found = values_of(row)
    written = row.as_json()
    assert all(found[name] == written[name] for name in ("loss", "accuracy", "seconds", "clock", "samples"))
    assert {name: found[f"phases/{name}"] for name in written["phases"]} == written["phases"]
    assert {name: found[f"bits/{name}"] for name in written["bits"]} == written["bits"]
    assert (found["measured/clock"], found["measured/spans/reading"], found["measured/dropped"]) == (
        6,
        0.5,
        1,
    )
    assert (found["batch_sizes/smallest"], found["batch_sizes/largest"], found["cuts/mean"]) == (4, 8, 2)
    assert found["devices"] == 3
    assert not {"held_out_accuracy", "test_loss"} & set(found)
    assert list(found)[-1] == "loss"


def test_tensorboard_shows_what_was_recorded(hasfl: Hasfl, run: Path, tmp_path: Path) -> None:
    for _ in range(2):  # a second export takes the place of the first
        done = hasfl("export", run, "--to", "tensorboard", "--json")
        assert done.code == 0, done.err
    assert json.loads(done.out) == {
        "format": "tensorboard",
        "wrote": str(run / "tensorboard"),
        "rounds": 6,
        "state": "finished",
    }
    begun = (run / "environment.json").stat().st_mtime
    for name in NAMES:
        found, wanted = scalars(run / "tensorboard", name), expected(run, name)
        assert {step: value for step, (value, _) in found.items()} == pytest.approx(wanted, rel=1e-6)
        clocks = {step: at - begun for step, (_, at) in found.items()}
        assert clocks == pytest.approx({step: expected(run, "clock")[step] for step in wanted}, abs=1e-6)
    result = RunFolder.open(run).result()
    assert scalars(run / "tensorboard", "result/accuracy")[6][0] == pytest.approx(result["accuracy"])
    beside = hasfl("export", run, "--to", "tensorboard", "--out", tmp_path / "logs" / "one")
    assert f"wrote 6 rounds into {tmp_path / 'logs' / 'one'}; the run is finished" in beside.out
    assert len(scalars(tmp_path / "logs" / "one", "loss")) == 6


def test_a_run_is_followed_to_its_end(hasfl: Hasfl, forking: Forking, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    scenario = write(tmp_path, {"training.strategy": '"sfl"', "stop.rounds": "20"})
    child, path = forking.start("train", scenario, "--out", tmp_path), tmp_path / "small-sfl-seed0"
    give_up = time.monotonic() + 60
    while not (path / "rounds.jsonl").exists() and time.monotonic() < give_up:
        time.sleep(0.01)
    followed = hasfl("export", path, "--to", "tensorboard", "--follow", "--json")
    assert child.end() == 0
    assert followed.code == 0, followed.err
    assert json.loads(followed.out)["rounds"] == 20
    assert {
        step: value for step, (value, _) in scalars(path / "tensorboard", "loss").items()
    } == pytest.approx(expected(path, "loss"), rel=1e-6)


def test_ctrl_c_ends_the_following_and_not_the_run(forking: Forking, run: Path) -> None:
    pytest.importorskip("tensorboardX")
    (run / "result.json").unlink()
    lock = FolderLock.take(run)  # a process that writes it
    child = forking.start("export", run, "--to", "tensorboard", "--follow")
    give_up = time.monotonic() + 60
    while not (run / "tensorboard").exists() and time.monotonic() < give_up:
        time.sleep(0.01)
    time.sleep(0.5)
    child.kill(signal.SIGINT)
    assert child.end() == 130
    said = child.output.read_text()
    assert "hasfl: ended following after round 6; the run itself goes on" in said
    assert len(scalars(run / "tensorboard", "loss")) == 6
    assert RunFolder.open(run).in_use
    lock.release()


class Kept:
    """A destination that keeps what it is given."""

    def __init__(self, written: int = 0) -> None:
        self.written, self.calls, self.ended = written, list[list[int]](), list[RunState]()

    def write(self, records: Any) -> None:
        self.calls.append([each.round for each in records])

    def close(self, state: RunState) -> None:
        self.ended.append(state)

    def abandon(self) -> None:
        raise AssertionError("nothing went wrong")


def test_new_rounds_come_once_and_a_stopped_run_is_left_after_a_while(run: Path) -> None:
    rows, waits = rounds(run), list[float]()
    (run / "result.json").unlink()
    (run / "rounds.jsonl").unlink()

    def wait(seconds: float) -> None:
        """One more round is recorded in each of the first looks; the last one is half written at first."""
        waits.append(seconds)
        whole = [json.dumps(row) for row in rows[: len(waits)]]
        half = "" if len(waits) >= len(rows) else '{"round": 99, "lo'
        (run / "rounds.jsonl").write_text("\n".join([*whole, half]))

    kept = Kept()
    done = export_rounds(RunFolder(run), kept, follow=True, wait=wait)
    assert kept.calls == [[t] for t in range(1, 7)]
    assert (kept.ended, done.rounds, done.state) == (["stopped"], 6, "stopped")
    quiet = sum(waits) - len(rows) * following.LOOK_SECONDS
    assert quiet == pytest.approx(following.STOPPED_SECONDS, abs=following.LOOK_SECONDS)
    once = Kept(written=4)
    assert export_rounds(RunFolder(run), once, follow=False).rounds == 6
    assert once.calls == [[5, 6]]


def test_mlflow_gets_what_was_recorded(hasfl: Hasfl, run: Path, server: FakeServer) -> None:
    done = hasfl("export", run, "--to", "mlflow", "--server", server.address, "--json")
    assert done.code == 0, done.err
    (kept,) = server.runs.values()
    assert json.loads(done.out)["wrote"] == f"{server.address}/#/experiments/1/runs/{kept.run_id}"
    assert (server.experiments, kept.name, kept.status) == ({"hasfl": "1"}, "run", "FINISHED")
    for name in NAMES:
        assert {step: value for step, value, _ in kept.metrics[name]} == expected(run, name)
    clock = expected(run, "clock")
    for step, _, at in kept.metrics["loss"]:
        assert at - kept.start == pytest.approx(1000 * clock[step], abs=1.001)
    assert kept.end - kept.start == pytest.approx(1000 * clock[6], abs=1.001)
    assert kept.parameters == parameters_of(RunFolder.open(run))
    assert kept.parameters["training.strategy"] == "sfl"
    assert kept.parameters["stop.rounds"] == "6"


def test_mlflow_goes_on_where_it_ended(
    hasfl: Hasfl, run: Path, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "edge fleets")
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run / "rounds.jsonl").write_text("".join(lines[:2]))
    result = (run / "result.json").read_text()
    (run / "result.json").unlink()
    assert hasfl("export", run, "--to", "mlflow").code == 0
    (kept,) = server.runs.values()
    assert ([step for step, *_ in kept.metrics["loss"]], kept.status) == ([1, 2], "KILLED")
    assert list(server.experiments) == ["edge fleets"]
    (run / "rounds.jsonl").write_text("".join(lines))
    (run / "result.json").write_text(result)
    server.failures = 2  # which are tried again
    monkeypatch.setattr("hasfl.runs.exports.tracking_server.PAUSES", (0.0, 0.0, 0.0))
    assert hasfl("export", run, "--to", "mlflow").code == 0
    assert [step for step, *_ in kept.metrics["loss"]] == [1, 2, 3, 4, 5, 6]
    assert (len(server.runs), kept.status) == (1, "FINISHED")


def test_calls_of_mlflow_are_small_and_divide_no_round(run: Path, server: FakeServer, hasfl: Hasfl) -> None:
    row = rounds(run)[0]
    with (run / "rounds.jsonl").open("w") as file:
        for t in range(1, 201):
            file.write(json.dumps(row | {"round": t}) + "\n")
    (run / "result.json").unlink()
    assert hasfl("export", run, "--to", "mlflow", "--server", server.address).code == 0
    sizes = [len(call) for call in server.batches if call]
    assert max(sizes) <= 1000
    assert len(sizes) < 200
    for call in server.batches:
        steps = [metric["step"] for metric in call]
        assert all(steps.count(step) == steps.count(steps[0]) for step in steps)


def test_servers_that_cannot_be_used(
    hasfl: Hasfl, run: Path, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hasfl.runs.exports.tracking_server.PAUSES", ())
    to = ("export", run, "--to", "mlflow")
    for wrong in ("", "ftp://host", "file:///tmp/x", "127.0.0.1:5000", "http://", "http://host:port"):
        said = sentence(hasfl(*to, "--server", wrong))
        assert "must be the address of an MLflow tracking server, as http://127.0.0.1:5000" in said
    assert "must hold no password" in sentence(hasfl(*to, "--server", "http://me:word@127.0.0.1:5000"))
    gone = sentence(hasfl(*to, "--server", "http://127.0.0.1:9"), code=1)
    assert "the tracking server http://127.0.0.1:9 does not do experiments/get-by-name" in gone
    server.answer = b"<html>a page</html>"
    assert "its answer is no JSON object" in sentence(hasfl(*to, "--server", server.address), code=1)
    server.answer = b'{"experiment": {}}'
    assert "must answer as an MLflow tracking server" in sentence(
        hasfl(*to, "--server", server.address), code=1
    )
    server.answer, server.moves_to = None, "http://127.0.0.1:9/"
    assert "status 302" in sentence(hasfl(*to, "--server", server.address), code=1)


def test_passwords_travel_encrypted_or_not_at_all(
    hasfl: Hasfl, run: Path, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "word")

    def never(*args: object, **options: object) -> None:
        raise AssertionError("nothing may be sent")

    with monkeypatch.context() as patched:
        patched.setattr(urllib.request.OpenerDirector, "open", never)
        said = sentence(hasfl("export", run, "--to", "mlflow", "--server", "http://tracking.example.org"))
    assert "a password must not travel openly" in said
    assert hasfl("export", run, "--to", "mlflow", "--server", server.address).code == 0  # on this machine
    assert set(server.authorizations) == {"Basic bWU6d29yZA=="}


def test_options_that_belong_to_another_format(hasfl: Hasfl, run: Path) -> None:
    for options, said in (
        (("trace", "--follow"), "--follow goes with --to tensorboard or mlflow, got 'trace'"),
        (("onnx", "--rounds", "1-2"), "--rounds goes with --to trace, got 'onnx'"),
        (("tensorboard", "--server", "http://x"), "--server goes with --to mlflow, got 'tensorboard'"),
        (("mlflow", "--out", "x"), "--out has no effect with mlflow"),
    ):
        assert said in sentence(hasfl("export", run, "--to", *options))


def test_without_tensorboardx(hasfl: Hasfl, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    said = sentence(hasfl("export", run, "--to", "tensorboard"))
    assert said == "hasfl: writing for TensorBoard needs tensorboardX: pip install 'hasfl[tensorboard]'"


@pytest.mark.extras
def test_the_line_that_loads_records_into_pandas(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of docs/exports.md, as it stands there."""
    extra("pandas")
    page = (Path(__file__).parents[2] / "docs" / "exports.md").read_text()
    (line,) = (each.strip() for each in page.splitlines() if "read_json" in each)
    assert "runs/demo-hasfl-seed0" in line  # of hasfl train examples/demo.toml, the run of the page
    monkeypatch.chdir(run.parent)
    names: dict[str, Any] = {}
    exec(f"import pandas\n{line.replace('runs/demo-hasfl-seed0', 'run')}", names)
    frame = names["rounds"]
    assert frame["loss"].tolist() == [row["loss"] for row in rounds(run)]
    assert frame["round"].tolist() == list(range(1, 7))


def test_damaged_records_are_told(hasfl: Hasfl, run: Path) -> None:
    pytest.importorskip("tensorboardX")
    with (run / "rounds.jsonl").open("a") as file:
        file.write("{broken\n")
    assert "must be a JSON object with a round" in sentence(hasfl("export", run, "--to", "tensorboard"))


def test_a_full_disk_is_told(hasfl: Hasfl, run: Path) -> None:
    pytest.importorskip("tensorboardX")
    with no_file_above(1000):
        said = sentence(hasfl("export", run, "--to", "tensorboard"), code=1)
    assert "cannot write" in said
    assert said.endswith("the run itself is unchanged")
