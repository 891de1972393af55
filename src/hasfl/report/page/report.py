"""The report of one or several runs: its values, and a page that answers seven questions."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hasfl.arrays import IntN
from hasfl.fleet import Fleet
from hasfl.report.analysis import HELD_OUT, Arrival, ComparedRun, Comparison, Level, format_factor
from hasfl.report.page import course
from hasfl.report.page.columns import column, evenly, round_columns
from hasfl.report.page.page import PLOTLY, Section, page
from hasfl.report.timeline import STEPS, RoundSeconds, seconds_by_step
from hasfl.units import format_seconds, format_share, format_size

MOST_DEVICES = 60  # most devices in the charts; of more, evenly spaced ones. Chosen by hand
MOST_NAMES = 4  # most names of strategies in a title; chosen by hand
NAMED = 2  # number of steps that the sentence on time names; chosen by hand
WORTH_SAYING = 5e-4  # least share of the training time that is mentioned: smaller ones would read 0.0 %
SCRIPTS = (PLOTLY, "plots.js", "curves.js", "strips.js", "report_time.js", "report_plans.js", "report.js")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShownRound:
    """A round that the slider shows: its predicted seconds, and its seconds measured on machines."""

    round: int
    predicted: RoundSeconds
    measured: RoundSeconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanQuality:
    """The quality of the last plan of a run, by a law of rounds."""

    constants: str  # name of the constants that judge the plan, in words
    rounds_known: bool  # whether Θ forecasts the seconds of training; the paper's constants only rank plans
    objective: float  # Θ of the plan, s
    best: float  # Θ of the best plan that was found
    lower_bound: float  # no plan has a smaller Θ, s
    pace_setters: Mapping[str, str]  # who sets T₃ to T₆, from `planning/advice/why.py`
    faults: tuple[str, ...]  # faults of the best plan that `planning/verify.py` found
    # The best upgrades: (resource, saving in s, error of the saving in s).
    upgrades: tuple[tuple[str, float, float], ...] = ()
    tried: int = 0  # number of resources whose upgrade was tried
    resources: int = 0  # number of resources that could be upgraded

    @property
    def gap(self) -> float:
        """The gap of the plan: no other plan saves a larger share of Θ."""
        return max(0.0, 1 - self.lower_bound / self.objective) if self.objective > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        """The quality for the page: times in seconds if rounds are known, else as shares of the plan's Θ."""
        unit = 1.0 if self.rounds_known else self.objective
        upgrades = [
            {"resource": name, "saved": saved / unit, "error": error / unit}
            for name, saved, error in self.upgrades
        ]
        times = {name: getattr(self, name) / unit for name in ("objective", "best", "lower_bound")}
        return asdict(self) | times | {"gap": self.gap, "upgrades": upgrades}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunReport(ComparedRun):
    """All that a report says about one run."""

    name: str
    about: str  # model, data and devices, in a few words
    shown: Sequence[ShownRound]  # the rounds that the slider shows
    fleet: Fleet | None  # the fleet in the last round; None if the run did not keep it
    devices: int  # number of devices of the whole fleet
    last_plan: Mapping[str, Any] | None  # columns for `charts.planTable`; None if the fleet is unknown
    quality: PlanQuality | str  # a sentence if there is no quality
    scenario: str  # the text of the scenario
    environment: Mapping[str, Any]
    command: str  # the command that trains the run again

    @property
    def names(self) -> Sequence[str]:
        """The names of all devices."""
        return device_names(self.devices) if self.fleet is None else self.fleet.names

    def as_json(self) -> dict[str, Any]:
        """The run as columns; long columns are thinned."""
        return {
            "name": self.name,
            "strategy": self.strategy,
            "seed": self.seed,
            "state": self.state,
            "rounds": len(self.records),
            "seconds": self.records[-1].clock if self.records else 0.0,
            "curves": course.curves(self.records),
            "steps": seconds_by_step(self.records),
            "bits": course.bits_by_arrow(self.records),
            **self._slider(),
            "plans": self._plans(),
            **({"last_plan": self.last_plan} if self.last_plan is not None else {}),
            "estimates": course.estimates(self.records),
            "notes": course.notes(self.records),
            "quality": self.quality if isinstance(self.quality, str) else self.quality.as_json(),
            "scenario": self.scenario,
            "environment": dict(self.environment),
            "command": self.command,
        }

    def _slider(self) -> dict[str, Any]:
        """The rounds of the slider; equal rounds share an entry of `times`, and all share the names."""
        places: dict[str, int] = {}  # index in `times`, by the entry's text
        parties: dict[str, int] = {}  # index of each name
        times: list[dict[str, Any]] = []

        def place(found: RoundSeconds | None) -> int | None:
            if found is None:
                return None
            entry = round_columns(found, self.names)
            entry["names"] = [parties.setdefault(name, len(parties)) for name in entry["names"]]
            key = repr(entry)
            if key not in places:
                places[key] = len(times)
                times.append(entry)
            return places[key]

        at = [place(each.predicted) for each in self.shown]
        measured = [place(each.measured) for each in self.shown]
        return {
            "shown": [each.round for each in self.shown],
            "at": at,
            **({"measured": measured} if any(each is not None for each in measured) else {}),
            "times": times,
            "parties": list(parties),
        }

    def _plans(self) -> dict[str, Any]:
        shown = evenly(self.devices, MOST_DEVICES)
        fleet = self.fleet
        resources = (
            {}
            if fleet is None
            else {"flops": column(fleet.flops[shown]), "up_rate": column(fleet.up_rate[shown])}
        )
        return {
            "names": [self.names[i] for i in shown],
            "devices": self.devices,
            **resources,
            **course.plans_over_time(self.records, shown),
        }


