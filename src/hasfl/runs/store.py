"""The folder of a run: its scenario and settings, a record of every round, a checkpoint and the result.

It appears complete with all its files, and only one process at a time may write it.
"""

import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from numpy.typing import NDArray

from hasfl.errors import InputError
from hasfl.record import RoundRecord, is_number
from hasfl.replacing import READ_WRITE, RECORDED, json_text, replace_file, sync, write_text, writing
from hasfl.runs.journal import Journal
from hasfl.runs.tensor_file import Tensors, read_tensors, write_tensors

# ── a folder that one process writes ─────────────────────────────────────────────────────────────────────


# The error codes of a rename to the path of a file or of a folder with files.
TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
LOCK = "lock"  # the file inside the folder that is locked
# A look at a lock holds it for a moment. So a lock is asked for a few times. Both are chosen by hand.
ATTEMPTS, PAUSE = 5, 0.02  # seconds
ELSEWHERE = "free some space, or choose another place with --out"


@dataclass(frozen=True, slots=True)
class FolderLock:
    """A lock on a folder. The operating system releases it when the process ends, even by a kill."""

    descriptor: int

    @classmethod
    def take(cls, folder: Path) -> Self:
        """Lock a folder; InputError if another process holds the lock."""
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, READ_WRITE)
        try:
            for _ in range(ATTEMPTS):
                if _can_lock(descriptor, fcntl.LOCK_EX):
                    return cls(descriptor)
                time.sleep(PAUSE)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        raise InputError(
            f"{folder} is being written by another process: wait until it ends, or choose another name "
            "with --run"
        )

    @classmethod
    def is_taken(cls, folder: Path) -> bool:
        """Whether a process holds the lock of a folder at this moment."""
        try:
            descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return not _can_lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def release(self) -> None:
        """Release the lock, even if a child process has inherited it."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        os.close(self.descriptor)


def _can_lock(descriptor: int, kind: int) -> bool:
    """Lock an open file, if no other process has locked it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def make_locked_folder(path: Path, texts: Mapping[str, str]) -> FolderLock:
    """Create a locked folder with these files. `path` must not exist, or be an empty folder."""
    with writing(path, ELSEWHERE), ExitStack() as undo:
        require_free(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".{path.name}.{os.getpid()}.part"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        undo.callback(shutil.rmtree, temporary, ignore_errors=True)
        for name, text in texts.items():
            write_text(temporary / name, text)
            sync(temporary / name)
        lock = FolderLock.take(temporary)
        undo.callback(lock.release)
        _move_into_place(temporary, path)
        undo.pop_all()
    return lock


def require_free(path: Path) -> None:
    """Raise InputError if `path` is a file or a folder with files."""
    if path.parent.exists() and not path.parent.is_dir():
        raise InputError(f"{path.parent} must be a folder, but is a file: choose another place with --out")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(_taken(path))


def _move_into_place(temporary: Path, path: Path) -> None:
    """Rename the temporary folder to `path`.

    The rename fails if another process has created a folder with files at `path` after `require_free`.
    """
    sync(temporary)
    try:
        temporary.rename(path)
    except OSError as error:
        if error.errno in TAKEN:
            raise InputError(_taken(path)) from None
        raise
    sync(path.parent)


def _taken(path: Path) -> str:
    return f"{path} exists already: continue it with --resume, choose another name with --run, or remove it"


# ── the folder of a run ──────────────────────────────────────────────────────────────────────────────────


SCENARIO, SETTINGS, ENVIRONMENT = "scenario.toml", "settings.json", "environment.json"
ROUNDS, TIMING = "rounds.jsonl", "timing.jsonl"
CHECKPOINT, MODEL, RESULT = "checkpoint.safetensors", "model.safetensors", "result.json"
OWN_FILES = (SCENARIO, SETTINGS, ENVIRONMENT, ROUNDS, TIMING, CHECKPOINT, MODEL, RESULT, LOCK)
NUMBERS = ("accuracy", "rounds", "seconds", "samples")  # that every result has; null where unknown
# Of a run: a process trains it now; it can be resumed; it has a result and a model.
RunState = Literal["running", "stopped", "finished"]
INDENT = 2  # spaces in the JSON files that people read


class RunFolder:
    """The folder of one run. The first write locks the folder until `close`; reading needs no lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rounds = Journal(path / ROUNDS)
        self._timing = Journal(path / TIMING)
        self._lock: FolderLock | None = None

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        scenario_text: str,
        settings: Mapping[str, Any],
        environment: Mapping[str, Any],
    ) -> Self:
        """Create the folder of a new run: locked, and with all three files. A failure leaves no folder."""
        texts = {
            SCENARIO: scenario_text,
            SETTINGS: json_text(settings, SETTINGS, indent=INDENT) + "\n",
            ENVIRONMENT: json_text(environment, ENVIRONMENT, indent=INDENT) + "\n",
        }
        run = cls(path)
        run._lock = make_locked_folder(path, texts)
        return run

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the folder of an existing run, to read or to continue it."""
        for file in (SCENARIO, SETTINGS, ENVIRONMENT):
            if not (path / file).is_file():
                fault = f"it has no {file}" if path.is_dir() else "there is no such folder"
                raise InputError(f"{path} must be the folder of a run, but {fault}: check its name")
        return cls(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def lock(self) -> None:
        """Lock the folder, so that no other process can write to it.

        Every method that writes calls `lock`. To continue a run, call `lock` before reading.
        """
        if self._lock is None:
            with writing(self.path, RECORDED):
                self._lock = FolderLock.take(self.path)

    def close(self) -> None:
        """Close the files, then release the lock."""
        self._rounds.close()
        self._timing.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def append(self, record: RoundRecord) -> None:
        """Append the record of a round. The record survives if the process is killed afterwards."""
        self.lock()
        self._rounds.append(record.as_json())

    def append_timing(self, row: Mapping[str, Any]) -> None:
        """Append a row with the wall time of a round; the row has a field `round`."""
        self.lock()
        self._timing.append(row)

    def records(self) -> list[RoundRecord]:
        """The records of all rounds that were written completely."""
        return [self._record(row, number) for number, row in enumerate(self._rounds.rows(), start=1)]

    def newest_records(self) -> Iterator[RoundRecord]:
        """The records from the last round back to the first; no more are read than are asked for."""
        return (self._record(row, row["round"]) for row in self._rounds.newest_rows())

    def elapsed_seconds(self) -> float:
        """The wall time of all recorded rounds. The time between a stop and a resume does not count."""
        row = next(self._timing.newest_rows(), {})
        seconds = row.get("elapsed_seconds", 0.0)
        return float(seconds) if isinstance(seconds, int | float) else 0.0

    def _record(self, row: dict[str, Any], number: int) -> RoundRecord:
        try:
            return RoundRecord.from_json(row)
        except (InputError, KeyError, TypeError, ValueError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else error
            raise InputError(
                f"line {number} of {self._rounds.path} must be a record of a round, but is none ({reason}): "
                "read it with the version of hasfl that wrote it, or restore it from a copy"
            ) from None

    def rewind(self, rounds: int) -> None:
        """Remove the records of all rounds after `rounds`, e.g. of rounds since the last checkpoint."""
        self.lock()
        self.require_rounds(rounds)
        self._rounds.cut_after(rounds)
        self._timing.cut_after(rounds)

    def require_rounds(self, rounds: int) -> None:
        """Raise InputError unless the records of rounds 1 to `rounds` can be read."""
        if (intact := self._rounds.lines_of(rounds)) < rounds:
            raise InputError(
                f"{self._rounds.path} must hold the {rounds} rounds before the checkpoint, but only {intact} "
                "can be read: restore it from a copy, or remove the run's folder and begin it anew"
            )

    def save_checkpoint(self, tensors: Tensors, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint, after all earlier records are on disk."""
        self.lock()
        self._rounds.sync()
        text = json_text(state, CHECKPOINT)
        replace_file(self.path / CHECKPOINT, lambda file: write_tensors(file, tensors, text))

    def load_checkpoint(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
        """The tensors and the state of the last checkpoint, or None without a checkpoint."""
        path = self.path / CHECKPOINT
        return read_tensors(path) if path.exists() else None

    def save_model(self, tensors: Tensors) -> None:
        """Write the trained model."""
        self.lock()
        replace_file(self.path / MODEL, lambda file: write_tensors(file, tensors))

    def save_result(self, result: Mapping[str, Any]) -> None:
        """Write the result. A run with a result is finished."""
        self.lock()
        text = json_text(result, RESULT, indent=INDENT) + "\n"
        replace_file(self.path / RESULT, lambda file: write_text(file, text))

    def go_on_with(self, scenario_text: str, settings: Mapping[str, Any]) -> None:
        """Replace the scenario and the settings; a finished run is not finished any more."""
        self.lock()
        text = json_text(settings, SETTINGS, indent=INDENT) + "\n"
        with writing(self.path / RESULT, RECORDED):
            (self.path / RESULT).unlink(missing_ok=True)
        replace_file(self.path / SCENARIO, lambda file: write_text(file, scenario_text))
        replace_file(self.path / SETTINGS, lambda file: write_text(file, text))

    @property
    def in_use(self) -> bool:
        """Whether a process writes to the folder at this moment."""
        return FolderLock.is_taken(self.path)

    @property
    def state(self) -> RunState:
        """How far the run is. The records of a finished run must be whole."""
        if not self.finished:
            return "running" if self.in_use else "stopped"
        self.require_whole()
        return "finished"

    @property
    def finished(self) -> bool:
        """Whether the run has a result and a model."""
        return not self._missing_at_the_end()

    def result(self) -> dict[str, Any]:
        """The result of a finished run."""
        if missing := self._missing_at_the_end():
            raise InputError(
                f"{self.path} must be a finished run, but has no {missing[0]}: continue it with --resume"
            )
        result = _read_json(self.path / RESULT)
        for name in NUMBERS:
            if name not in result or not (result[name] is None or is_number(result[name])):
                raise InputError(
                    f"{name} in {self.path / RESULT} must be a number or null: restore the file from a "
                    "copy, or remove the run's folder and begin it anew"
                )
        return result

    @property
    def lost_its_model(self) -> bool:
        """Whether the run was finished once, but its model was removed since."""
        return self._missing_at_the_end() == [MODEL]

    def _missing_at_the_end(self) -> list[str]:
        return [file for file in (RESULT, MODEL) if not (self.path / file).exists()]

    def require_whole(self) -> None:
        """Raise InputError unless the records of a finished run are those of all rounds of its result."""
        last, rounds = next(self._rounds.newest_rows(), {"round": 0}), self.result().get("rounds")
        if last["round"] != rounds:
            raise InputError(
                f"{self._rounds.path} must hold the {rounds} rounds that {RESULT} counts, but its last round "
                f"is {last['round']}: restore both from a copy, or remove the run's folder and begin it anew"
            )

    def scenario_text(self) -> str:
        """The text of the scenario that the run was begun or last continued with."""
        return _read(self.path / SCENARIO)

    def settings(self) -> dict[str, Any]:
        """The settings that the command line chose when the run was begun or last continued."""
        return _read_json(self.path / SETTINGS)

    def environment(self) -> dict[str, Any]:
        """The commit, the versions and the hardware that the run was begun with."""
        return _read_json(self.path / ENVIRONMENT)


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise InputError(f"cannot read {path}: {reason}") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read(path))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise InputError(
            f"{path} must hold one JSON object: restore it from a copy, or remove the run's folder and begin "
            "it anew"
        )
    return content
