"""Results of trainings: a small file for each, with the numbers for figures and claims."""

import math
import tomllib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

import numpy as np
from pydantic import Field, model_validator

from hasfl.arrays import MOST, FloatN, IntN
from hasfl.errors import InputError
from hasfl.goal import plateau
from hasfl.record import RoundRecord
from hasfl.replacing import json_text, replace_file, write_text
from hasfl.report.analysis import Curve
from hasfl.runs.files import Document, read_json
from reproduction.experiment import Key

Served = Literal["mean", "last"]
Label = TypeVar("Label", bound=Hashable)
WHOLE = ("rounds", "samples")  # fields that are arrays of whole numbers
BY_EVALUATION = (*WHOLE, "clock", "accuracy", "last_accuracy", "mean_batch", "mean_cut")
DIGITS = 6  # significant digits of measured numbers in files
LEVELS = 200  # accuracies are compared at multiples of 1/200, half a per cent


class Bounded(NamedTuple):
    """A number that is exact, or only a lower bound."""

    value: float
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunResult:
    """The result of one training. Arrays have an entry for each evaluation."""

    scenario: str  # name of the scenario
    scenario_text: str
    strategy: str
    seed: int
    commit: str | None  # commit of the code that trained; None if unknown
    environment: Mapping[str, Any]
    finished: str  # date at which the training ended
    rounds: IntN
    samples: IntN  # samples used since the start
    clock: FloatN  # virtual seconds since the start
    accuracy: FloatN  # test accuracy of the served model
    last_accuracy: FloatN  # test accuracy of the last model, which the paper serves; NaN if not scored
    mean_batch: FloatN  # mean batch size over devices, in the plan of that round
    mean_cut: FloatN
    phases: Mapping[str, float]  # mean seconds of a round, by step
    bits: Mapping[str, float]  # mean bits of a round, by arrow
    wall_seconds: float

    @property
    def key(self) -> Key:
        """The key of the training."""
        return self.scenario, self.strategy, self.seed

    def accuracies(self, served: Served = "mean") -> FloatN:
        """The test accuracies of the running mean, or of the last model."""
        return self.accuracy if served == "mean" else self.last_accuracy

    def best(self, served: Served = "mean") -> float:
        """The highest accuracy; NaN if there is none."""
        known = self.accuracies(served)[~np.isnan(self.accuracies(served))]
        return float(known.max()) if known.size else math.nan

    def curve(self, served: Served = "mean") -> Curve:
        """The curve of accuracies over rounds and virtual seconds."""
        return Curve(self.rounds, self.clock, self.accuracies(served))

    def seconds_to(self, accuracy: float, served: Served = "mean") -> float | None:
        """The virtual time of the first evaluation with at least this accuracy; None if there is none."""
        at = self.curve(served).reached(accuracy)
        return None if at is None else at.seconds

    def time_to(self, accuracy: float, served: Served = "mean") -> Bounded:
        """The virtual time to an accuracy, or the training's whole time as a lower bound if it was missed."""
        seconds = self.seconds_to(accuracy, served)
        return Bounded(self.seconds, exact=False) if seconds is None else Bounded(seconds, exact=True)

    def rounds_to(self, accuracy: float, served: Served = "mean") -> int | None:
        """The round of the first evaluation with at least this accuracy; None if there is none."""
        at = self.curve(served).reached(accuracy)
        return None if at is None else at.round

    def converged_at(self, served: Served = "mean") -> int | None:
        """The index of the evaluation at which the run converged by the paper's rule; None if it did not."""
        return plateau(self.accuracies(served).tolist())

    def accuracy_by(self, seconds: float, served: Served = "mean") -> float:
        """The highest accuracy until a virtual time; 0 before the first evaluation."""
        return float(np.max(self.accuracies(served)[self.clock <= seconds], initial=0.0))

    @property
    def seconds(self) -> float:
        """The virtual time of the last evaluation."""
        return float(self.clock[-1])

    def as_json(self) -> dict[str, Any]:
        """The result as plain numbers and lists; an unknown number is null."""
        row = {each.name: getattr(self, each.name) for each in fields(self)}
        for name in BY_EVALUATION:
            row[name] = [_plain(value) for value in row[name].tolist()]
        for name in ("phases", "bits"):
            row[name] = {step: _plain(value) for step, value in row[name].items()}
        return row

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """The result from the output of `as_json`."""
        values = {each.name: row[each.name] for each in fields(cls)}
        for name in BY_EVALUATION:
            kind = np.int64 if name in WHOLE else np.float64
            values[name] = np.array([math.nan if each is None else each for each in row[name]], dtype=kind)
        return cls(**values)


def _plain(value: float) -> float | int | None:
    if isinstance(value, int):
        return value
    return None if math.isnan(value) else float(f"{value:.{DIGITS}g}")


def curves_of(records: Sequence[RoundRecord]) -> dict[str, Any]:
    """The fields of a result that follow from the records of a run."""
    evaluated = [record for record in records if record.accuracy is not None]
    return {
        "rounds": np.array([record.round for record in evaluated], dtype=np.int64),
        "samples": np.array([record.samples for record in evaluated], dtype=np.int64),
        "clock": np.array([record.clock for record in evaluated], dtype=np.float64),
        "accuracy": np.array([record.accuracy for record in evaluated], dtype=np.float64),
        "last_accuracy": np.array(
            [math.nan if record.last_accuracy is None else record.last_accuracy for record in evaluated],
            dtype=np.float64,
        ),
        "mean_batch": np.array([record.plan.batch_sizes.mean() for record in evaluated], dtype=np.float64),
        "mean_cut": np.array([record.plan.cuts.mean() for record in evaluated], dtype=np.float64),
        "phases": _means([record.phases for record in records]),
        "bits": _means([record.bits for record in records]),
    }


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean over rounds of each entry; a round without an entry counts as 0."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: math.fsum(row.get(name, 0.0) for row in rows) / len(rows) for name in names}