def device_names(devices: int) -> tuple[str, ...]:
    """Names for devices without names of their own: "device 0", "device 1", …"""
    return tuple(f"device {i}" for i in range(devices))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Labels:
    """How many samples of each class every device holds."""

    data: str
    seed: int  # seed with which samples were dealt out
    devices: Sequence[str]
    classes: Sequence[str]  # names of classes; empty if samples do not have one class each
    counts: IntN  # number of samples, as (devices, classes), or (devices, 1) without classes

    def as_json(self) -> dict[str, Any]:
        """The counts for the page, of at most `MOST_DEVICES` devices."""
        shown = evenly(len(self.devices), MOST_DEVICES)
        return {
            "data": self.data,
            "seed": self.seed,
            "devices": [self.devices[i] for i in shown],
            "in_all": len(self.devices),
            "classes": list(self.classes),
            "counts": self.counts[shown].tolist(),
        }


# ── the answers in words ─────────────────────────────────────────────────────────────────────────────────


def convergence_in_words(runs: Sequence[ComparedRun], comparison: Comparison) -> str:
    """Which strategy was first, how much later the others were, and whether accuracies may still rise."""
    level, rows = comparison.level, comparison.rows
    if level is None:
        which, has = ("The run", "has not") if len(runs) == 1 else ("No run", "has")
        sentences = [f"{which} {has} been evaluated yet, so there is no accuracy."]
    else:
        sentences = [_race(level, rows)] if level.is_goal else [_race(level, rows), _converged(rows)]
    sentences += [
        f"{run.strategy} with seed {run.seed} is {run.state}, after {len(run.records):,} rounds so far."
        for run in runs
        if run.state != "finished"
    ]
    return " ".join(sentences)


def _race(level: Level, rows: Sequence[Arrival]) -> str:
    """Which strategy was first to reach the level, and how much later the others were."""
    means = {row.strategy: row.seconds.mean for row in rows if row.seconds and row.reached == row.seeds}
    arrived = sorted((row for row in rows if row.strategy in means), key=lambda row: means[row.strategy])
    late = [row for row in rows if row.reached < row.seeds]
    samples = "the held-out samples" if level.samples == HELD_OUT else level.samples
    what = f"{100 * level.accuracy:.4g} % of {samples} right"
    if not arrived:
        return f"No strategy has {what} with every seed yet. {_best_so_far(rows)}".strip()
    best, *others = arrived
    assert best.rounds is not None
    mean = f", the mean of {best.seeds} seeds" if best.seeds > 1 else ""
    how = "reached" if not others and not late else "was first to reach"
    aim = "its goal" if level.is_goal and not others else "the goal" if level.is_goal else "what all reach"
    seconds = format_seconds(means[best.strategy])
    took = f"after {seconds} of virtual time and {best.rounds.mean:,.0f} rounds{mean}"
    if not others and not late and not level.is_goal:
        sentence = f"{best.strategy} came to {what}, its best, {took}."
    else:
        sentence = f"{best.strategy} {how} {aim}, {what}, {took}."
    if others:
        sentence += f" That is {_enumerated([_sooner(row) for row in others])}."
    if late:
        some = " with every seed" if any(row.reached for row in late) else ""
        sentence += f" {_enumerated([row.strategy for row in late])} did not reach it{some}."
    return sentence


