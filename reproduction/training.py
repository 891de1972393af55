"""Trains what has no result yet. Interrupted, the same command goes on; finished trainings are kept small."""

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

# In the folder of an experiment's output.
SCENARIOS, TRAININGS, UNFINISHED = "scenarios", "trainings", "unfinished"


def cases_of(experiments: Iterable[Experiment]) -> list[Case]:
    """The trainings of all experiments, each once; the first seeds of all figures before the second ones."""
    cases = {case.key: case for experiment in experiments for case in experiment.cases()}
    return sorted(cases.values(), key=lambda case: case.seed)


def untrained(cases: Sequence[Case], out: Path) -> list[Case]:
    """The trainings without a result. A result of another scenario with the same name is refused."""
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
    """Train these cases, and keep a result of each. Stopped trainings go on from their checkpoints."""
    place = place_of(on)
    requests = [_request(case, out, device) for case in cases]
    keys = {request.path: case.key for request, case in zip(requests, cases, strict=True)}
    place.carry_out(requests, KeepResult(out, keys), watcher)


def _request(case: Case, out: Path, device: str | None) -> RunRequest:
    """The request for a training. Its scenario becomes a file, which a run needs."""
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
    keys: dict[Path, Key]  # what each folder trains

    def __call__(self, request: RunRequest) -> None:
        """Keep the result of a finished run. A run whose result is kept has no folder any more."""
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