class Results:
    """The results of several trainings."""

    def __init__(self, results: Iterable[RunResult] = ()) -> None:
        self._known = {result.key: result for result in results}

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The results of a folder, one file each: `<scenario>/<strategy>-seed<k>.json`."""
        return cls(map(read_result, sorted(folder.glob("*/*-seed*.json"))))

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[RunResult]:
        return iter(self._known.values())

    def get(self, key: Key) -> RunResult | None:
        """The result of a training; None if there is none."""
        return self._known.get(key)

    def only(self, keys: Iterable[Key]) -> Self:
        """The results of these trainings, as far as they exist and have an evaluation."""
        found = (self.get(key) for key in keys)
        return type(self)(result for result in found if result is not None and result.clock.size)

    def of(self, scenario: str, strategy: str) -> tuple[RunResult, ...]:
        """The results of a strategy in a scenario, one for each seed, sorted by seed."""
        found = [each for each in self if (each.scenario, each.strategy) == (scenario, strategy)]
        return tuple(sorted(found, key=lambda result: result.seed))


def common_accuracy(runs: Iterable[RunResult], served: Served = "mean") -> float | None:
    """The highest accuracy that all reached, rounded down to half a per cent; None if there is none."""
    best = [run.best(served) for run in runs]
    if not best or any(math.isnan(each) for each in best):
        return None
    steps = math.floor(min(best) * LEVELS)
    steps += (steps + 1) / LEVELS <= min(best)  # corrects a product that was rounded down
    steps -= steps / LEVELS > min(best)  # corrects a product that was rounded up
    return steps / LEVELS if steps > 0 else None


def percent(share: float) -> str:
    """An accuracy in words."""
    return f"{100 * share:.3g} %"


# ── trainings that differ only in their fleet ────────────────────────────────────────────────────────────
# A fleet changes the seconds of a round, but not the accuracy after it. On a GPU, two trainings with the same
# plans still differ a little, because sums are added up in another order each time. Times to an accuracy
# would then differ between fleets by chance. So such trainings share the mean of their accuracies, and each
# keeps its own clock.


def pooled(runs: Mapping[Label, RunResult]) -> dict[Label, RunResult]:
    """Give trainings with the same plans the mean of their accuracies, and leave all others as they are."""
    learnt = {label: _what_is_learnt(run) for label, run in runs.items()}
    alike = defaultdict[Hashable, list[RunResult]](list)
    for label, run in runs.items():
        alike[learnt[label]].append(run)
    return {label: _with_mean(run, alike[learnt[label]]) for label, run in runs.items()}


def _what_is_learnt(run: RunResult) -> Hashable:
    """A key that two trainings share if they differ only in their fleet and by chance."""
    scenario = {name: part for name, part in tomllib.loads(run.scenario_text).items() if name != "fleet"}
    plans = (run.rounds, run.samples, run.mean_batch, run.mean_cut)
    # The key has the bits, because they differ if a single device has another cut; the mean cut may not.
    texts = (json_text(part, run.scenario) for part in (scenario, run.bits))
    return run.strategy, run.seed, *texts, *(part.tobytes() for part in plans)


def _with_mean(run: RunResult, alike: Sequence[RunResult]) -> RunResult:
    return replace(
        run,
        accuracy=np.mean([each.accuracy for each in alike], axis=0),
        last_accuracy=np.mean([each.last_accuracy for each in alike], axis=0),
    )


# ── the file of a result, in JSON ────────────────────────────────────────────────────────────────────────

Count = Annotated[int, Field(ge=0, le=MOST**2)]
Known = Annotated[float, Field(allow_inf_nan=False)]


class ResultFile(Document):
    """The result of one training. Each list has one entry for each evaluation."""

    scenario: str
    scenario_text: str
    strategy: str
    seed: int
    commit: str | None
    environment: dict[str, Any]
    finished: str
    rounds: list[Count]
    samples: list[Count]
    clock: list[Known]
    accuracy: list[Known]
    last_accuracy: list[Known | None]
    mean_batch: list[Known]
    mean_cut: list[Known]
    phases: dict[str, Known]
    bits: dict[str, Known]
    wall_seconds: Known

    @model_validator(mode="after")
    def _is_whole(self) -> "ResultFile":
        for name in BY_EVALUATION:
            if len(getattr(self, name)) != len(self.rounds):
                raise ValueError(f"{name} must have an entry for each of {len(self.rounds)} evaluations")
        try:
            tomllib.loads(self.scenario_text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"scenario_text must be TOML, but is not: {error}") from None
        return self


def result_file(folder: Path, key: Key) -> Path:
    """The file of a training's result."""
    scenario, strategy, seed = key
    return folder / scenario / f"{file_name(strategy)}-seed{seed}.json"


def file_name(strategy: str) -> str:
    """The name of a strategy in the form in which it stands in a file's name."""
    return strategy.replace(":", "-").replace(",", "-")


def save_result(folder: Path, result: RunResult) -> Path:
    """Write a result."""
    path = result_file(folder, result.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json_text(result.as_json(), path.name) + "\n"
    replace_file(path, lambda file: write_text(file, text))
    return path


def read_result(path: Path) -> RunResult:
    """Read a result from a file; raises InputError if the file is no result."""
    try:
        return RunResult.from_json(read_json(str(path), ResultFile).model_dump())
    except InputError as error:
        raise InputError(f"{error}; remove the file, and hasfl reproduce trains it again") from None
