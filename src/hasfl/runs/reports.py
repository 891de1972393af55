"""From the folders of runs to a report. The runs may be finished, stopped, or training at this moment.

A contestant is a strategy in a scenario; its runs differ in their seeds. Two runs with the same scenario,
strategy and seed are one training, which must not count as two seeds.
"""

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypedDict

import numpy as np

from hasfl.arrays import FloatN, IntN
from hasfl.constants import BoundConstants
from hasfl.data.partition import label_counts, sample_counts
from hasfl.data.sources import PUBLISHED, default_folder
from hasfl.errors import HasflError, InputError
from hasfl.fleet import Fleet
from hasfl.plan import Plan, PlanReport
from hasfl.planning.advice.why import GAP, TIME_LIMIT, Upgrades, pace_setters, upgrades
from hasfl.planning.strategies.catalogue import strategy
from hasfl.planning.verify import faults
from hasfl.problem import Problem
from hasfl.record import EDGE, MeasuredRound, RoundRecord, SecondsByParty
from hasfl.report.analysis import ComparedRun, ranked
from hasfl.report.page.course import beside_training, changes
from hasfl.report.page.report import Labels, PlanQuality, Report, RunReport, ShownRound, device_names
from hasfl.report.page.rounds import RoundTimes, plan_columns
from hasfl.report.page.thinning import slider_positions, slider_rounds
from hasfl.runs.from_scenario import shared_data, world_of
from hasfl.runs.model_costs import costs_of
from hasfl.runs.overview import find_run, is_run, runs_in, scenario_folder, stored_scenario, stored_settings
from hasfl.runs.questions import Origin, Question, read_question, solve
from hasfl.runs.scenario import Scenario
from hasfl.runs.store import SCENARIO, RunFolder
from hasfl.theory.latency import AggregationLatency, Arrangement, SplitTrainingLatency
from hasfl.theory.objective import evaluate
from hasfl.theory.paradigms import SPLIT, Paradigm
from hasfl.training.clock import ModelledClock
from hasfl.world import World

# ── who holds which labels ───────────────────────────────────────────────────────────────────────────────


def labels_of(scenario: Scenario, folder: Path) -> Labels:
    """How many samples of each class the devices of a scenario hold; InputError if the data are not there.

    A report never downloads: files of published data must be in the data folder already.
    """
    names = scenario.draw().names
    data, shares = shared_data(_without_download(scenario), names, folder=folder)
    classes = data.class_names if data.one_class_each else ()
    counts = label_counts(shares, data.y_train.numpy(), len(classes)) if classes else sample_counts(shares)
    return Labels(data=data.name, seed=scenario.seed, devices=names, classes=classes, counts=counts)


def _without_download(scenario: Scenario) -> Scenario:
    """The scenario with its data folder named, because nothing is downloaded into a folder that is named."""
    if scenario.data.folder is not None or scenario.data_name not in PUBLISHED:
        return scenario
    section = scenario.data.model_copy(update={"folder": str(default_folder())})
    return scenario.model_copy(update={"data": section})


# ── a run as its folder describes it ─────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenRun:
    """A run as its folder describes it."""

    path: Path
    state: str
    scenario: Scenario
    text: str  # of the scenario
    folder: Path  # that paths in the scenario are relative to
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
        """Whether machines measured the run; then its fleet is not the one that the scenario draws."""
        return bool(self.records) and self.records[-1].measured is not None

    @property
    def paradigm(self) -> Paradigm:
        """The way of training of the run's strategy."""
        return strategy(self.scenario.training.strategy, self.folder).paradigm

    @property
    def command(self) -> str:
        """The command that trains the run again: from its scenario, or from the copy if that is gone."""
        own = self.folder / self.settings["scenario"]
        scenario = own if own.exists() else self.path / SCENARIO
        words = ["hasfl", "submit" if self.on_machines else "train", str(scenario)]
        words += ["--strategy", self.settings["strategy"], "--seed", str(self.settings["seed"])]
        return shlex.join([*words, *(["--device", device] if (device := self.settings["device"]) else [])])

    def compared(self, contestant: str) -> dict[str, Any]:
        """The fields of a `ComparedRun`; `contestant` is what the run's strategy is called in the report."""
        return {
            "strategy": contestant,
            "seed": self.settings["seed"],
            "state": self.state,
            "records": self.records,
            "goal": self.scenario.stop.accuracy,
        }


