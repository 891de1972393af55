"""A run's folder: what is written is there again, and nothing that happens leaves half of something."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hasfl.errors import Diverged, InputError, StorageError
from hasfl.record import RoundRecord
from hasfl.runs.store import RunFolder
from tests.report.runs import no_file_above, record

SCENARIO = "# ε and more\r\n[model]\nname = 'vgg16'\n"
WRITER = """
import sys
from pathlib import Path
from hasfl.runs.store import RunFolder
from tests.report.runs import record
with RunFolder.open(Path(sys.argv[1])) as run:
    run.lock()
    print("locked", flush=True)
    for t in range(1, 10**9):
        run.append(record(t))
"""


def begin(path: Path, **changes: Any) -> RunFolder:
    given: dict[str, Any] = {
        "scenario_text": SCENARIO,
        "settings": {"strategy": "hasfl", "seed": 7},
        "environment": {"numpy": "2.0"},
    }
    return RunFolder.create(path, **given | changes)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    with begin(tmp_path / "runs" / "first") as folder:
        yield folder


def lines(run: RunFolder) -> bytes:
    return (run.path / "rounds.jsonl").read_bytes()


def rows(records: list[RoundRecord]) -> list[dict[str, Any]]:
    return [each.as_json() for each in records]


def test_a_run_begins_with_what_was_asked_for(run: RunFolder) -> None:
    again = RunFolder.open(run.path)
    assert again.scenario_text() == SCENARIO
    assert again.settings() == {"strategy": "hasfl", "seed": 7}
    assert again.records() == []
    assert again.load_checkpoint() is None
    assert not again.finished
    assert [path.name for path in run.path.parent.iterdir()] == ["first"]


def test_a_folder_with_something_in_it_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    begin(tmp_path / "x").close()  # an empty one is
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError) as refusal:
        begin(tmp_path / "x")
    assert str(refusal.value) == (
        f"{tmp_path / 'x'} exists already: continue it with --resume, choose another name with --run, "
        "or remove it"
    )
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file exists already"):
        begin(tmp_path / "file")
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "file"])


def test_of_two_that_begin_the_same_run_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one has looked, and found the name free, before the first one finished."""
    monkeypatch.setattr("hasfl.runs.store.require_free", lambda path: None)
    with begin(tmp_path / "x"):
        opened = len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(InputError, match="exists already"):
            begin(tmp_path / "x")
        assert len(list(Path("/proc/self/fd").iterdir())) == opened
    assert len(list(tmp_path.iterdir())) == 1


def test_a_run_that_cannot_begin_leaves_nothing(tmp_path: Path) -> None:
    with no_file_above(1000), pytest.raises(StorageError, match=r"x: File too large; free some space, or"):
        begin(tmp_path / "x", scenario_text="#" * 2000)
    with pytest.raises(Diverged, match=r"settings.json must hold finite numbers, got rate = nan"):
        begin(tmp_path / "x", settings={"rate": float("nan")})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file must be a folder, but is a file: choose another place"):
        begin(tmp_path / "file" / "x")
    with pytest.raises(StorageError, match=r"cannot write .*: Not a directory; free some space, or choose"):
        begin(tmp_path / "file" / "deeper" / "x")


def test_what_a_killed_beginning_leaves_is_no_obstacle(tmp_path: Path) -> None:
    left = tmp_path / f".x.{os.getpid()}.part"
    left.mkdir()
    (left / "settings.json").write_text("{")
    begin(tmp_path / "x").close()
    assert RunFolder.open(tmp_path / "x").settings()["seed"] == 7
    assert not left.exists()


