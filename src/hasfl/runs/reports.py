"""Makes a report from the folders of runs. The runs may be finished, stopped, or training at this moment.

A contestant is a strategy in a scenario; the runs of a contestant differ in their seeds. Two runs with the
same scenario, strategy and seed are one training, which must not count as two seeds.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from hasfl.constants import BoundConstants
from hasfl.data.partition import label_counts, sample_counts
from hasfl.data.sources import PUBLISHED, default_folder
from hasfl.errors import HasflError, InputError
from hasfl.plan import Plan, PlanReport
from hasfl.planning.advice.why import GAP, TIME_LIMIT, Upgrades, pace_setters, upgrades
from hasfl.planning.strategies.catalogue import strategy
from hasfl.planning.verify import faults
from hasfl.problem import Problem
from hasfl.record import RoundRecord
from hasfl.report.analysis import ComparedRun, ranked
from hasfl.report.page.columns import plan_columns, slider_positions, slider_rounds
from hasfl.report.page.course import changes
from hasfl.report.page.report import Labels, PlanQuality, Report, RunReport, ShownRound
from hasfl.report.timeline import seconds_on_machines
from hasfl.runs.overview import find_run, is_run, runs_in, scenario_folder, stored_scenario, stored_settings
from hasfl.runs.questions import Origin, Question, read_question, solve
from hasfl.runs.round_seconds import SimulatedRounds
from hasfl.runs.scenario import Scenario
from hasfl.runs.store import SCENARIO, RunFolder
from hasfl.runs.task import shared_data, world_of
from hasfl.theory.objective import evaluate
from hasfl.theory.paradigms import SPLIT, Paradigm

# ── the contents of a run's folder ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenRun:
    """The contents of the folder of a run."""

    path: Path
    state: str
    scenario: Scenario
    text: str  # text of the scenario file
    folder: Path  # paths in the scenario are relative to it
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    records: Sequence[RoundRecord]

    @classmethod
    def of(cls, path: Path) -> Self:
        """Read the folder of a run."""
        with RunFolder.open(path) as folder:
            return cls(
                path=path,
                state=folder.state,
                scenario=stored_scenario(folder),
                text=folder.scenario_text(),
                folder=scenario_folder(folder),
                settings=stored_settings(folder),
                environment=folder.environment(),
                records=folder.records(),
            )

    @property
    def on_machines(self) -> bool:
        """Whether real machines trained the run; then its fleet is not the fleet that the scenario draws."""
        return bool(self.records) and self.records[-1].measured is not None

    @property
    def paradigm(self) -> Paradigm:
        """The paradigm of the run's strategy."""
        return strategy(self.scenario.training.strategy, self.folder).paradigm

    @property
    def command(self) -> str:
        """The command that trains the run again, from its scenario file, or from the copy if that is gone."""
        own = self.folder / self.settings["scenario"]
        scenario = own if own.exists() else self.path / SCENARIO
        words = ["hasfl", "submit" if self.on_machines else "train", str(scenario)]
        words += ["--strategy", self.settings["strategy"], "--seed", str(self.settings["seed"])]
        return shlex.join([*words, *(["--device", device] if (device := self.settings["device"]) else [])])

    def compared(self, contestant: str) -> dict[str, Any]:
        """The fields of a `ComparedRun`; `contestant` is the name of the run's contestant in the report."""
        return {
            "strategy": contestant,
            "seed": self.settings["seed"],
            "state": self.state,
            "records": self.records,
            "goal": self.scenario.stop.accuracy,
        }


# ── contestants ──────────────────────────────────────────────────────────────────────────────────────────


def without_repeats(runs: Sequence[OpenRun]) -> list[OpenRun]:
    """The runs in their order; of several runs of one training, only a finished or else the longest run."""
    farthest = dict[tuple[str, str, int, bool], OpenRun]()
    for run in runs:
        key = (_scenario(run), run.settings["strategy"], run.settings["seed"], run.on_machines)
        known = farthest.setdefault(key, run)
        if _progress(run) > _progress(known):
            farthest[key] = run
    kept = {run.path for run in farthest.values()}
    return [run for run in runs if run.path in kept]


