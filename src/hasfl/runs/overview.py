"""What is known about runs from their folders, without training. Nothing here needs torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hasfl.documents.scenario import Scenario
from hasfl.errors import InputError
from hasfl.forecast import GoalForecast
from hasfl.record import RoundRecord
from hasfl.reporting.metrics import measured_on
from hasfl.reporting.store import RunFolder
from hasfl.runner.stored_runs import stored_scenario, stored_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in one line. Where it is broken, `fault` says why, and nothing else is known."""

    run: str  # the name of its folder
    state: Literal["running", "stopped", "finished", "broken"]
    strategy: str | None = None
    seed: int | None = None
    rounds: int = 0
    accuracy: float | None = None  # of the last evaluation; of a finished run, its model's
    measured_on: str | None = None  # what the accuracy is about: the test set or held-out samples
    seconds: float = 0.0  # of virtual time
    elapsed_seconds: float = 0.0  # of wall time
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetails:
    """All that a run's folder says about it."""

    path: Path
    summary: RunSummary
    scenario: Scenario
    scenario_file: Path  # that the run was begun or last continued with
    last: RoundRecord | None  # the last round
    forecast: GoalForecast | None  # of the last evaluation; None if the run is finished
    result: Mapping[str, Any] | None  # of a finished run
    files: Mapping[str, int]  # bytes of each file


def summary(path: Path) -> RunSummary:
    """A run in one line."""
    try:
        with RunFolder.open(path) as folder:
            return _summary(folder)
    except InputError as error:
        return RunSummary(run=path.name, state="broken", fault=str(error))


def details(path: Path) -> RunDetails:
    """All that is known of one run; InputError if it is broken."""
    with RunFolder.open(path) as folder:
        settings = stored_settings(folder)
        return RunDetails(
            path=path,
            summary=_summary(folder),
            scenario=stored_scenario(folder),
            scenario_file=Path(settings["folder"]) / settings["scenario"],
            last=next(folder.newest_records(), None),
            forecast=None if folder.finished else _last_forecast(folder),
            result=folder.result() if folder.finished else None,
            files={file.name: file.stat().st_size for file in sorted(path.iterdir()) if file.is_file()},
        )


def _last_forecast(folder: RunFolder) -> GoalForecast | None:
    evaluated = (record.forecast for record in folder.newest_records() if record.shown_accuracy is not None)
    return next(evaluated, None)


def _summary(folder: RunFolder) -> RunSummary:
    settings, last = stored_settings(folder), next(folder.newest_records(), None)
    evaluated = (record for record in folder.newest_records() if record.shown_accuracy is not None)
    shown = next(evaluated, None)
    state = folder.state
    accuracy = shown.shown_accuracy if shown else None
    return RunSummary(
        run=folder.path.name,
        state=state,
        strategy=settings["strategy"],
        seed=settings["seed"],
        rounds=0 if last is None else last.round,
        accuracy=folder.result()["accuracy"] if state == "finished" else accuracy,
        measured_on=measured_on([shown]) if shown else None,
        seconds=0.0 if last is None else last.clock,
        elapsed_seconds=folder.elapsed_seconds(),
    )