def test_only_a_run_is_opened(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone must be the folder of a run, but there is no such folder: "):
        RunFolder.open(tmp_path / "gone")
    (run.path / "settings.json").unlink()
    with pytest.raises(InputError, match=r"first must be the folder of a run, but it has no settings.json: "):
        RunFolder.open(run.path)


def test_records_come_back_as_they_were(run: RunFolder) -> None:
    given = [record(t, accuracy=0.1 * t if t % 2 else None, test_loss=1 / 3) for t in range(1, 8)]
    for each in given:
        run.append(each)
    assert rows(RunFolder.open(run.path).records()) == rows(given)
    assert b" " not in lines(run).replace(b"a device has left", b"")


def test_each_record_is_with_the_system_at_once(run: RunFolder) -> None:
    for t in (1, 2, 3):
        run.append(record(t))
        assert len(RunFolder.open(run.path).records()) == t


def test_half_a_line_is_as_if_it_had_never_been(run: RunFolder) -> None:
    run.append(record(1))
    run.append(record(2))
    run.close()
    complete = lines(run)
    first = complete.index(b"\n") + 1
    for end in range(first, len(complete)):
        (run.path / "rounds.jsonl").write_bytes(complete[:end])
        with RunFolder.open(run.path) as again:
            assert rows(again.records()) == rows([record(1)])
            again.append(record(2))
            assert lines(again) == complete


def test_rewinding_and_going_on_writes_the_same_bytes(run: RunFolder) -> None:
    def go_on(first: int, last: int) -> None:
        for t in range(first, last + 1):
            run.append(record(t))
            run.append_timing({"round": t, "seconds": t / 7})

    go_on(1, 9)
    complete, timing = lines(run), (run.path / "timing.jsonl").read_bytes()
    for rounds in (9, 4, 0):
        with (run.path / "rounds.jsonl").open("ab") as file:
            file.write(b'{"round":10,"dev')
        run.rewind(rounds)
        assert len(run.records()) == rounds
        assert (run.path / "timing.jsonl").read_bytes().count(b"\n") == rounds
        go_on(rounds + 1, 9)
        assert (lines(run), (run.path / "timing.jsonl").read_bytes()) == (complete, timing)


def test_rewinding_needs_the_rounds_to_be_there(run: RunFolder) -> None:
    run.rewind(0)
    for t in (1, 2, 3):
        run.append(record(t))
    complete = lines(run)
    with pytest.raises(InputError, match=r"must hold the 4 rounds before the checkpoint, but only 3 can"):
        run.rewind(4)
    assert lines(run) == complete
    damaged = complete.replace(b'{"round":2', b'{"round":?')
    (run.path / "rounds.jsonl").write_bytes(damaged)
    with pytest.raises(InputError, match="only 1 can be read"):
        run.rewind(2)
    assert lines(run) == damaged
    run.rewind(1)
    assert lines(run) == complete[: complete.index(b"\n") + 1]


def test_timing_that_was_lost_does_not_hinder(run: RunFolder) -> None:
    for t in (1, 2, 3):
        run.append(record(t))
    run.append_timing({"round": 1, "seconds": 0.5})
    run.rewind(2)
    assert (run.path / "timing.jsonl").read_text() == '{"round":1,"seconds":0.5}\n'


def wrong(**changes: object) -> bytes:
    """The line of a record with something else in it."""
    return json.dumps(record(2).as_json() | changes).encode() + b"\n"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"nonsense\n", "line 2 of .* must be a JSON object with a round, got 'nonsense': restore"),
        (b"[1]\n", "line 2 of .* must be a JSON object with a round"),
        (b"\xff\n", "line 2 of .* must be a JSON object with a round"),
        (wrong(loss=math.nan), r"none \(loss must be a finite number, got nan\)"),
        (wrong(clock=math.inf), r"none \(clock must be a finite number, got inf\)"),
        (wrong(accuracy="high"), r"none \(accuracy must be a finite number, got 'high'\)"),
        (wrong(phases={"device_forward": "x"}), r"phases.device_forward must be a finite number, got 'x'"),
        (wrong(bits={"submodel_upload": True}), r"bits.submodel_upload must be a finite number, got True"),
        (b'{"round":2}\n', r"line 2 of .* must be a record of a round, but is none \('devices' is missing\)"),
    ],
)
def test_a_damaged_line_is_named(run: RunFolder, line: bytes, fault: str) -> None:
    run.append(record(1))
    with (run.path / "rounds.jsonl").open("ab") as file:
        file.write(line)
    with pytest.raises(InputError, match=fault):
        run.records()


def test_a_line_that_does_not_fit_is_taken_back(run: RunFolder) -> None:
    for t in (1, 2):
        run.append(record(t))
    before = lines(run)
    for room in (0, 1, 50):
        with no_file_above(len(before) + room), pytest.raises(StorageError, match="File too large"):
            run.append(record(3))
        assert lines(run) == before
    run.append(record(3))
    assert rows(run.records()) == rows([record(t) for t in (1, 2, 3)])