def contestants(runs: Sequence[OpenRun]) -> dict[Path, str]:
    """The name of each run's contestant: its strategy, with the scenario if there are several scenarios."""
    firsts = dict[str, OpenRun]()
    for run in runs:
        firsts.setdefault(_scenario(run), run)
    if len(firsts) < 2:
        return {run.path: run.settings["strategy"] for run in runs}
    names = dict(zip(firsts, _told_apart(list(firsts.values())), strict=True))
    return {run.path: f"{run.settings['strategy']} ({names[_scenario(run)]})" for run in runs}


def _told_apart(runs: Sequence[OpenRun]) -> list[str]:
    """Name each run's scenario: by its file if files differ, else by the run's name, else by its path."""
    written = (
        [Path(run.settings["scenario"]).stem for run in runs],
        [run.path.name for run in runs],
        [str(run.path) for run in runs],
    )
    return next(names for names in written if len(set(names)) == len(names))


def _scenario(run: OpenRun) -> str:
    """The scenario as text, without the values in which runs of one comparison may differ."""
    return run.scenario.model_dump_json(
        exclude={"seed": True, "training": {"strategy": True, "device": True}}
    )


def _progress(run: OpenRun) -> tuple[bool, int]:
    return run.state == "finished", len(run.records)


# ── how good the last plan of a run is ───────────────────────────────────────────────────────────────────


# The most seconds for the search of one best plan, and for all upgrades together. Chosen by hand, so that a
# report does not take minutes.
SEARCH_SECONDS, UPGRADE_SECONDS = 10.0, 20.0
SHOWN_UPGRADES = 8  # number of upgrades that a report shows
CONSTANTS: Mapping[Origin, str] = {
    "measured": "by the guesses of the constants, in the mean, with the rounds of",
    "estimated": "by the constants that were estimated in",
}


def _qualities(
    runs: Sequence[OpenRun], names: Mapping[Path, str], tell: Callable[[str], None]
) -> dict[Path, PlanQuality | str]:
    """Judge the last plan of the first run of every contestant; upgrades are tried for one run only."""
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
    """Compare the last plan of a run with the best plan for the same devices; a sentence if impossible."""
    if not run.records:
        return "There is no plan yet."
    if run.on_machines:
        return "The plan was made for machines whose measured speeds the run does not keep."
    if run.paradigm is not SPLIT:
        return f"{run.settings['strategy']} does not choose batch sizes and cuts, so no plan can be judged."
    plan = run.records[-1].plan
    try:
        question, constants = _question(run, runs)
        problem = _problem(run, question)
        own = evaluate(plan, problem)
        best = solve(problem, time_limit=SEARCH_SECONDS, start=plan)
    except InputError as error:
        return f"The plan cannot be judged: {error}."
    saved = _upgrades(best, problem) if with_upgrades else Upgrades([], 0)
    return PlanQuality(
        constants=constants,
        rounds_known=question.rounds_known and not isinstance(problem.constants, BoundConstants),
        objective=own.objective,
        best=min(best.objective, own.objective),
        lower_bound=best.lower_bound or 0.0,
        pace_setters=pace_setters(plan, problem),
        faults=tuple(faults(best, problem)),
        upgrades=tuple(
            (each.resource, each.saved_seconds, each.error_seconds) for each in saved.found if each.tells
        )[:SHOWN_UPGRADES],
        tried=len(saved.found),
        resources=saved.resources,
    )


def _upgrades(best: PlanReport, problem: Problem) -> Upgrades:
    def ask(upgraded: Problem, start: Plan) -> PlanReport:
        return solve(upgraded, gap=GAP, time_limit=TIME_LIMIT, start=start)

    return upgrades(best.plan, problem, ask, seconds=UPGRADE_SECONDS)


def _question(run: OpenRun, runs: Sequence[OpenRun]) -> tuple[Question, str]:
    """The question that `hasfl plan --from` would make from a run, and words on where its constants are from.

    If a run estimated none of the paper's constants, those of another run of the report are used, if that run
    has the same scenario and seed.
    """
    seed, refusals = run.settings["seed"], []
    others = [each for each in runs if each.text == run.text and each.settings["seed"] == seed]
    for each in (run, *(other for other in others if other is not run)):
        try:
            question = read_question(None, run=each.path).weighed()
        except InputError as error:
            refusals.append(error)
        else:
            name = "this run" if each is run else each.path.name
            return question, f"{CONSTANTS[question.constants]} {name}"
    raise refusals[0]


