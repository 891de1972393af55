"""Finds runs in folders and summarises them, without training. This file needs no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from hasfl.errors import InputError
from hasfl.paths import is_there
from hasfl.record import GoalForecast, RoundRecord
from hasfl.report.analysis import measured_on
from hasfl.runs.scenario import Scenario, parse_scenario
from hasfl.runs.store import ENVIRONMENT, ROUNDS, SCENARIO, SETTINGS, RunFolder

# ── folders of runs, their scenarios and settings ────────────────────────────────────────────────────────


RUNS = Path("runs")  # the default of the folder that holds the folders of runs
MARKS = (SETTINGS, ENVIRONMENT, ROUNDS)  # files of a run that other folders rarely have
NAMED = 10  # number of runs that a message names; chosen by hand


def is_run(path: Path) -> bool:
    """Whether a folder is the folder of a run; the run may be broken."""
    return is_there(path) and any((path / mark).is_file() for mark in MARKS)


def runs_in(folder: Path) -> list[Path]:
    """The folders of all runs in `folder`, sorted by name; `folder` itself if it is the folder of a run."""
    if not is_there(folder):
        raise InputError(f"{folder} must be a folder with runs, but does not exist: check its name")
    if not folder.is_dir():
        raise InputError(f"{folder} must be a folder with runs, but is a file: check its name")
    if is_run(folder):
        return [folder]
    return [path for path in sorted(folder.iterdir()) if path.name[0] != "." and is_run(path)]


def find_run(written: Path) -> Path:
    """The folder of a run that is given by its path, or by its name in the folder `runs`."""
    for path in (written, RUNS / written):
        if is_run(path):
            return path
    fault = "has none of a run's files" if is_there(written) else "is not there"
    beside = RUNS if RUNS.is_dir() and written.name == str(written) else written.parent
    raise InputError(f"{written} must be the folder of a run, but {fault}: {known_runs(beside)}")


def known_runs(folder: Path) -> str:
    """The runs in a folder, in words, as advice at the end of a message."""
    names = [path.name for path in runs_in(folder)] if folder.is_dir() else []
    if not names:
        return f"there are no runs in {folder}"
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{folder} has {', '.join(islice(names, NAMED))}{more}"


def stored_scenario(run: RunFolder) -> Scenario:
    """The scenario of a run, with the strategy, the seed and the device of the run."""
    scenario = parse_scenario(run.scenario_text(), str(run.path / SCENARIO))
    return with_choices(scenario, stored_settings(run))


def stored_settings(run: RunFolder) -> Mapping[str, Any]:
    """The settings of a run, checked: what `RunRequest.settings` returned at the last start or resume."""
    settings = run.settings()
    kinds = {"strategy": str, "seed": int, "device": str | None, "folder": str, "scenario": str}
    for name, kind in kinds.items():
        if name not in settings or not isinstance(settings[name], kind):
            raise InputError(
                f"{run.path / SETTINGS} must say the {name} of the run, but does not: read the run with the "
                "version of hasfl that wrote it, or restore the file from a copy"
            )
    return settings


def scenario_folder(run: RunFolder) -> Path:
    """The folder that paths in the scenario of a run are relative to."""
    return Path(stored_settings(run)["folder"])


def with_choices(scenario: Scenario, settings: Mapping[str, Any]) -> Scenario:
    """A scenario with the strategy, the seed and the device that a command chose."""
    chosen = {"strategy": settings["strategy"]}
    if settings["device"] is not None:
        chosen["device"] = settings["device"]
    training = replace(scenario.training, **chosen)
    return scenario.model_copy(update={"training": training, "seed": settings["seed"]})


# ── summaries ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The summary of a run. If the run is broken, `fault` is the reason, and other fields are empty."""

    run: str  # name of the run's folder
    state: Literal["running", "stopped", "finished", "broken"]
    strategy: str | None = None
    seed: int | None = None
    rounds: int = 0
    accuracy: float | None = None  # accuracy of the last evaluation; of a finished run, of its model
    measured_on: str | None = None  # the samples of the accuracy: the test set or held-out samples
    seconds: float = 0.0  # virtual time
    elapsed_seconds: float = 0.0  # wall time
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetails:
    """Everything that the folder of a run tells about the run."""

    path: Path
    summary: RunSummary
    scenario: Scenario
    scenario_file: Path  # the scenario file at the last start or resume
    last: RoundRecord | None  # record of the last round; None if there is none
    forecast: GoalForecast | None  # the newest forecast; None if the run is finished
    result: Mapping[str, Any] | None  # the result; None unless the run is finished
    files: Mapping[str, int]  # size of each file, bytes


def summary(path: Path) -> RunSummary:
    """Summarise a run in one line; a broken run has a summary too."""
    try:
        with RunFolder.open(path) as folder:
            return _summary(folder)
    except InputError as error:
        return RunSummary(run=path.name, state="broken", fault=str(error))


def details(path: Path) -> RunDetails:
    """Everything that the folder of a run tells. Raise InputError if the run is broken."""
    with RunFolder.open(path) as folder:
        settings, evaluated = stored_settings(folder), last_evaluated(folder)
        return RunDetails(
            path=path,
            summary=_summary(folder),
            scenario=stored_scenario(folder),
            scenario_file=Path(settings["folder"]) / settings["scenario"],
            last=next(folder.newest_records(), None),
            forecast=None if folder.finished or evaluated is None else evaluated.forecast,
            result=folder.result() if folder.finished else None,
            files={file.name: file.stat().st_size for file in sorted(path.iterdir()) if file.is_file()},
        )


def last_evaluated(folder: RunFolder) -> RoundRecord | None:
    """The record of the last round whose model was evaluated; None if there is none."""
    return next((record for record in folder.newest_records() if record.shown_accuracy is not None), None)


def _summary(folder: RunFolder) -> RunSummary:
    settings, last = stored_settings(folder), next(folder.newest_records(), None)
    shown, state = last_evaluated(folder), folder.state
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