def _converged(rows: Sequence[Arrival]) -> str:
    """Whether accuracies may still rise, by the paper's rule of convergence."""
    runs, converged = sum(row.seeds for row in rows), sum(row.converged_runs for row in rows)
    full = all(row.best is not None and row.best.low == 1.0 for row in rows)
    if runs == 1:
        if (after := rows[0].converged) is not None:
            return f"By the paper's rule it converged after {format_seconds(after.mean)}."
        return (
            f"By the paper's rule it has not converged{'' if full else ', so its accuracy may still rise'}."
        )
    if converged == runs:
        return "By the paper's rule all runs converged."
    count = "none" if converged == 0 else f"only {converged}"
    rise = "" if full else ", so accuracies may still rise"
    return f"By the paper's rule {count} of the {runs} runs converged{rise}."


def _sooner(row: Arrival) -> str:
    written = format_factor(row.times_as_long or 1.0)
    how = "about as soon as" if written == "1" else f"{written} times sooner than"
    return f"{how} {row.strategy}"


def _best_so_far(rows: Sequence[Arrival]) -> str:
    means = {row.strategy: row.best.mean for row in rows if row.best is not None}
    if not means:
        return ""
    best = max(means, key=lambda name: means[name])
    return f"{best} came to {100 * means[best]:.3g} %."


def _enumerated(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def time_in_words(runs: Sequence[RunReport]) -> str:
    """The steps that took the first run most time, and the longest step of every other strategy."""
    if not runs[0].records:
        return "There are no rounds yet."
    first, *others = runs
    total = seconds_by_step(first.records)
    whole = format_seconds(sum(total.values()))
    largest = " and ".join(f"{share} on {words}" for share, words in _largest(total, NAMED))
    sentence = f"{first.strategy} spent {largest}, of {whole} of virtual time."
    rest = [
        f"{run.strategy}, {share} on {words}"
        for run in others
        if run.records
        for share, words in _largest(seconds_by_step(run.records), 1)
    ]
    return sentence + (f" The largest part of the others: {'; '.join(rest)}." if rest else "")


def _largest(total: Mapping[str, float], count: int) -> list[tuple[str, str]]:
    whole = sum(total.values()) or 1.0
    ordered = sorted(total.items(), key=lambda item: -item[1])[:count]
    return [
        (format_share(seconds / whole), (STEPS[step][2] if step in STEPS else step))
        for step, seconds in ordered
        if seconds > 0
    ]


def plans_in_words(runs: Sequence[RunReport]) -> str:
    """How often the plan of each strategy changed, and the last plan of the first strategy."""
    if not runs[0].records:
        return "There is no plan yet."
    counts = [
        (run.strategy, len(course.changes(run.records)), len(run.records)) for run in runs if run.records
    ]
    told = "; ".join(f"{name} {_plans(number)} in {rounds:,} rounds" for name, number, rounds in counts)
    last = runs[0].records[-1].plan
    batches, cuts = _span("batch size", "batch sizes", last.batch_sizes), _span("cut", "cuts", last.cuts)
    return f"{told}.\nIn its last plan, {runs[0].strategy} gives devices {batches} and {cuts}."


def _plans(number: int) -> str:
    return "kept one plan" if number == 1 else f"used {number:,} plans"


def _span(one: str, many: str, values: IntN) -> str:
    low, high = int(np.min(values)), int(np.max(values))
    return f"the {one} {low}" if low == high else f"{many} from {low} to {high}"


def quality_in_words(runs: Sequence[RunReport]) -> str:
    """How much time a better plan could save for every strategy, and which upgrade saves most."""
    judged = [(run.strategy, run.quality) for run in runs if not isinstance(run.quality, str)]
    if not judged:
        return str(runs[0].quality)
    sentences = [f"{name}: {_saving(found)}" for name, found in judged]
    for _, found in judged:
        if found.upgrades:
            sentences.append(_best_upgrade(*found.upgrades[0][:2], found.best))
    return "\n".join(sentences)


def _best_upgrade(resource: str, saved: float, best: float) -> str:
    saved /= best
    if saved < WORTH_SAYING:
        return "10 % more of any one resource would save less than 0.1 % of the time."
    return f"10 % more {resource} would save most: {format_share(saved)} of the time."


def _saving(found: PlanQuality) -> str:
    saved = 1 - found.best / found.objective
    if saved < WORTH_SAYING:
        return f"no better plan was found, and none saves more than {format_share(found.gap)} of the time."
    return (
        f"another plan would save {format_share(saved)} of the training time; none saves more than "
        f"{format_share(found.gap)}."
    )


def traffic_in_words(runs: Sequence[RunReport]) -> str:
    """How much each strategy sent, in all and in a mean round."""
    sent = [
        (run.strategy, course.bits_by_arrow(run.records), len(run.records)) for run in runs if run.records
    ]
    if not sent or not any(sum(bits.values()) for _, bits, _ in sent):
        return "Nothing has been sent yet."
    totals = [
        f"{name} sent {format_size(sum(bits.values()))} ({format_size(sum(bits.values()) / rounds)} a round)"
        for name, bits, rounds in sent
    ]
    return f"{'; '.join(totals)}."


def labels_in_words(found: Labels | str) -> str:
    """How many samples and classes the devices hold."""
    if isinstance(found, str):
        return found
    samples = found.counts.sum(axis=1)
    held = f"{_samples(samples)} of {found.data} each"
    if not len(found.classes):
        return f"{len(found.devices):,} devices hold {held}. Samples do not have one class each."
    classes = (found.counts > 0).sum(axis=1)
    every = int(classes.min()) == len(found.classes)
    kinds = "all" if every else f"{int(classes.min()):,} to {int(classes.max()):,} of the"
    return f"{len(found.devices):,} devices hold {held}, from {kinds} {len(found.classes):,} classes."


def _samples(values: IntN) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,} {'sample' if low == 1 else 'samples'}" if low == high else f"{low:,} to {high:,} samples"


