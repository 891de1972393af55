"""Reads and writes the folder of a run: scenario, settings, a record of every round, checkpoint, result.

A new folder appears with its first files all at once, and only one process at a time may write to it.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hasfl.errors import InputError
from hasfl.record import RoundRecord, is_number
from hasfl.replacing import READ_WRITE, RECORDED, json_text, replace_file, sync, write_text, writing

# ── the folder of a run ──────────────────────────────────────────────────────────────────────────────────


SCENARIO, SETTINGS, ENVIRONMENT = "scenario.toml", "settings.json", "environment.json"
ROUNDS, TIMING = "rounds.jsonl", "timing.jsonl"
CHECKPOINT, MODEL, RESULT = "checkpoint.safetensors", "model.safetensors", "result.json"
MODEL_INPUT = "model_input"  # key of a result: shape and type of the samples that the model takes
LOCK = "lock"  # the file that is locked while a process writes the folder
OWN_FILES = (SCENARIO, SETTINGS, ENVIRONMENT, ROUNDS, TIMING, CHECKPOINT, MODEL, RESULT, LOCK)
NUMBERS = ("accuracy", "rounds", "seconds", "samples")  # keys that every result has; null if unknown
# "running": a process trains the run now; "stopped": it can be resumed; "finished": it has result and model.
RunState = Literal["running", "stopped", "finished"]
Tensors: TypeAlias = Mapping[str, NDArray[Any]]
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
        """Create the locked folder of a new run, with its first three files. A failure leaves no folder."""
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
        """Iterate over the records from the last round back to the first, reading only as far as needed."""
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
        """Replace the scenario and the settings of a run that is resumed, and delete its result."""
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
        """The state of the run. Raise InputError if the records of a finished run are not complete."""
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
        """Whether the run was finished, but its model file was removed afterwards."""
        return self._missing_at_the_end() == [MODEL]

    def _missing_at_the_end(self) -> list[str]:
        return [file for file in (RESULT, MODEL) if not (self.path / file).exists()]

    def require_whole(self) -> None:
        """Raise InputError unless the last record of a finished run is the last round of its result."""
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


# ── the lock of a folder ─────────────────────────────────────────────────────────────────────────────────


# Error codes of a rename whose target is a file, or a folder with files.
TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
# How often a process tries to take a lock, and the seconds between two attempts: `is_taken` in another
# process holds the lock for a moment. Both are chosen by hand.
ATTEMPTS, PAUSE = 5, 0.02
ELSEWHERE = "free some space, or choose another place with --out"


@dataclass(frozen=True, slots=True)
class FolderLock:
    """A lock on a folder. The operating system releases it when the process ends, even by a kill."""

    descriptor: int

    @classmethod
    def take(cls, folder: Path) -> Self:
        """Lock a folder. Raise InputError if another process holds the lock."""
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
    """Try to lock an open file; returns False if another process has locked it."""
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


# ── a file with one row per round ────────────────────────────────────────────────────────────────────────


SHOWN = 40  # characters of a damaged line that a message shows; chosen by hand
BLOCK = 1 << 16  # bytes that are read at once from the end of a file; chosen by hand


class Journal:
    """A file with one JSON object per line, in the order of rounds; each object has a field `round`.

    If a process is killed while it writes, the last line may be incomplete. All other lines are complete.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def append(self, row: Mapping[str, Any]) -> None:
        """Append one line, without a buffer. If only a part of the line can be written, remove that part."""
        line = f"{json_text(row, self.path.name)}\n".encode()
        with writing(self.path, RECORDED):
            file = self._opened()
            size = os.fstat(file).st_size
            try:
                while line:
                    line = line[os.write(file, line) :]
            except BaseException:
                with contextlib.suppress(OSError):  # if this fails, the next opening removes the part
                    os.ftruncate(file, size)
                self.close()
                raise

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of all complete lines; an incomplete last line is skipped."""
        for number, line in enumerate(self._complete_lines(), start=1):
            yield self._row(line, f"line {number}")

    def newest_rows(self) -> Iterator[dict[str, Any]]:
        """Iterate over the rows from the last one back to the first, reading only as far as needed."""
        for line in self._complete_lines_backwards():
            yield self._row(line, "a line")

    def lines_of(self, rounds: int) -> int:
        """The number of intact lines of rounds 1 to `rounds` at the beginning of the file."""
        return len(self._lines_of(rounds))

    def cut_after(self, rounds: int) -> None:
        """Remove the lines of all rounds after `rounds`, and an incomplete last line."""
        if self.path.exists():
            end = sum(map(len, self._lines_of(rounds)))
            with writing(self.path, RECORDED):
                os.ftruncate(self._opened(), end)
            self.sync()

    def sync(self) -> None:
        """Wait until all lines are on disk."""
        with writing(self.path, RECORDED):
            os.fsync(self._opened())

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _opened(self) -> int:
        """The open file, without an incomplete last line."""
        if self._descriptor is None:
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, READ_WRITE)
            try:
                if (complete := sum(map(len, self._complete_lines()))) < os.fstat(file).st_size:
                    os.ftruncate(file, complete)
            except BaseException:
                os.close(file)
                raise
            self._descriptor = file
        return self._descriptor

    def _opened_to_read(self) -> IO[bytes]:
        """Open the file to read; a file that does not exist yet counts as empty."""
        try:
            return self.path.open("rb")
        except FileNotFoundError:
            return Path(os.devnull).open("rb")
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror}") from None

    def _complete_lines(self) -> list[bytes]:
        with self._opened_to_read() as file:
            content = file.read(os.fstat(file.fileno()).st_size)  # a special file like /dev/full has no end
        return [line + b"\n" for line in content.split(b"\n")[:-1]]

    def _complete_lines_backwards(self) -> Iterator[bytes]:
        with self._opened_to_read() as file:
            start, beginning = file.seek(0, os.SEEK_END), b""
            is_complete = False  # the text after the last line break is an incomplete line
            while start > 0:
                end, start = start, max(start - BLOCK, 0)
                file.seek(start)
                beginning, *lines = (file.read(end - start) + beginning).split(b"\n")
                for line in reversed(lines):
                    if is_complete:
                        yield line
                    is_complete = True
            if is_complete:
                yield beginning

    def _row(self, line: bytes, which: str) -> dict[str, Any]:
        if (row := _parsed(line)) is None:
            text = line.decode(errors="replace").strip()
            shown = text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
            raise InputError(
                f"{which} of {self.path} must be a JSON object with a round, got {shown!r}: "
                "restore the file, or remove the run's folder and begin it anew"
            )
        return row

    def _lines_of(self, rounds: int) -> list[bytes]:
        def is_wanted(line: bytes) -> bool:
            row = _parsed(line)
            return row is not None and row["round"] <= rounds

        return list(takewhile(is_wanted, self._complete_lines()))


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The row of a line, or None if the line is damaged."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("round"), int) else None


# ── a file of tensors ────────────────────────────────────────────────────────────────────────────────────


# The only key of the file's metadata. With several keys, their order would change from run to run.
STATE = "state"


def write_tensors(path: Path, tensors: Tensors, state_text: str | None = None) -> None:
    """Write arrays, and the JSON text of a state, to a safetensors file.

    safetensors needs contiguous arrays (order C). It is imported only here and in `read_tensors`, because
    planning imports this module and works without safetensors.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    contiguous = {name: np.asarray(values, order="C") for name, values in tensors.items()}
    try:
        save_file(contiguous, path, metadata=None if state_text is None else {STATE: state_text})
    except SafetensorError as error:
        # safetensors gives the code of an error of the operating system only in its text.
        if code := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(code[1]), os.strerror(int(code[1]))) from None
        raise


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read the arrays and the state that `write_tensors` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            state = json.loads(file.metadata()[STATE])
            return {name: file.get_tensor(name) for name in file.keys()}, state  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} must hold tensors and a state, but cannot be read ({error}): restore it from a copy, or "
            "remove the run's folder and begin it anew"
        ) from None