def _problem(run: OpenRun, question: Question) -> Problem:
    """The planning problem of the devices in the last round, with their speeds in this round."""
    problem, last = question.problem, run.records[-1]
    world = world_of(run.scenario, run.scenario.draw(), folder=run.folder)
    return replace(
        problem,
        fleet=world.fleet_at(last.round).only(last.devices),
        constants=question.constants_for(len(last.devices), problem.interval),
        samples=None if problem.samples is None else problem.samples[last.devices],
    )


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────


def runs_of(written: Sequence[Path]) -> list[Path]:
    """The folders of the runs that a user gave as paths of runs, names in `runs`, or folders with runs."""
    found: list[Path] = []
    for each in written:
        inside = runs_in(each) if each.is_dir() and not is_run(each) else []
        found += inside or [find_run(each)]
    return list({path.resolve(): path for path in found}.values())


def report_of(written: Sequence[Path], tell: Callable[[str], None] = lambda step: None) -> Report:
    """Make a report of runs; `tell` is called before each slow step, with a phrase."""
    runs = []
    for path in runs_of(written):
        tell(f"reading {path.name}")
        runs.append(OpenRun.of(path))
    found, runs = runs, without_repeats(runs)
    names = contestants(runs)
    runs = [runs[k] for k in ranked([ComparedRun(**run.compared(names[run.path])) for run in runs])]
    qualities = _qualities(runs, names, tell)
    reports = []
    for run in runs:
        tell(f"drawing {run.path.name}")
        reports.append(_report(run, names[run.path], qualities[run.path], slider_rounds(len(runs))))
    tell("reading who holds which labels")
    repeats = [run.path.name for run in found if run.path not in names]
    return Report(runs=reports, labels=_labels(runs[0]), repeats=repeats)


def _report(run: OpenRun, contestant: str, quality: PlanQuality | str, slider: int) -> RunReport:
    """Make the part of a report about one run; `slider` is the most rounds that its slider may have."""
    scenario, records, fleet, last_plan, shown = run.scenario, run.records, None, None, list[ShownRound]()
    positions = slider_positions(len(records), changes(records), slider)
    if run.on_machines:
        devices = 1 + max(int(record.devices.max()) for record in records)
        for record in (records[k] for k in positions):
            if record.measured is not None:
                predicted, measured = seconds_on_machines(record, record.measured)
                shown.append(ShownRound(round=record.round, predicted=predicted, measured=measured))
    else:
        rounds = SimulatedRounds.of(scenario, run.folder, records)
        fleet, devices = rounds.world.fleet, len(rounds.world.fleet)
        shown = [ShownRound(round=records[k].round, predicted=rounds.seconds(int(k))) for k in positions]
        if records:
            last, profile = records[-1], rounds.clock.profile
            fleet = rounds.world.fleet_at(last.round)
            there = fleet.only(last.devices)
            split = run.paradigm.split_latency(last.plan, there, profile)
            last_plan = plan_columns(last.plan, there, profile, split)
    number = f"{devices:,} {'device' if devices == 1 else 'devices'}"
    return RunReport(
        name=run.path.name,
        **run.compared(contestant),
        about=f"{scenario.model_name} on {scenario.data_name}, {number}",
        shown=shown,
        fleet=fleet,
        devices=devices,
        last_plan=last_plan,
        quality=quality,
        scenario=run.text,
        environment=run.environment,
        command=run.command,
    )


def _labels(run: OpenRun) -> Labels | str:
    """The number of samples of each class that each device of a run holds; a sentence if it is unknown.

    A report downloads nothing: it names the data folder, and hasfl downloads nothing into a named folder.
    """
    if run.on_machines:
        return "The devices of this run keep their samples to themselves, so nobody knows their labels."
    scenario = run.scenario
    if scenario.data.folder is None and scenario.data_name in PUBLISHED:
        section = scenario.data.model_copy(update={"folder": str(default_folder())})
        scenario = scenario.model_copy(update={"data": section})
    try:
        names = scenario.draw().names
        data, shares = shared_data(scenario, names, folder=run.folder)
    except HasflError as error:
        return f"The data are not there to be counted: {error}."
    classes = data.class_names if data.one_class_each else ()
    counts = label_counts(shares, data.y_train.numpy(), len(classes)) if classes else sample_counts(shares)
    return Labels(data=data.name, seed=scenario.seed, devices=names, classes=classes, counts=counts)