# ── contestants ──────────────────────────────────────────────────────────────────────────────────────────


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


# ── how long each party took in each step of a round ─────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedRounds:
    """What the steps of a simulated run rest on; its records, its world and its clock give the times back."""

    records: Sequence[RoundRecord]
    world: World
    clock: ModelledClock

    def shown(self, most: int) -> Iterator[ShownRound]:
        """The rounds of the slider, at most so many."""
        for k in slider_positions(len(self.records), changes(self.records), most):
            yield ShownRound(round=self.records[k].round, times=self.times(int(k)))

    def times(self, k: int) -> RoundTimes:
        """The times of record k; those of an aggregation follow the plan of the next record (Algorithm 1).

        The last record has no next one. Its sub-models come down as its own plan cuts them. A device that
        joins only receives.
        """
        record, depth = self.records[k], self._depth(k)
        now = self._arrangement(record, record.round, depth)
        steps, devices = dict(self.clock.by_party(now, record.devices)), record.devices
        if record.aggregated:
            then = self.records[min(k + 1, len(self.records) - 1)]
            after = self._arrangement(then, record.round + 1, self.clock.depth(then.plan))
            steps |= self.clock.upload_by_party(now, after, record.devices)
            steps |= self.clock.download_by_party(after, depth, then.devices)
            devices = np.union1d(devices, then.devices)
        return RoundTimes(
            names=[self.world.fleet.names[i] for i in devices],
            **_seconds(steps, devices),
            beside=beside_training(record),
            estimated_first=record.round == 1,
        )

    def _arrangement(self, record: RoundRecord, round: int, depth: int) -> Arrangement:
        return Arrangement(record.plan, self.world.fleet_at(round).only(record.devices), depth)

    def _depth(self, k: int) -> int:
        """The private layers of an interval: those of the plan that it began with."""
        begin = max(0, k - (self.records[k].round - 1) % self.world.interval)
        return self.clock.depth(self.records[begin].plan)


def measured_rounds(records: Sequence[RoundRecord], most: int) -> Iterator[ShownRound]:
    """The rounds of the slider of a run on machines: as they were predicted, and as they were measured."""
    for k in slider_positions(len(records), changes(records), most):
        record = records[k]
        if record.measured is not None:
            predicted, measured = _both(record, record.measured)
            yield ShownRound(round=record.round, times=predicted, measured=measured)


def _both(record: RoundRecord, seen: MeasuredRound) -> tuple[RoundTimes, RoundTimes]:
    names = device_names(int(record.devices.max()) + 1)

    def of(steps: SecondsByParty, beside: Mapping[str, float]) -> RoundTimes:
        return RoundTimes(
            names=[names[i] for i in record.devices],
            **_seconds(steps, record.devices),
            beside=beside,
            download_first=True,
        )

    beside = {name: seen.spans[name] for name in ("evaluation",) if name in seen.spans}
    return of(seen.predicted, beside_training(record)), of(seen.measured, beside)


class _Seconds(TypedDict):
    split: SplitTrainingLatency
    aggregation: AggregationLatency | None


def _seconds(steps: SecondsByParty, devices: IntN) -> _Seconds:
    """Seconds by step and party as arrays over devices; a step that is not there took no time."""

    def each(step: str) -> FloatN:
        return np.array([steps.get(step, {}).get(int(i), 0.0) for i in devices])

    def edge(step: str) -> float:
        return steps.get(step, {}).get(EDGE, 0.0)

    split = SplitTrainingLatency(
        device_forward=each("device_forward"),
        activation_upload=each("activation_upload"),
        server_forward=edge("server_forward"),
        server_backward=edge("server_backward"),
        gradient_download=each("gradient_download"),
        device_backward=each("device_backward"),
    )
    if "submodel_upload" not in steps and "submodel_download" not in steps:
        return {"split": split, "aggregation": None}
    aggregation = AggregationLatency(
        submodel_upload=each("submodel_upload"),
        server_submodel_upload=edge("submodel_upload"),
        submodel_download=each("submodel_download"),
        server_submodel_download=edge("submodel_download"),
    )
    return {"split": split, "aggregation": aggregation}


