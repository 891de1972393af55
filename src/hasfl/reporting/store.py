"""One training run as a folder: what was asked for, a record of every round, a checkpoint, the result."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from hasfl.errors import InputError
from hasfl.record import RoundRecord
from hasfl.reporting.journal import Journal
from hasfl.reporting.locked_folder import FolderLock, make_locked_folder
from hasfl.reporting.replacing import RECORDED, json_text, replace_file, write_text, writing
from hasfl.reporting.tensor_file import Tensors, read_tensors, write_tensors

SCENARIO, SETTINGS, ENVIRONMENT = "scenario.toml", "settings.json", "environment.json"
ROUNDS, TIMING = "rounds.jsonl", "timing.jsonl"
CHECKPOINT, MODEL, RESULT = "checkpoint.safetensors", "model.safetensors", "result.json"


class RunFolder:
    """The folder of one run. Reading needs no lock; whoever writes holds it until `close`."""

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
        """Begin a run: the whole folder appears at once, locked, or nothing does."""
        texts = {
            SCENARIO: scenario_text,
            SETTINGS: json_text(settings, SETTINGS, indent=2) + "\n",
            ENVIRONMENT: json_text(environment, ENVIRONMENT, indent=2) + "\n",
        }
        run = cls(path)
        run._lock = make_locked_folder(path, texts)
        return run

    @classmethod
    def open(cls, path: Path) -> Self:
        """An existing run, to be read or continued."""
        for file in (SCENARIO, SETTINGS, ENVIRONMENT):
            if not (path / file).is_file():
                found = f"it has no {file}" if path.is_dir() else "there is no such folder"
                raise InputError(f"{path} must be the folder of a run, but {found}: check its name")
        return cls(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def lock(self) -> None:
        """Keep other processes from writing here; all that writes does it, and to continue begins with it."""
        if self._lock is None:
            with writing(self.path, RECORDED):
                self._lock = FolderLock.take(self.path)

    def close(self) -> None:
        """Let go of the files, and of the lock last."""
        self._rounds.close()
        self._timing.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def append(self, record: RoundRecord) -> None:
        """Record a round; a process killed after this does not lose it."""
        self.lock()
        self._rounds.append(record.as_json())

    def append_timing(self, row: Mapping[str, Any]) -> None:
        """Note how long a round's work took here; the row says which `round`."""
        self.lock()
        self._timing.append(row)

    def records(self) -> list[RoundRecord]:
        """Every round that was recorded completely."""
        return [self._record(row, number) for number, row in enumerate(self._rounds.rows(), start=1)]

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
        """Forget every round after the first `rounds`, such as those since the last checkpoint."""
        self.lock()
        if (sound := self._rounds.lines_of(rounds)) < rounds:
            raise InputError(
                f"{self._rounds.path} must hold the {rounds} rounds that its checkpoint builds on, but only "
                f"{sound} can be read: restore it from a copy, or remove the run and begin it anew"
            )
        self._rounds.cut_after(rounds)
        self._timing.cut_after(rounds)

    def save_checkpoint(self, tensors: Tensors, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint, after the records that it builds on are safely on disk."""
        self.lock()
        self._rounds.sync()
        text = json_text(state, CHECKPOINT)
        replace_file(self.path / CHECKPOINT, lambda made: write_tensors(made, tensors, text))

    def load_checkpoint(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
        """The tensors and the state of the last checkpoint, if there is one."""
        path = self.path / CHECKPOINT
        return read_tensors(path) if path.exists() else None

    def save_model(self, tensors: Tensors) -> None:
        """Write the trained model."""
        self.lock()
        replace_file(self.path / MODEL, lambda made: write_tensors(made, tensors))

    def save_result(self, result: Mapping[str, Any]) -> None:
        """Write what came out; from then on the run is finished."""
        self.lock()
        text = json_text(result, RESULT, indent=2) + "\n"
        replace_file(self.path / RESULT, lambda made: write_text(made, text))

    @property
    def finished(self) -> bool:
        """Whether the run has its result."""
        return (self.path / RESULT).exists()

    def result(self) -> dict[str, Any]:
        """What came out of a finished run."""
        if not self.finished:
            raise InputError(
                f"{self.path} must be a finished run, but has no result yet: continue it with --resume"
            )
        return _read_json(self.path / RESULT)

    def scenario_text(self) -> str:
        """The scenario as it was when the run began."""
        return _read(self.path / SCENARIO)

    def settings(self) -> dict[str, Any]:
        """What the command line chose when the run began."""
        return _read_json(self.path / SETTINGS)


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
        raise InputError(f"{path} must hold one JSON object: restore it from a copy, or begin the run anew")
    return content
