"""Trains the cases of experiments that have no result yet, and keeps a small result of each training."""

import shutil
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hasfl.errors import InputError
from hasfl.replacing import replace_file, write_text
from hasfl.runs.places.places import place_of
from hasfl.runs.places.watching import PlaceWatcher
from hasfl.runs.request import RunRequest
from hasfl.runs.store import RunFolder
from reproduction.experiment import Case, Experiment, Key
from reproduction.results import Results, RunResult, curves_of, file_name, result_file, save_result

# Names of folders in the folder of the output.
SCENARIOS, TRAININGS, UNFINISHED = "scenarios", "trainings", "unfinished"


def cases_of(experiments: Iterable[Experiment]) -> list[Case]:
    """The trainings of all experiments, each once, sorted by seed."""
    cases = {case.key: case for experiment in experiments for case in experiment.cases()}
    return sorted(cases.values(), key=lambda case: case.seed)


def untrained(cases: Sequence[Case], out: Path) -> list[Case]:
    """The trainings without a result; raises InputError if a result is of another scenario of that name."""
    results, left = Results.read(out / TRAININGS), []
    for case in cases:
        found = results.get(case.key)
        if found is None:
            left.append(case)
        elif tomllib.loads(found.scenario_text) != tomllib.loads(case.point.text):
            raise InputError(
                f"{result_file(out / TRAININGS, case.key)} was trained with another scenario than "
                f"{case.point.scenario} is now: remove it, or choose another folder with --out"
            )
    return left


def train_all(
    cases: Sequence[Case],
    out: Path,
    watcher: PlaceWatcher,
    *,
    device: str | None = None,
    on: str | None = None,
) -> None:
    """Train cases, and keep a result of each. Stopped trainings go on from their checkpoints."""
    place = place_of(on)
    requests = [_request(case, out, device) for case in cases]
    keys = {request.path: case.key for request, case in zip(requests, cases, strict=True)}
    place.carry_out(requests, KeepResult(out, keys), watcher)


def _request(case: Case, out: Path, device: str | None) -> RunRequest:
    """The request for a training, whose scenario is written into a file."""
    scenario = out / SCENARIOS / f"{case.point.scenario}.toml"
    scenario.parent.mkdir(parents=True, exist_ok=True)
    if not scenario.exists() or scenario.read_text(encoding="utf-8") != case.point.text:
        replace_file(scenario, lambda file: write_text(file, case.point.text))
    return RunRequest.of(
        scenario,
        out / UNFINISHED,
        strategy_name=case.strategy,
        seed=case.seed,
        name=f"{case.point.scenario}-{file_name(case.strategy)}-seed{case.seed}",
        device=device,
    )


@dataclass(frozen=True, slots=True)
class KeepResult:
    """Writes the result of a finished run, and removes its folder, which holds a whole model."""

    out: Path
    keys: dict[Path, Key]  # the key of the training in each folder

    def __call__(self, request: RunRequest) -> None:
        """Write the result of a finished run and remove its folder; do nothing if this was done before."""
        scenario, strategy, seed = key = self.keys[request.path]
        if not request.path.exists() and result_file(self.out / TRAININGS, key).exists():
            return
        with RunFolder.open(request.path) as folder:
            environment = folder.environment()
            result = RunResult(
                scenario=scenario,
                scenario_text=request.text,
                strategy=strategy,
                seed=seed,
                commit=environment.pop("commit", None),
                environment=environment,
                finished=datetime.fromtimestamp(time.time(), tz=UTC).date().isoformat(),
                wall_seconds=folder.elapsed_seconds(),
                **curves_of(folder.records()),
            )
        save_result(self.out / TRAININGS, result)
        shutil.rmtree(request.path)