# ── how good the last plan of a run is ───────────────────────────────────────────────────────────────────


# Seconds for the best plan, and for all upgrades together; chosen by hand, so that a report takes no minutes.
SEARCH_SECONDS, UPGRADE_SECONDS = 10.0, 20.0
SHOWN_UPGRADES = 8
CONSTANTS: Mapping[Origin, str] = {
    "measured": "by the guesses of the constants, in the mean, with the rounds of",
    "estimated": "by the constants that were estimated in",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LastPlan:
    """The last plan of a run, and the devices that it was for."""

    record: RoundRecord
    fleet: Fleet  # of the devices that took part

    @property
    def plan(self) -> Plan:
        """The plan itself."""
        return self.record.plan


def question_of(path: Path, others: Mapping[Path, str]) -> tuple[Question, str] | str:
    """What `hasfl plan --from` would ask for a run, and whose constants it has; a sentence if it cannot.

    A run that estimated none of the paper's constants is judged by those of another run of the report, if
    that run has the same scenario; `others` are such runs with their names.
    """
    reasons = []
    for each, name in {path: "this run", **others}.items():
        try:
            question = read_question(None, run=each).weighed()
        except InputError as error:
            reasons.append(str(error))
            continue
        return question, f"{CONSTANTS[question.constants]} {name}"
    return f"The plan cannot be judged: {reasons[0]}."


def quality_of(
    last: LastPlan, question: Question, constants: str, *, with_upgrades: bool
) -> PlanQuality | str:
    """The plan against the best plan for the same devices; a sentence where the two cannot be compared."""
    problem = _problem(last, question)
    try:
        own = evaluate(last.plan, problem)
        best = solve(problem, time_limit=SEARCH_SECONDS, start=last.plan)
    except InputError as error:
        return f"The plan cannot be judged: {error}."
    saved = _upgrades(best, problem) if with_upgrades else Upgrades([], 0)
    return PlanQuality(
        constants=constants,
        rounds_known=question.rounds_known and not isinstance(problem.constants, BoundConstants),
        objective=own.objective,
        best=min(best.objective, own.objective),
        lower_bound=best.lower_bound or 0.0,
        pace_setters=pace_setters(last.plan, problem),
        faults=tuple(faults(best, problem)),
        upgrades=tuple(_last_plan_entry(each) for each in saved.found if each.tells)[:SHOWN_UPGRADES],
        tried=len(saved.found),
        resources=saved.resources,
    )


def _problem(last: LastPlan, question: Question) -> Problem:
    """The problem of the devices that took part in the last round, as fast as they were then."""
    problem, devices = question.problem, last.record.devices
    return replace(
        problem,
        fleet=last.fleet,
        constants=question.constants_for(len(devices), problem.interval),
        samples=None if problem.samples is None else problem.samples[devices],
    )


def _upgrades(best: PlanReport, problem: Problem) -> Upgrades:
    def ask(upgraded: Problem, start: Plan) -> PlanReport:
        return solve(upgraded, gap=GAP, time_limit=TIME_LIMIT, start=start)

    return upgrades(best.plan, problem, ask, seconds=UPGRADE_SECONDS)


def _last_plan_entry(upgrade: Any) -> Mapping[str, Any]:
    return {
        "resource": upgrade.resource,
        "saved": upgrade.saved_seconds,
        "error": upgrade.error_seconds if math.isfinite(upgrade.error_seconds) else 0.0,
    }


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────


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
    drawn = _drawn(run, slider)
    return RunReport(
        name=run.path.name,
        **run.compared(contestant),
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
