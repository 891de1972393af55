"""A plan as a page: its forecast, a round of it, and how both react to faster links and computers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hasfl.constants import Guesses
from hasfl.plan import PlanReport
from hasfl.problem import Problem
from hasfl.report.page.columns import plan_columns, round_columns, rounded
from hasfl.report.page.page import Section, page
from hasfl.report.timeline import STEPS, planned_seconds
from hasfl.theory.latency import aggregation_latency, split_training_latency
from hasfl.units import format_seconds, format_share

SCRIPTS = ("plan_reaction.js", "plan.js")
NARROW = 0.01  # a range whose ends differ by a smaller share; chosen by hand
TOLD_CHANGE = 5e-4  # share of the training time: a smaller change is none


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShownPlan:
    """A plan, and what is known of it."""

    report: PlanReport
    problem: Problem
    words: str  # what the devices do
    certificate: str  # how good the plan is known to be
    time_range: tuple[float, float] | None = None  # of the training time, s, by the guesses or the errors
    doubts: tuple[str, ...] = ()

    @property
    def told_range(self) -> tuple[float, float] | None:
        """The range of the training time, unless it is narrow: two trainings differ by more, by chance."""
        if self.time_range is None or self.time_range[1] < (1 + NARROW) * self.time_range[0]:
            return None
        return self.time_range

    @property
    def sentence(self) -> str:
        """What the devices do, in a sentence."""
        return f"Batch sizes (b) and cuts: {self.words}."

    def as_json(self) -> dict[str, Any]:
        """What charts draw: the round with its aggregation, and the plan beside its devices."""
        plan, fleet, profile = self.report.plan, self.problem.fleet, self.problem.profile
        split = split_training_latency(plan, fleet, profile)
        aggregation = aggregation_latency(plan, fleet, profile)
        return {
            "round": round_columns(planned_seconds(split, aggregation), fleet.names),
            "plan": plan_columns(plan, fleet, profile, split),
            "interval": self.problem.interval,
            "round_seconds": rounded(self.report.round_seconds),
            "split_seconds": rounded(self.report.split_seconds),
            "aggregation_seconds": rounded(self.report.aggregation_seconds),
            "gap": None if self.report.gap is None else rounded(max(self.report.gap, 0.0)),
            "words": self.words,
            "sentence": self.sentence,
            "certificate": self.certificate,
            "doubts": self.doubts,
        }


Found = ShownPlan | str  # a sentence where there is no plan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slider:
    """One thing that a person can change: where it may stand, and the plans for some of these values."""

    name: str  # for the server
    label: str
    unit: str  # "×", or a word such as "devices"
    own: float  # the value of the scenario; it is among the positions
    positions: Sequence[float]
    stops: Mapping[float, Found]  # planned beforehand, with every other slider at its own value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GuessTable:
    """What the scenario's own plan costs by each guess of the constants."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    sentences: Sequence[str]  # on the mean ratio and the like


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Advice:
    """What `--why` and `--sensitivity` say about the scenario's own values."""

    pace: Sequence[str] = ()  # who sets the pace, in sentences
    upgrades: Sequence[tuple[str, str, str]] = ()  # resource, saving and its error, in words
    limits: Sequence[str] = ()  # what the upgrades do not tell, in sentences
    mistakes: Sequence[str] = ()  # what wrong constants cost, in sentences


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanPage:
    """A plan with everything that its page says."""

    name: str  # of the scenario
    about: str  # the model, the devices and where the constants come from, in a few words
    base: ShownPlan  # with the scenario's own values
    own: Mapping[str, float]  # these values, by the names of sliders; one without a slider may be among them
    sliders: Sequence[Slider]
    rounds_known: bool  # whether seconds of the whole training are known, or only ratios of them
    remarks: Sequence[str] = ()
    guesses: GuessTable | None = None
    advice: Advice | None = None
    served: bool = False  # whether a server plans anew as sliders move

    def shown(self, found: Found) -> dict[str, Any]:
        """A plan for the page; times are over those of the scenario's own plan if seconds are unknown."""
        if isinstance(found, str):
            return {"trouble": found}
        report = found.report
        unit = 1.0 if self.rounds_known else self.base.report.objective or 1.0
        times: dict[str, Any] = {"time": rounded(report.objective / unit)}
        if self.rounds_known:
            times["rounds"] = rounded(report.rounds)
        if self.rounds_known and found.told_range is not None:
            times["range"] = [rounded(each) for each in found.told_range]
        return {"answer": self.answer(found), **times, **found.as_json()}

    def answer(self, found: ShownPlan) -> str:
        """The forecast in words, and how it compares with the scenario's own values."""
        report = found.report
        each = format_seconds(report.round_seconds)
        if not self.rounds_known:
            return f"A round takes {each}.{self._change(report)}"
        spread = ""
        if found.told_range is not None:
            low, high = map(format_seconds, found.told_range)
            guesses = isinstance(found.problem.constants, Guesses)
            why = "by the guesses" if guesses else "with the constants a standard error off"
            spread = f" ({low} to {high}, {why})"
        total, change = format_seconds(report.objective), self._change(report)
        return f"Training takes {total}{spread}: {report.rounds:,.0f} rounds of {each} each.{change}"

    def _change(self, report: PlanReport) -> str:
        """How much longer or shorter training is than with the scenario's own values."""
        own = self.base.report.objective
        if report is self.base.report or own == 0:
            return ""
        change = report.objective / own - 1
        if abs(change) < TOLD_CHANGE:
            return " The training time is that of the scenario's own values."
        subject, time = ("That is", "") if self.rounds_known else ("Training takes", " time")
        if change > 0:
            return f" {subject} {report.objective / own:.3g} times as long as with the scenario's own values."
        return f" {subject} {format_share(-change)} less{time} than with the scenario's own values."

    def as_json(self) -> dict[str, Any]:
        """Everything that the page draws; the scenario's own plan is the first of the plans."""
        plans = [self.shown(self.base)]
        sliders = []
        for slider in self.sliders:
            stops = []
            for value, found in slider.stops.items():
                if value == slider.own:
                    stops.append({"value": value, "plan": 0})
                    continue
                stops.append({"value": value, "plan": len(plans)})
                plans.append(self.shown(found))
            sliders.append(
                {
                    "name": slider.name,
                    "label": slider.label,
                    "unit": slider.unit,
                    "own": list(slider.positions).index(slider.own),
                    "positions": list(slider.positions),
                    "stops": stops,
                }
            )
        return {
            "steps": STEPS,
            "served": self.served,
            "rounds_known": self.rounds_known,
            "remarks": self.remarks,
            "own": dict(self.own),
            "plans": plans,
            "sliders": sliders,
            "guesses": self.guesses and {"columns": self.guesses.columns, "rows": self.guesses.rows},
            "advice": self.advice and asdict(self.advice),
        }

    def sections(self) -> list[Section]:
        """The questions that the page answers."""
        found = [
            Section("forecast", "How long will training take?", self.answer(self.base)),
            Section("round", "What happens in a round?"),
            Section("plan", "What does each device do?", self.base.sentence),
            Section("reaction", "How does the training time react?", self._how_planned()),
        ]
        if self.guesses is not None:
            found.append(Section("guesses", "What if a guess is right?", "\n".join(self.guesses.sentences)))
        return found if self.advice is None else [*found, Section("advice", "Why not faster?")]

    def _how_planned(self) -> str:
        dots = "Every dot is a plan of its own, with every other slider at the scenario's own value."
        return f"{dots} The path that you drag is drawn beside them." if self.served else dots

    def html(self) -> str:
        """The whole page."""
        return page(
            f"Plan for {self.name}",
            self.sections(),
            self.as_json(),
            SCRIPTS,
            subtitle=self.about,
            served=self.served,
        )