def commands_in_words(runs: Sequence[RunReport]) -> str:
    """A sentence on the commands that train the runs again."""
    versions = {str(run.environment.get("hasfl", "unknown")) for run in runs}
    what = "This command trains the run" if len(runs) == 1 else "These commands train the runs"
    made = "It was" if len(runs) == 1 else "They were"
    return f"{what} again. {made} made with hasfl {' and '.join(sorted(versions))}."


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Report:
    """The report of one or several runs, with the labels of the first run's devices."""

    runs: Sequence[RunReport]
    labels: Labels | str  # a sentence if they cannot be read
    repeats: Sequence[str] = ()  # names of runs that are left out, because they repeat another run

    @property
    def title(self) -> str:
        """The title of the page."""
        names = list(dict.fromkeys(run.strategy for run in self.runs))
        if len(names) == 1:
            return f"Training with {names[0]}"
        if len(names) > MOST_NAMES:
            return f"{len(names)} strategies compared"
        return f"{', '.join(names[:-1])} and {names[-1]} compared"

    @property
    def subtitle(self) -> str:
        """The line below the title: what was trained, and how many runs there are."""
        what = " · ".join(dict.fromkeys(run.about for run in self.runs))
        left_out = f" · left out, because the same training is here: {', '.join(self.repeats)}"
        end = left_out if self.repeats else ""
        if len(self.runs) == 1:
            return f"{what} · run {self.runs[0].name}, {self.runs[0].state}{end}"
        states = [run.state for run in self.runs]
        told = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        return f"{what} · {len(self.runs)} runs: {told}{end}"

    def as_json(self) -> dict[str, Any]:
        """The data that the page draws."""
        return {
            "steps": STEPS,
            "strategies": list(dict.fromkeys(run.strategy for run in self.runs)),
            "verdict": asdict(Comparison.of(self.runs)),
            "runs": [run.as_json() for run in self.runs],
            "labels": self.labels if isinstance(self.labels, str) else self.labels.as_json(),
        }

    def sections(self) -> list[Section]:
        """The seven questions, each with its answer in words."""
        verdict = convergence_in_words(self.runs, Comparison.of(self.runs))
        firsts = list({run.strategy: run for run in reversed(self.runs)}.values())[::-1]
        return [
            Section("convergence", "Did it converge?", verdict),
            Section("time", "Where did the time go?", time_in_words(firsts)),
            Section("plans", "What did the planner decide?", plans_in_words(firsts)),
            Section("quality", "How good is the plan?", quality_in_words(firsts)),
            Section("traffic", "What went over the wire?", traffic_in_words(firsts)),
            Section("labels", "Who holds which labels?", labels_in_words(self.labels)),
            Section("again", "How to run it again?", commands_in_words(self.runs)),
        ]

    def html(self) -> str:
        """The page as HTML text."""
        return page(self.title, self.sections(), self.as_json(), SCRIPTS, subtitle=self.subtitle)