def test_where_taking_back_is_refused_the_next_line_mends_it(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: int, size: int) -> None:
        raise OSError(5, "Input/output error")

    run.append(record(1))
    before = lines(run)
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", refuse)
        with no_file_above(len(before) + 9), pytest.raises(StorageError):
            run.append(record(2))
    assert len(lines(run)) == len(before) + 9
    run.append(record(2))
    assert rows(run.records()) == rows([record(1), record(2)])


def test_a_full_disk_is_one_sentence(run: RunFolder) -> None:
    (run.path / "rounds.jsonl").symlink_to("/dev/full")
    with pytest.raises(StorageError) as refusal:
        run.append(record(1))
    assert str(refusal.value) == (
        f"cannot write {run.path / 'rounds.jsonl'}: No space left on device; "
        "the earlier records are intact, and --resume continues from there"
    )
    assert refusal.value.exit_code == 1


def test_what_is_not_a_number_is_not_recorded(run: RunFolder) -> None:
    run.append(record(1))
    before = lines(run)
    with pytest.raises(Diverged, match=r"rounds.jsonl must hold finite numbers, got test_loss = inf: the"):
        run.append(record(2, test_loss=float("inf")))
    assert lines(run) == before


def test_a_result_ends_the_run(run: RunFolder) -> None:
    with pytest.raises(InputError, match=r"must be a finished run, but has no result\.json: continue it"):
        run.result()
    result = {"accuracy": 0.75, "rounds": 0, "seconds": 0.0, "samples": 0, "notes": []}
    run.save_result(result)
    assert run.lost_its_model
    assert not run.finished
    run.save_model({"weight": np.zeros(2)})
    again = RunFolder.open(run.path)
    assert again.finished
    assert again.result() == result
    with no_file_above(10), pytest.raises(StorageError, match=r"result.json: File too large"):
        run.save_result({"accuracy": 0.5, "notes": ["more"]})
    assert again.result()["accuracy"] == 0.75
    (run.path / "result.json").write_text("[]")
    with pytest.raises(InputError, match="must hold one JSON object"):
        again.result()
    for wrong in ({"accuracy": "high"}, {"rounds": None, "samples": "many"}):
        (run.path / "result.json").write_text(json.dumps(result | wrong))
        with pytest.raises(InputError, match=r"(accuracy|samples) in .*result.json must be a number or null"):
            again.result()
    assert again.finished
    run.save_result(result | {"rounds": 3})
    with pytest.raises(InputError, match=r"must hold the 3 rounds that result\.json counts"):
        _ = again.state


def test_one_process_at_a_time_writes(run: RunFolder) -> None:
    run.append(record(1))
    other = RunFolder.open(run.path)
    assert len(other.records()) == 1
    for write in (other.lock, lambda: other.append(record(2)), lambda: other.rewind(0)):
        with pytest.raises(InputError, match="first is being written by another process: wait until"):
            write()
    run.close()
    other.append(record(2))
    other.close()
    assert len(run.records()) == 2


def test_a_child_that_inherited_the_lock_does_not_keep_it(run: RunFolder) -> None:
    assert run._lock is not None
    inherited = os.dup(run._lock.descriptor)  # the same lock, as after a fork
    run.close()
    RunFolder.open(run.path).lock()
    os.close(inherited)


def test_a_killed_process_leaves_whole_rounds_and_no_lock(run: RunFolder) -> None:
    run.close()
    command = [sys.executable, "-c", WRITER, str(run.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(InputError, match="written by another process"):
            run.lock()
        time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
    survived = run.records()
    assert [each.round for each in survived] == list(range(1, len(survived) + 1))
    assert len(survived) > 10
    run.append(record(len(survived) + 1))
    assert len(run.records()) == len(survived) + 1


def test_files_are_for_people_too(run: RunFolder) -> None:
    settings = (run.path / "settings.json").read_text()
    assert settings == '{\n  "strategy": "hasfl",\n  "seed": 7\n}\n'
    run.append(record(1))
    assert json.loads(lines(run))["round"] == 1
