"""The report of one or several runs as frozen values, and as a page that answers seven questions."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hasfl.arrays import IntN
from hasfl.fleet import Fleet
from hasfl.report.analysis import ComparedRun, Comparison
from hasfl.report.page import answers, course
from hasfl.report.page.columns import column, evenly, round_columns
from hasfl.report.page.page import PLOTLY, Section, page
from hasfl.report.timeline import STEPS, RoundSeconds, seconds_by_step

MOST_DEVICES = 60  # whose plans are shown over time; of more, evenly spaced ones. Chosen by hand
MOST_NAMES = 4  # of strategies in a title
SCRIPTS = (PLOTLY, "plots.js", "curves.js", "strips.js", "report_time.js", "report_plans.js", "report.js")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShownRound:
    """A round that the slider shows: as it was predicted, and as machines measured it."""

    round: int
    predicted: RoundSeconds
    measured: RoundSeconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanQuality:
    """How good the last plan of a run is, by a law of rounds."""

    constants: str  # by which constants the plan is judged, in words
    rounds_known: bool  # whether Θ forecasts the seconds of training; the paper's constants only rank plans
    objective: float  # Θ of the plan, s
    best: float  # Θ of the best plan that was found
    lower_bound: float  # no plan has a smaller Θ
    pace_setters: Mapping[str, str]  # of T₃ to T₆, by `planning/advice/why.py`
    faults: tuple[str, ...]  # what is wrong with the best plan, by `planning/verify.py`; empty if nothing
    upgrades: tuple[Mapping[str, Any], ...] = ()  # the most valuable ones: resource, saved and error
    tried: int = 0  # resources that were upgraded in turn
    resources: int = 0  # that could be upgraded

    @property
    def gap(self) -> float:
        """No plan saves a larger share of Θ."""
        return max(0.0, 1 - self.lower_bound / self.objective) if self.objective > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        """Seconds where they are known, else shares of the plan's own Θ."""
        unit = 1.0 if self.rounds_known else self.objective
        return {
            "constants": self.constants,
            "rounds_known": self.rounds_known,
            "objective": self.objective / unit,
            "best": self.best / unit,
            "lower_bound": self.lower_bound / unit,
            "gap": self.gap,
            "pace_setters": dict(self.pace_setters),
            "faults": list(self.faults),
            "upgrades": [
                {
                    "resource": each["resource"],
                    "saved": each["saved"] / unit,
                    "error": each["error"] / unit,
                }
                for each in self.upgrades
            ],
            "tried": self.tried,
            "resources": self.resources,
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunReport(ComparedRun):
    """All that a report says about one run."""

    name: str
    about: str  # model, data and devices, in a few words
    shown: Sequence[ShownRound]  # by the slider
    fleet: Fleet | None  # in the last round; None where it was measured and not kept
    devices: int  # of the whole fleet
    last_plan: Mapping[str, Any] | None  # for `charts.planTable`; None where the fleet is not known
    quality: PlanQuality | str  # a sentence where there is none
    scenario: str  # the text of the scenario
    environment: Mapping[str, Any]
    command: str  # that trains the run again

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
        """The rounds of the slider; rounds that are alike share their times, and all share their names."""
        places: dict[str, int] = {}  # of the times of a round in `times`
        parties: dict[str, int] = {}  # of a name in `parties`
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
        shown = _spread(self.devices)
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
            **course.PlansOverTime.of(self.records).as_json(shown),
        }


def device_names(devices: int) -> tuple[str, ...]:
    """Names for devices that have told none."""
    return tuple(f"device {i}" for i in range(devices))


def _spread(devices: int) -> IntN:
    return evenly(devices, MOST_DEVICES)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Labels:
    """How many samples of each class every device holds."""

    data: str
    seed: int  # that dealt them out
    devices: Sequence[str]
    classes: Sequence[str]  # empty if samples do not have one class each
    counts: IntN  # (devices, classes); (devices, 1) without classes

    def as_json(self) -> dict[str, Any]:
        """The counts of at most `MOST_DEVICES` devices."""
        shown = _spread(len(self.devices))
        return {
            "data": self.data,
            "seed": self.seed,
            "devices": [self.devices[i] for i in shown],
            "in_all": len(self.devices),
            "classes": list(self.classes),
            "counts": self.counts[shown].tolist(),
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Report:
    """One or several runs, and who holds which labels in the first of them."""

    runs: Sequence[RunReport]
    labels: Labels | str  # a sentence where they cannot be read
    repeats: Sequence[str] = ()  # names of runs that are left out, because they repeat another one

    @property
    def title(self) -> str:
        """What the page is called."""
        names = list(dict.fromkeys(run.strategy for run in self.runs))
        if len(names) == 1:
            return f"Training with {names[0]}"
        if len(names) > MOST_NAMES:
            return f"{len(names)} strategies compared"
        return f"{', '.join(names[:-1])} and {names[-1]} compared"

    @property
    def subtitle(self) -> str:
        """What was trained, and how many runs there are."""
        what = " · ".join(dict.fromkeys(run.about for run in self.runs))
        left_out = f" · left out, because the same training is here: {', '.join(self.repeats)}"
        end = left_out if self.repeats else ""
        if len(self.runs) == 1:
            return f"{what} · run {self.runs[0].name}, {self.runs[0].state}{end}"
        states = [run.state for run in self.runs]
        told = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        return f"{what} · {len(self.runs)} runs: {told}{end}"

    def as_json(self) -> dict[str, Any]:
        """Everything that the page draws."""
        return {
            "steps": STEPS,
            "strategies": list(dict.fromkeys(run.strategy for run in self.runs)),
            "verdict": asdict(Comparison.of(self.runs)),
            "runs": [run.as_json() for run in self.runs],
            "labels": self.labels if isinstance(self.labels, str) else self.labels.as_json(),
        }

    def sections(self) -> list[Section]:
        """The seven questions, each with its answer in words."""
        verdict = answers.convergence(self.runs, Comparison.of(self.runs))
        firsts = list({run.strategy: run for run in reversed(self.runs)}.values())[::-1]
        return [
            Section("convergence", "Did it converge?", verdict),
            Section("time", "Where did the time go?", answers.time(firsts)),
            Section("plans", "What did the planner decide?", answers.plans(firsts)),
            Section("quality", "How good is the plan?", answers.quality(firsts)),
            Section("traffic", "What went over the wire?", answers.traffic(firsts)),
            Section("labels", "Who holds which labels?", answers.labels(self.labels)),
            Section("again", "How to run it again?", answers.again(self.runs)),
        ]

    def html(self) -> str:
        """The whole page."""
        return page(self.title, self.sections(), self.as_json(), SCRIPTS, subtitle=self.subtitle)
