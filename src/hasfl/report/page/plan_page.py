"""The page of a plan: its forecast, one round of it, and sliders for faster links and computers."""

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
NARROW = 0.01  # a range is narrow if its ends differ by less than this share; chosen by hand
TOLD_CHANGE = 5e-4  # least change of the training time that is mentioned, as a share; chosen by hand


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShownPlan:
    """A plan with the sentences about it."""

    report: PlanReport
    problem: Problem
    words: str  # batch sizes and cuts of the devices
    certificate: str  # a sentence on the gap of the plan; empty without a gap
    time_range: tuple[float, float] | None = None  # range of the training time, s
    doubts: tuple[str, ...] = ()

    @property
    def told_range(self) -> tuple[float, float] | None:
        """The range of the training time; None if it is narrow, as two equal trainings differ by more."""
        if self.time_range is None or self.time_range[1] < (1 + NARROW) * self.time_range[0]:
            return None
        return self.time_range

    @property
    def sentence(self) -> str:
        """The batch sizes and cuts of the devices, as a sentence."""
        return f"Batch sizes (b) and cuts: {self.words}."

    def as_json(self) -> dict[str, Any]:
        """The data of the charts: a round with its aggregation, and the plan beside its devices."""
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


Found = ShownPlan | str  # a sentence if there is no plan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slider:
    """One quantity that a person can change: its positions, and the plans for some of them."""

    name: str  # name of the quantity in requests to the server
    label: str
    unit: str  # unit of the positions: "×", or a word such as "devices"
    own: float  # the scenario's value, which is one of the positions
    positions: Sequence[float]
    stops: Mapping[float, Found]  # plans that the page has, with every other slider at its `own`


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GuessTable:
    """The table of the guesses of the constants, with the ratio of the scenario's own plan by each guess."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    sentences: Sequence[str]  # sentences on the mean ratio, the worst ratio and labels


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Advice:
    """The sentences of `--why` and `--sensitivity` on the scenario's own values."""

    pace: Sequence[str] = ()  # sentences on who sets the pace
    upgrades: Sequence[tuple[str, str, str]] = ()  # (resource, saving, its error), in words
    limits: Sequence[str] = ()  # sentences on what the savings leave out
    mistakes: Sequence[str] = ()  # sentences on what wrong constants cost


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanPage:
    """The content of the page of a plan."""

    name: str  # name of the scenario
    about: str  # the model, the devices and the source of the constants, in a few words
    base: ShownPlan  # the plan for the scenario's own values
    own: Mapping[str, float]  # the scenario's own values, by the names of quantities that sliders may change
    sliders: Sequence[Slider]
    rounds_known: bool  # whether the seconds of training are known; if not, only their ratios are
    remarks: Sequence[str] = ()
    guesses: GuessTable | None = None
    advice: Advice | None = None
    served: bool = False  # whether a server makes new plans as sliders move

    def shown(self, found: Found) -> dict[str, Any]:
        """The data of one plan; if seconds are unknown, times are divided by that of the scenario's plan."""
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
        """The forecast in words, and its difference from the scenario's own plan."""
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
        """A sentence on how much longer or shorter training is than with the scenario's own values."""
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
        """The data that the page draws; the scenario's own plan is the first of `plans`."""
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
        """The sections of the page: questions with their answers in words."""
        planned = "Every dot is a plan of its own, with every other slider at the scenario's own value."
        if self.served:
            planned += " The path that you drag is drawn beside them."
        found = [
            Section("forecast", "How long will training take?", self.answer(self.base)),
            Section("round", "What happens in a round?"),
            Section("plan", "What does each device do?", self.base.sentence),
            Section("reaction", "How does the training time react?", planned),
        ]
        if self.guesses is not None:
            found.append(Section("guesses", "What if a guess is right?", "\n".join(self.guesses.sentences)))
        return found if self.advice is None else [*found, Section("advice", "Why not faster?")]

    def html(self) -> str:
        """The page as HTML text."""
        return page(
            f"Plan for {self.name}",
            self.sections(),
            self.as_json(),
            SCRIPTS,
            subtitle=self.about,
            served=self.served,
        )
