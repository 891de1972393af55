"""From the folders of runs to a report. The runs may be finished, stopped, or training at this moment."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasfl.errors import HasflError
from hasfl.fleet import Fleet
from hasfl.report.page.report import Labels, PlanQuality, Report, RunReport, ShownRound
from hasfl.report.page.rounds import plan_columns
from hasfl.report.page.thinning import slider_rounds
from hasfl.report.page.verdict import Entry, ranked
from hasfl.runs.from_scenario import world_of
from hasfl.runs.model_costs import costs_of
from hasfl.runs.overview import find_run, is_run, runs_in
from hasfl.runs.reports.contestants import contestants, without_repeats
from hasfl.runs.reports.labels import labels_of
from hasfl.runs.reports.last_plan import LastPlan, quality_of, question_of
from hasfl.runs.reports.open_run import OpenRun
from hasfl.runs.reports.round_times import SimulatedRounds, measured_rounds
from hasfl.theory.paradigms import SPLIT
from hasfl.training.clock import ModelledClock
from hasfl.world import World


def runs_of(written: Sequence[Path]) -> list[Path]:
    """The folders of runs that were asked for: runs, names of runs in `runs`, or folders of runs."""
    found: list[Path] = []
    for each in written:
        inside = runs_in(each) if each.is_dir() and not is_run(each) else []
        found += inside or [find_run(each)]
    return list({path.resolve(): path for path in found}.values())


def report_of(written: Sequence[Path], tell: Callable[[str], None] = lambda step: None) -> Report:
    """A report of runs; `tell` is called before each step that may take a while."""
    runs = []
    for path in runs_of(written):
        tell(f"reading {path.name}")
        runs.append(OpenRun.of(path))
    found, runs = runs, without_repeats(runs)
    names = contestants(runs)
    runs = [runs[k] for k in ranked([_entry(run, names[run.path]) for run in runs])]
    qualities = _qualities(runs, names, tell)
    reports = []
    for run in runs:
        tell(f"drawing {run.path.name}")
        reports.append(_report(run, names[run.path], qualities[run.path], slider_rounds(len(runs))))
    tell("reading who holds which labels")
    repeats = [run.path.name for run in found if run.path not in names]
    return Report(runs=reports, labels=_labels(runs[0]), repeats=repeats)


def _entry(run: OpenRun, contestant: str) -> Entry:
    """The run as the verdict sees it."""
    return Entry(
        strategy=contestant,
        seed=run.settings["seed"],
        state=run.state,
        records=run.records,
        goal=run.scenario.stop.accuracy,
    )


def _report(run: OpenRun, contestant: str, quality: PlanQuality | str, slider: int) -> RunReport:
    drawn = _drawn(run, slider)
    return RunReport(
        name=run.path.name,
        strategy=contestant,
        seed=run.settings["seed"],
        state=run.state,
        goal=run.scenario.stop.accuracy,
        records=run.records,
        about=_about(run, drawn.devices),
        shown=drawn.shown,
        fleet=drawn.fleet,
        devices=drawn.devices,
        last_plan=drawn.last_plan,
        quality=quality,
        scenario=run.text,
        environment=run.environment,
        command=run.command,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drawn:
    """What the charts of a run need beyond its records."""

    shown: Sequence[ShownRound]
    fleet: Fleet | None  # in the last round
    devices: int
    last_plan: Mapping[str, Any] | None = None


def _drawn(run: OpenRun, slider: int) -> Drawn:
    """The charts of a run, whose slider has at most so many rounds."""
    if run.on_machines:
        devices = 1 + max(int(record.devices.max()) for record in run.records)
        return Drawn(shown=list(measured_rounds(run.records, slider)), fleet=None, devices=devices)
    world = _world(run)
    if not run.records:
        return Drawn(shown=[], fleet=world.fleet, devices=len(world.fleet))
    clock = ModelledClock(
        profile=costs_of(run.scenario, world.fleet, folder=run.folder).profile,
        paradigm=run.paradigm,
        sample_bits=0.0,  # the seconds for collecting samples are in the records
        keeps_mean=run.scenario.settings().serving.averages,
    )
    rounds = SimulatedRounds(records=run.records, world=world, clock=clock)
    last = run.records[-1]
    fleet = world.fleet_at(last.round)
    there = fleet.only(last.devices)
    split = run.paradigm.split_latency(last.plan, there, clock.profile)
    return Drawn(
        shown=list(rounds.shown(slider)),
        fleet=fleet,
        devices=len(fleet),
        last_plan=plan_columns(last.plan, there, clock.profile, split),
    )


def _about(run: OpenRun, devices: int) -> str:
    """What is trained, in a few words."""
    number = f"{devices:,} {'device' if devices == 1 else 'devices'}"
    return f"{run.scenario.model_name} on {run.scenario.data_name}, {number}"


def _world(run: OpenRun) -> World:
    return world_of(run.scenario, run.scenario.draw(), folder=run.folder)


def _qualities(
    runs: Sequence[OpenRun], names: Mapping[Path, str], tell: Callable[[str], None]
) -> dict[Path, PlanQuality | str]:
    """How good the last plan of the first run of every contestant is; upgrades are tried once."""
    found: dict[Path, PlanQuality | str] = {}
    seen: set[str] = set()
    for run in runs:
        name = names[run.path]
        if name in seen:
            found[run.path] = f"The first run of {name} in this report says how good its plans are."
            continue
        seen.add(name)
        tell(f"judging the last plan of {run.path.name}")
        tried = any(not isinstance(each, str) for each in found.values())
        found[run.path] = _quality(run, runs, with_upgrades=not tried)
    return found


def _quality(run: OpenRun, runs: Sequence[OpenRun], *, with_upgrades: bool) -> PlanQuality | str:
    if not run.records:
        return "There is no plan yet."
    if run.on_machines:
        return "The plan was made for machines whose measured speeds the run does not keep."
    if run.paradigm is not SPLIT:
        return f"{run.settings['strategy']} does not choose batch sizes and cuts, so no plan can be judged."
    others = {
        each.path: each.path.name
        for each in runs
        if each.text == run.text and each.settings["seed"] == run.settings["seed"] and each is not run
    }
    last = run.records[-1]
    plan = LastPlan(record=last, fleet=_world(run).fleet_at(last.round).only(last.devices))
    asked = question_of(run.path, others)
    if isinstance(asked, str):
        return asked
    return quality_of(plan, *asked, with_upgrades=with_upgrades)


def _labels(run: OpenRun) -> Labels | str:
    if run.on_machines:
        return "The devices of this run keep their samples to themselves, so nobody knows their labels."
    try:
        return labels_of(run.scenario, run.folder)
    except HasflError as error:
        return f"The data are not there to be counted: {error}."
