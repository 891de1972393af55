"""Leaves out runs that repeat another run, and names the contestants of a report.

A contestant is a strategy in a scenario; its runs differ in their seeds. Two runs with the same scenario,
strategy and seed are one training, which must not count as two seeds.
"""

from collections.abc import Sequence
from pathlib import Path

from hasfl.runs.reports.open_run import OpenRun


def without_repeats(runs: Sequence[OpenRun]) -> list[OpenRun]:
    """Of runs that are one training, the one that came farthest; in the order of the runs."""
    farthest = dict[tuple[str, str, int, bool], OpenRun]()
    for run in runs:
        key = (_scenario(run), run.settings["strategy"], run.settings["seed"], run.on_machines)
        known = farthest.setdefault(key, run)
        if _progress(run) > _progress(known):
            farthest[key] = run
    kept = {run.path for run in farthest.values()}
    return [run for run in runs if run.path in kept]


def contestants(runs: Sequence[OpenRun]) -> dict[Path, str]:
    """What the contestant of each run is called: its strategy; with several scenarios, the scenario too."""
    firsts = dict[str, OpenRun]()
    for run in runs:
        firsts.setdefault(_scenario(run), run)
    if len(firsts) < 2:
        return {run.path: run.settings["strategy"] for run in runs}
    names = dict(zip(firsts, _told_apart(list(firsts.values())), strict=True))
    return {run.path: f"{run.settings['strategy']} ({names[_scenario(run)]})" for run in runs}


def _told_apart(runs: Sequence[OpenRun]) -> list[str]:
    """A name for the scenario of each run: its file, else the run's folder, else the whole path."""
    written = (
        [Path(run.settings["scenario"]).stem for run in runs],
        [run.path.name for run in runs],
        [str(run.path) for run in runs],
    )
    return next(names for names in written if len(set(names)) == len(names))


def _scenario(run: OpenRun) -> str:
    """The scenario without what the runs of one comparison may differ in."""
    return run.scenario.model_dump_json(
        exclude={"seed": True, "training": {"strategy": True, "device": True}}
    )


def _progress(run: OpenRun) -> tuple[bool, int]:
    return run.state == "finished", len(run.records)
